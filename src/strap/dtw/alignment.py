"""The recurrence of subsequence DTW over local costs, compiled. Inputs are taken as valid.

It is here twice. `accumulate` also carries where each path starts. `accumulate_costs`, for lower
bounds, does not, and takes float32 or float64; its innermost loops run over whole slices from 0, so
that the compiler works on several columns at once.
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
    """Return the cell from which (n, m) is reached at the least cost; (−1, −1): there is none.

    Of equally cheap ones that whose path starts last, and then that of the first of the moves.
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
    """Return the cells [c 2] of the cheapest path, from its end in column m to its start.

    Of equally cheap predecessors, that of the first of the moves.

    Args:
        D: [n m], finite where the path ends.
        m: the column in which it ends, in the last row.
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
    """Fill D [n m] and the column where each path starts [n m], from column `first` on.

    Earlier columns are known already. A cell whose cost is ∞ is on no path.

    Args:
        costs: C [n m].
        first: the first column to fill.
        is_free: whether paths may start anywhere in the first row, and so never run along it;
            else they start in column `first`, and D must be ∞ where none of them comes.
        D, starts: what is filled.
    """
    N, M = costs.shape
    for n in range(N):
        left, right = first, M
        if not is_free:  # what a path from there can reach
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
    """Return cost, start and stop of the cheapest path through C [n m]; ∞ when no path fits."""
    N, M = costs.shape
    D, starts = np.full((N, M), np.inf), np.zeros((N, M), np.int64)
    accumulate(costs, steps, 0, True, D, starts)
    end = int(np.argmin(D[N - 1]))
    return D[N - 1, end], starts[N - 1, end], end + 1


@njit
def align_within(costs: Floats, steps: StepSet, least: int, most: int) -> tuple[float, int, int]:
    """Return what `align` does, of the paths of least..most frames alone: each start by itself."""
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

    Two columns of ∞ come first, as many as a move reaches back, so that m − 2 needs no test:

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
    """Return the least D(N, m) over local costs [n m]; ∞ when no path fits."""
    return accumulate_costs(costs, moves)[-1].min()
