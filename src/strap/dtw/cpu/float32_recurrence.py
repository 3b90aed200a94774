"""The compiled loops of `float32_bounds`: centering, local costs, and the recurrence over them.

Inputs are taken as valid. The innermost loops run over whole slices from 0, so that the compiler
works on several columns at once.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from strap.dtw.steps import StepSet
from strap.dtw.types import Floats, Frames, Ints, Singles
from strap.jit import njit, njit_reordered

Real: TypeAlias = float | np.float32
SUMMED = 256  # dimensions summed in float32 before they go to float64
LARGEST_SQUARE = 1e30  # of a centered and scaled frame: beyond, float32 products overflow
RING = 3  # rows of D that are kept: as far back as a move goes, and one more


@njit_reordered
def _center_span(frame: Frames, mean: Frames, scale: Real, out: Singles) -> np.float32:
    """Write (frame − mean)·scale as float32; return its squared norm, in float32."""
    total = np.float32(0)
    for k in range(frame.shape[0]):
        value = np.float32((frame[k] - mean[k]) * scale)
        out[k] = value
        total += value * value
    return total


@njit
def center(frames: Frames, mean: Frames, scale: Real, out: Singles, squares: Floats) -> None:
    """Write (frames − mean)·scale, rounded to float32, into out [m d], its squared norms [m].

    Frames, mean and scale are all float32 or all float64: the difference is rounded once. Norms
    are summed in spans, so that they err by less than SUMMED·u.
    """
    for i in range(frames.shape[0]):
        total = 0.0
        for k in range(0, frames.shape[1], SUMMED):
            span = slice(k, k + SUMMED)
            total += np.float64(_center_span(frames[i, span], mean[span], scale, out[i, span]))
        squares[i] = total


@njit
def _fill_cost_row(
    alpha: np.float32,
    beta: Singles,
    products: Singles,
    is_cosine: bool,
    row: Singles,
) -> None:
    """Write lower bounds of a row's local costs; see `lower_bound_pairs`. Below 0 they are 0."""
    zero = np.float32(0)
    for m in range(row.shape[0]):
        row[m] = (alpha + beta[m]) + products[m]
    if is_cosine:
        for m in range(row.shape[0]):
            row[m] = np.float32(0.5) * max(row[m], zero)
    else:
        for m in range(row.shape[0]):
            row[m] = np.sqrt(max(row[m], zero))


@njit
def _accumulate_strap_row(
    alpha: np.float32,
    beta: Singles,
    products: Singles,
    one_back: Singles,
    two_back: Singles,
    out: Singles,
) -> None:
    """As `_fill_cost_row` and `accumulate_row` in one pass, for steps `strap` and metric l2.

    This is the row that most searches spend their time in.
    """
    zero = np.float32(0)
    for m in range(out.shape[0]):
        square = (alpha + beta[m]) + products[m]
        out[m] = np.sqrt(max(square, zero)) + min(one_back[m], two_back[m])


@njit
def _keep_smaller(out: Singles, other: Singles) -> None:
    for m in range(out.shape[0]):
        out[m] = min(out[m], other[m])


@njit
def _add(out: Singles, costs: Singles) -> None:
    for m in range(out.shape[0]):
        out[m] = out[m] + costs[m]


@njit
def accumulate_row(n: int, first: int, last: int, costs: Singles, moves: Ints, D: Singles) -> None:
    """Fill D of columns first..last−1 of row n from their costs [last − first].

    Three rows of D are kept, in a ring, each with two columns of ∞ in front, so that m − 2 needs
    no test; what was there before must have been ∞ where columns are left out:

        column    ∞   ∞   0   1   2 …
        index     0   1   2   3   4 …
    """
    out = D[n % RING, first + 2 : last + 2]
    if n == 0:
        out[:] = costs
        return
    out[:] = np.inf
    for s in range(moves.shape[0]):
        dn, dm = moves[s]
        if 0 < dn <= n:
            _keep_smaller(out, D[(n - dn) % RING, first + 2 - dm : last + 2 - dm])
    _add(out, costs)
    for s in range(moves.shape[0]):
        dn, dm = moves[s]
        if dn == 0:  # along the row: each column after the one before
            for m in range(dm, out.shape[0]):
                out[m] = min(out[m], out[m - dm] + costs[m])


@njit
def cheapest_ending(D: Singles, n_rows: int, first: int, last: int) -> np.float32:
    """Return the least D of columns first..last−1 of the last row."""
    least = np.float32(np.inf)
    for m in range(first, last):
        least = min(least, D[(n_rows - 1) % RING, m + 2])
    return least


@njit
def cheapest_path(costs: Singles, moves: Ints) -> np.float32:
    """Return the least D(N, m) over local costs [n m]."""
    N, M = costs.shape
    D = np.full((RING, M + 2), np.float32(np.inf))
    for n in range(N):
        accumulate_row(n, 0, M, costs[n], moves, D)
    return cheapest_ending(D, N, 0, M)


@njit
def lower_bound_pairs(
    alpha: Singles,
    beta: Singles,
    products: Singles,
    offsets: Ints,
    steps: StepSet,
    is_cosine: bool,
    out: Singles,
) -> None:
    """Write the least D(N, m) over lower bounds of local costs, for one query, into out [t].

    A cell's squared distance is alpha [n] + beta [F] + products [n F], see `float32_bounds`.
    Trajectory i is columns offsets[i]:offsets[i + 1]. No starts are carried: only the winners need
    them.
    """
    N, longest = alpha.shape[0], np.diff(offsets).max()
    D, row = np.empty((RING, longest + 2), np.float32), np.empty(longest, np.float32)
    for i in range(out.shape[0]):
        begin = offsets[i]
        M = offsets[i + 1] - begin
        D[:, : M + 2] = np.inf
        for n in range(N):
            # Columns that no path reaches, or from which none finishes, are left out.
            first = int(np.ceil(n * steps.min_slope))
            last = M - int(np.ceil((N - 1 - n) * steps.min_slope))
            if first >= last:
                D[n % RING] = np.inf
                continue
            span = slice(begin + first, begin + last)
            D[n % RING, first : first + 2] = np.inf
            if steps.is_strap and n > 0 and not is_cosine:
                before = D[(n - 1) % RING]
                _accumulate_strap_row(
                    alpha[n],
                    beta[span],
                    products[n, span],
                    before[first + 1 : last + 1],
                    before[first:last],
                    D[n % RING, first + 2 : last + 2],
                )
            else:
                costs = row[: last - first]
                _fill_cost_row(alpha[n], beta[span], products[n, span], is_cosine, costs)
                accumulate_row(n, first, last, costs, steps.moves, D)
        out[i] = cheapest_ending(D, N, int(np.ceil((N - 1) * steps.min_slope)), M)
