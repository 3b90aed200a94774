"""The compiled recurrence of subsequence DTW over local costs; inputs are assumed valid.

There are two versions. `accumulate` also tracks where each path starts. `accumulate_costs`, for
lower bounds in float32 or float64, does not; its inner loops run over contiguous slices, so that
the compiler can vectorise them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strap.dtw.steps import MAX_COLUMN_STEP, StepSet
from strap.dtw.types import Floats, Ints
from strap.jit import njit


@njit
def best_predecessor(D: Floats, starts: Ints, n: int, m: int, moves: Ints) -> tuple[int, int]:
    """Return the cheapest predecessor of cell (n, m), or (−1, −1) if it has none.

    Of equally cheap ones, the one whose path starts last wins, then the first of the moves.
    """
    row, column, least, latest = -1, -1, np.inf, np.int64(-1)
    for s in range(moves.shape[0]):
        i, j = n - moves[s, 0], m - moves[s, 1]
        if i < 0 or j < 0 or D[i, j] == np.inf:
            continue
        if D[i, j] < least or (D[i, j] == least and starts[i, j] > latest):
            row, column, least, latest = i, j, D[i, j], starts[i, j]
    return row, column


@njit
def trace_back(D: Floats, m: int, moves: Ints, is_free: bool) -> Ints:
    """Return the cells [c 2] of the cheapest path, from its end in column m back to its start.

    Of equally cheap predecessors, the first of the moves wins.

    Args:
        D: [n m], finite at the path's end.
        m: the column of the path's end, which is in the last row.
        moves: of the step set [s 2].
        is_free: as in `accumulate`.
    """
    cells, count, n = np.empty((D.shape[0] + D.shape[1], 2), np.int64), 0, D.shape[0] - 1
    same_starts = np.zeros(D.shape, np.int64)
    while n >= 0:
        cells[count, 0], cells[count, 1] = n, m
        count += 1
        if n == 0 and is_free:
            break
        n, m = best_predecessor(D, same_starts, n, m, moves)
    return cells[:count]


@njit
def accumulate(
    costs: Floats, steps: StepSet, first: int, is_free: bool, D: Floats, starts: Ints
) -> None:
    """Fill D and the start column of each cell's path, from column `first` on.

    No path goes through a cell whose cost is ∞.

    Args:
        costs: C [n m].
        first: the first column to fill; earlier columns hold valid values.
        is_free: whether paths may start anywhere in the first row, and so never run along it;
            else they start in cell (0, `first`), and D must be ∞ on input.
        D, starts: the outputs [n m].
    """
    N, M = costs.shape
    for n in range(N):
        left, right = first, M
        if not is_free:  # only the columns that a path from (0, first) can reach
            left = first + int(np.ceil(n * steps.min_slope))
            if steps.max_slope < np.inf:
                right = min(M, first + int(n * steps.max_slope) + 1)
        for m in range(left, right):
            if n == 0 and (is_free or m == first):
                D[0, m], starts[0, m] = costs[0, m], m
                continue
            D[n, m] = np.inf
            if costs[n, m] < np.inf:
                i, j = best_predecessor(D, starts, n, m, steps.moves)
                if i >= 0:
                    D[n, m], starts[n, m] = D[i, j] + costs[n, m], starts[i, j]


@njit
def align(costs: Floats, steps: StepSet) -> tuple[float, int, int]:
    """Return cost, start and stop of the cheapest path through C [n m]; cost ∞ if none fits."""
    N, M = costs.shape
    D, starts = np.full((N, M), np.inf), np.zeros((N, M), np.int64)
    accumulate(costs, steps, 0, True, D, starts)
    end = int(np.argmin(D[N - 1]))
    return D[N - 1, end], starts[N - 1, end], end + 1


@njit
def align_within(costs: Floats, steps: StepSet, least: int, most: int) -> tuple[float, int, int]:
    """Return what `align` does, but only of paths of least..most frames; tries each start."""
    N, M = costs.shape
    found, start, stop = np.inf, 0, 0
    D, starts = np.empty((N, min(M, most))), np.empty((N, min(M, most)), np.int64)
    for first in range(M):
        width = min(M - first, most)
        D[:] = np.inf
        window = costs[:, first : first + width]
        accumulate(window, steps, 0, False, D[:, :width], starts[:, :width])
        for m in range(least - 1, width):
            cost, end = D[N - 1, m], first + m + 1
            if cost < found or (cost == found and cost < np.inf and end <= stop):
                found, start, stop = cost, first, end
    return found, start, stop


@njit
def accumulate_costs(costs: NDArray[Any], moves: Ints) -> NDArray[Any]:
    """Return D [n, 2 + m] of local costs [n m].

    It has two extra columns of ∞ at the left (MAX_COLUMN_STEP), so that reading column m − 2 needs
    no bounds check:

        column    ∞   ∞   0   1   2 …
        index     0   1   2   3   4 …
    """
    N, M = costs.shape
    D = np.full((N, MAX_COLUMN_STEP + M), np.inf, costs.dtype)
    D[0, MAX_COLUMN_STEP:] = costs[0]
    for n in range(1, N):
        row = D[n, MAX_COLUMN_STEP:]
        for s in range(moves.shape[0]):
            dn, dm = moves[s]
            if 0 < dn <= n:
                above = D[n - dn, MAX_COLUMN_STEP - dm : MAX_COLUMN_STEP - dm + M]
                for m in range(M):
                    row[m] = min(row[m], above[m])
        for m in range(M):
            row[m] += costs[n, m]
        for s in range(moves.shape[0]):
            dn, dm = moves[s]
            if dn == 0:  # along the row: each column after the one before
                for m in range(dm, M):
                    row[m] = min(row[m], row[m - dm] + costs[n, m])
    return D


@njit
def cheapest_cost(costs: NDArray[Any], moves: Ints) -> Any:
    """Return the smallest D(N, m) for local costs [n m]; ∞ if no path fits."""
    return accumulate_costs(costs, moves)[-1].min()
