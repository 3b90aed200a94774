"""The compiled loops of lower bounds: float32 sums for many trajectories at once, see `bounds`.

As in `kernels`, step sets come as numbers, inputs are taken as valid, and the innermost loops run
over whole slices from 0, so that the compiler works on several columns at once.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from strap.dtw import bits
from strap.dtw.jit import njit, njit_reordered
from strap.dtw.types import Floats, Frames, Halves, Ints, Singles, Whole

Real: TypeAlias = float | np.float32
RUN = 256  # dimensions summed in float32 before they go to float64
LARGEST_SQUARE = 1e30  # of a moved and scaled frame: beyond, float32 products overflow


@njit
def _widen(frames: Halves, out: Singles) -> None:
    for k in range(frames.shape[0]):
        out[k] = bits.number(frames[k])


@njit
def widened(frames: Halves, out: Singles) -> None:
    """out [m d] = the float16 numbers of these bits; rows lie end to end."""
    _widen(frames.reshape(-1), out.reshape(-1))


@njit_reordered
def _center_run(frame: Frames, mean: Frames, scale: Real, out: Singles) -> np.float32:
    """out = (frame − mean)·scale rounded to float32; returns its squared norm, in float32."""
    total = np.float32(0)
    for k in range(frame.shape[0]):
        value = np.float32((frame[k] - mean[k]) * scale)
        out[k] = value
        total += value * value
    return total


@njit
def _center_row(frame: Frames, mean: Frames, scale: Real, out: Singles) -> float:
    """As `_center_run`; the norm in runs of RUN, so that it errs by less than RUN·u."""
    total = 0.0
    for k in range(0, frame.shape[0], RUN):
        run = slice(k, k + RUN)
        total += np.float64(_center_run(frame[run], mean[run], scale, out[run]))
    return total


@njit
def center(frames: Frames, mean: Frames, scale: Real, out: Singles, squares: Floats) -> None:
    """out [m d] = (frames − mean)·scale rounded to float32; squares [m] its squared norms.

    Frames, mean and scale are all float32 or all float64: the difference is rounded once.
    """
    for i in range(frames.shape[0]):
        squares[i] = _center_row(frames[i], mean, scale, out[i])


@njit
def _spread(numbers: Whole, worth: np.float32, out: Singles) -> None:
    for k in range(out.shape[0]):
        out[k] = np.float32(numbers[k]) * worth


@njit
def root(half: bool, row: Singles) -> None:
    """Squared distances to costs, in place; what is below 0 costs 0."""
    zero = np.float32(0)
    if half:
        for m in range(row.shape[0]):
            row[m] = np.float32(0.5) * max(row[m], zero)
    else:
        for m in range(row.shape[0]):
            row[m] = np.sqrt(max(row[m], zero))


@njit
def add_least(row: Singles, one: Singles, two: Singles, out: Singles) -> None:
    """out = row + the smaller predecessor, all [m]."""
    for m in range(row.shape[0]):
        out[m] = row[m] + min(one[m], two[m])


@njit
def _add_least_of_three(
    row: Singles, one: Singles, two: Singles, three: Singles, out: Singles
) -> None:
    """out = row + the smallest predecessor, all [m]."""
    for m in range(row.shape[0]):
        out[m] = row[m] + min(min(one[m], two[m]), three[m])


@njit
def _add_least_and_left(row: Singles, one: Singles, two: Singles, out: Singles) -> None:
    """out = row + the smallest predecessor, of which one is out's own left neighbour."""
    left = np.float32(np.inf)
    for m in range(row.shape[0]):
        left = row[m] + min(min(one[m], two[m]), left)
        out[m] = left


@njit
def accumulate(n: int, code: int, lo: int, hi: int, row: Singles, D: Singles) -> None:
    """D of columns lo..hi−1 of row n from their costs, in a ring of three rows as in `align`."""
    now, one, two = D[n % 3], D[(n + 2) % 3], D[(n + 1) % 3]
    out, above = now[lo + 2 : hi + 2], one[lo + 2 : hi + 2]
    one_back, two_back = one[lo + 1 : hi + 1], one[lo:hi]
    if lo > 0:
        now[lo + 1] = np.float32(np.inf)
    if n == 0:
        out[:] = row
    elif code == 0:
        add_least(row, one_back, two_back, out)
    elif code == 1:
        _add_least_of_three(row, one_back, two_back, two[lo + 1 : hi + 1], out)
    else:
        _add_least_and_left(row, above, one_back, out)


@njit
def least(D: Singles, N: int, M: int, code: int) -> np.float32:
    """The least D of the last row."""
    best = np.float32(np.inf)
    for m in range(N - 1 if code == 0 else 0, M):
        best = min(best, D[(N - 1) % 3, m + 2])
    return best


@njit
def longest_of(offsets: Ints) -> int:
    """Length of the longest trajectory."""
    longest = 0
    for i in range(offsets.shape[0] - 1):
        longest = max(longest, offsets[i + 1] - offsets[i])
    return longest


@njit
def _squares(alpha: np.float32, beta: Singles, product: Singles, out: Singles) -> None:
    for m in range(out.shape[0]):
        out[m] = (alpha + beta[m]) + product[m]


@njit
def _strap_row(
    alpha: np.float32, beta: Singles, product: Singles, one: Singles, two: Singles, out: Singles
) -> None:
    """`_squares`, `root` (of l2) and `add_least` in one pass: the row most searches spend on."""
    zero = np.float32(0)
    for m in range(out.shape[0]):
        square = (alpha + beta[m]) + product[m]
        out[m] = np.sqrt(max(square, zero)) + min(one[m], two[m])


@njit
def _strap_row_off(
    alpha: np.float32,
    beta: Singles,
    product: Singles,
    off: Singles,
    one: Singles,
    two: Singles,
    out: Singles,
) -> None:
    """As `_strap_row`, with something taken off from every cell."""
    zero = np.float32(0)
    for m in range(out.shape[0]):
        square = (alpha + beta[m]) + product[m]
        cost = max(np.sqrt(max(square, zero)) - off[m], zero)
        out[m] = cost + min(one[m], two[m])


@njit
def _take_off(row: Singles, off: Singles) -> None:
    zero = np.float32(0)
    for m in range(off.shape[0]):
        row[m] = max(row[m] - off[m], zero)


@njit
def low_costs(
    alpha: Singles,
    beta: Singles,
    products: Singles,
    off: Singles,
    offsets: Ints,
    code: int,
    half: bool,
    out: Singles,
) -> None:
    """out [t] = least D(N, m) over lower-bound cells, for one query and t trajectories.

    A cell's square is alpha [n] + beta [F] + products [n F], see `bounds`; off [F], unless it is
    empty, is taken from its cost. Trajectory i is columns offsets[i]:offsets[i + 1]. No starts are
    carried: only the winners need them.
    """
    N, longest = alpha.shape[0], longest_of(offsets)
    D = np.empty((3, longest + 2), np.float32)
    row = np.empty(longest, np.float32)
    for i in range(out.shape[0]):
        first = offsets[i]
        M = offsets[i + 1] - first
        D[:] = np.inf
        for n in range(N):
            lo, hi = (n, M - N + n + 1) if code == 0 else (0, M)
            if lo >= hi:
                break
            here = slice(first + lo, first + hi)
            if code == 0 and n > 0 and not half:
                now, one = D[n % 3], D[(n + 2) % 3]
                now[lo + 1] = np.float32(np.inf)
                back, further = one[lo + 1 : hi + 1], one[lo:hi]
                out_row = now[lo + 2 : hi + 2]
                own = products[n, here]
                if off.shape[0] > 0:
                    _strap_row_off(alpha[n], beta[here], own, off[here], back, further, out_row)
                else:
                    _strap_row(alpha[n], beta[here], own, back, further, out_row)
                continue
            _squares(alpha[n], beta[here], products[n, here], row[: hi - lo])
            root(half, row[: hi - lo])
            _take_off(row, off[here])
            accumulate(n, code, lo, hi, row[: hi - lo], D)
        out[i] = least(D, N, M, code)


class Rows(NamedTuple):
    """All queries' frames as `bounds` prepares them, for compiled loops."""

    frames: Singles
    """[R d] scaled, times −2; not moved"""
    borders: Ints
    """[q + 1]"""
    alpha: Singles
    """[R]"""
    scale: np.float32
    shrink: float
    reach: float
    """the largest norm of frames, before −2"""


@njit
def _wanted_of_one(
    rows: Rows,
    wanted: NDArray[np.bool_],
    numbers: Whole,
    scales: Singles,
    code: int,
    room: Singles,
    out: Singles,
) -> None:
    """out [q] = `low_costs` of one trajectory's sketches [m r] for the wanted queries [q]."""
    M, Q = numbers.shape[0], wanted.shape[0]
    values, left = room[: numbers.size].reshape(numbers.shape), room[numbers.size :]
    beta, off = np.empty(M, np.float32), np.empty(M, np.float32)
    for m in range(M):
        _spread(numbers[m], scales[m, 0] * rows.scale, values[m])
        square = scales[m, 2] * np.float64(rows.scale) ** 2
        if not square <= LARGEST_SQUARE:
            return
        beta[m] = np.float32(rows.shrink * square * (1 - 2.0**-23))
        norms = np.sqrt(square) + rows.reach
        off[m] = np.float32((scales[m, 1] * rows.scale + norms * 2.0**-21) * (1 + 2.0**-20))
    ends = np.array([0, M])
    q = 0
    while q < Q:
        first = q
        while q < Q and wanted[q]:
            q += 1
        if q == first:
            q += 1
            continue
        top, bottom = rows.borders[first], rows.borders[q]
        products = left[: (bottom - top) * M].reshape((bottom - top, M))
        np.dot(rows.frames[top:bottom], values.T, products)
        for own in range(first, q):
            part = slice(rows.borders[own], rows.borders[own + 1])
            here = products[part.start - top : part.stop - top]
            low_costs(rows.alpha[part], beta, here, off, ends, code, False, out[own : own + 1])


@njit
def wanted_low_costs(
    rows: Rows,
    wanted: NDArray[np.bool_],
    numbers: Whole,
    scales: Singles,
    begins: Ints,
    ends: Ints,
    code: int,
    room: Singles,
    out: Singles,
) -> None:
    """out [t q] = `low_costs` of the wanted pairs [t q], for sketches [F r] of which a trajectory's
    are those from begins [t] to ends [t].

    A sketch is its integers times scales[:, 0], its squared norm scales[:, 2]; scales[:, 1] and
    what a root may err by are taken off from its cells. Everything in one call: threads that come
    back to Python between steps of microseconds wait for each other most of the time. What is too
    large or no number is left as it is. Squares are rounded down but for less than 2⁻¹⁵⁰. `room`
    is memory to work in: r + R numbers for each sketch of the longest trajectory.
    """
    for i in range(begins.shape[0]):
        if wanted[i].any():
            part = slice(begins[i], ends[i])
            _wanted_of_one(rows, wanted[i], numbers[part], scales[part], code, room, out[i])
