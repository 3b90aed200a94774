"""The compiled loops: one exact alignment, and the lower bounds of many.

Step sets come as numbers here (`CODES`); inputs are taken as valid.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from strap.dtw.jit import njit, njit_finite, njit_reordered
from strap.dtw.types import Floats, Frames, Ints, Singles

CODES = {"strap": 0, "fmp": 1, "classic": 2}


@njit
def _cost_row(frame: Floats, columns: Floats, lo: int, hi: int, half: bool, row: Floats) -> None:
    """row[lo:hi] = C of one query frame [d] with columns [d m], summed in order of dimension."""
    d = frame.shape[0]
    for m in range(lo, hi):
        row[m] = 0.0
    whole = d - d % 4
    for k in range(0, whole, 4):  # four at a time: a quarter of the traffic to `row`
        a0, a1, a2, a3 = frame[k], frame[k + 1], frame[k + 2], frame[k + 3]
        for m in range(lo, hi):
            e0 = a0 - columns[k, m]
            e1 = a1 - columns[k + 1, m]
            e2 = a2 - columns[k + 2, m]
            e3 = a3 - columns[k + 3, m]
            row[m] = (((row[m] + e0 * e0) + e1 * e1) + e2 * e2) + e3 * e3
    for k in range(whole, d):
        for m in range(lo, hi):
            e = frame[k] - columns[k, m]
            row[m] += e * e
    for m in range(lo, hi):
        row[m] = 0.5 * row[m] if half else np.sqrt(row[m])


@njit
def _better(d: float, s: int, best: float, start: int) -> bool:
    """Cheaper, or equally cheap with the larger start."""
    return d < best or (d == best and s > start)


@njit
def align(query: Floats, columns: Floats, code: int, half: bool) -> tuple[float, int, int]:
    """The best match of query [n d] in a trajectory given as columns [d m]: cost, start, stop.

    The cost is inf when no path fits. Three rows of D and of the starts are kept, in a ring,
    each with two columns of ∞ in front, so that m − 2 needs no test:

        column    ∞   ∞   0   1   2 …
        index     0   1   2   3   4 …
    """
    N, M = query.shape[0], columns.shape[1]
    D = np.full((3, M + 2), np.inf)
    S = np.zeros((3, M + 2), np.int64)
    row = np.empty(M)
    for n in range(N):
        # Under `strap` a column before n can't be reached, one after M − N + n can't finish.
        lo, hi = (n, M - N + n + 1) if code == 0 else (0, M)
        if lo >= hi:
            break
        _cost_row(query[n], columns, lo, hi, half, row)
        now, one, two = n % 3, (n + 2) % 3, (n + 1) % 3
        if lo > 0:
            D[now, lo + 1] = np.inf
        for m in range(lo, hi):
            if n == 0:
                D[now, m + 2], S[now, m + 2] = row[m], m
                continue
            best, start = D[one, m + 1], S[one, m + 1]
            if code < 2:
                if _better(D[one, m], S[one, m], best, start):
                    best, start = D[one, m], S[one, m]
                if code == 1 and n > 1 and _better(D[two, m + 1], S[two, m + 1], best, start):
                    best, start = D[two, m + 1], S[two, m + 1]
            else:
                if _better(D[one, m + 2], S[one, m + 2], best, start):
                    best, start = D[one, m + 2], S[one, m + 2]
                if _better(D[now, m + 1], S[now, m + 1], best, start):
                    best, start = D[now, m + 1], S[now, m + 1]
            D[now, m + 2], S[now, m + 2] = best + row[m], start
    if code == 0 and N > M:
        return np.inf, 0, 0
    last = (N - 1) % 3
    end = N - 1 if code == 0 else 0
    for m in range(end + 1, M):
        if D[last, m + 2] < D[last, end + 2]:
            end = m
    return D[last, end + 2], S[last, end + 2], end + 1


@njit_reordered
def _center_row(frame: Frames, mean: Floats, scale: float, out: Singles) -> float:
    """out [d] = (frame − mean)·scale rounded to float32; returns its squared norm."""
    total = 0.0
    for k in range(frame.shape[0]):
        value = np.float32((np.float64(frame[k]) - mean[k]) * scale)
        out[k] = value
        total += np.float64(value) * np.float64(value)
    return total


@njit
def center(frames: Frames, mean: Floats, scale: float, out: Singles, squares: Floats) -> None:
    """out [m d] = (frames − mean)·scale rounded to float32; squares [m] its squared norms."""
    for i in range(frames.shape[0]):
        squares[i] = _center_row(frames[i], mean, scale, out[i])


@njit_finite
def _largest(values: Singles) -> np.float32:
    """The largest magnitude of finite values [d]."""
    largest = np.float32(0)
    for k in range(values.shape[0]):
        largest = max(largest, abs(values[k]))
    return largest


@njit_reordered
def _round_row(
    row: Singles, step: np.float32, seed: np.uint32, out: NDArray[np.int8]
) -> np.float32:
    """out [d] = ⌊row/step + r⌋, r uniform in [0, 1 − 2⁻¹⁶); returns the squared error.

    r is a hash of seed + k: as good as random, the same in every run. A plain counter goes in,
    so that no two numbers share one.
    """
    inverse = np.float32(1) / step
    spacing = np.float32(2.0**-24 * (1 - 2.0**-15))
    total = np.float32(0)
    for k in range(row.shape[0]):
        h = np.uint32(seed + np.uint32(k))
        h = np.uint32((h ^ (h >> np.uint32(16))) * np.uint32(0x7FEB352D))
        h = np.uint32((h ^ (h >> np.uint32(15))) * np.uint32(0x846CA68B))
        h = np.uint32(h ^ (h >> np.uint32(16)))
        r = np.float32(np.int32(h >> np.uint32(8))) * spacing
        number = np.floor(row[k] * inverse + r)
        out[k] = np.int8(np.int32(number))
        error = number * step - row[k]
        total += error * error
    return total


@njit
def round_at_random(
    frames: Frames,
    mean: Floats,
    scale: float,
    seed: np.uint32,
    row: Singles,
    out: NDArray[np.int8],
    sides: Floats,
) -> None:
    """Frames [m d], moved and scaled, to whole numbers out [m depth], see `randomised`.

    sides [3 m]: squared norm, step and squared error of each frame.
    """
    d = frames.shape[1]
    for i in range(frames.shape[0]):
        sides[0, i] = _center_row(frames[i], mean, scale, row)
        sides[1, i], sides[2, i] = 0.0, 0.0
        out[i] = 0
        square = sides[0, i]
        if not (0.0 < square <= 1e30):
            continue
        step = _largest(row) / np.float32(126)
        if step < np.float32(1e-30):  # beside queries of about 1: within the slack as it is
            continue
        key = np.uint32(seed + np.uint32(i * d))
        sides[1, i] = step
        sides[2, i] = 1.0001 * np.float64(_round_row(row, step, key, out[i, :d]))


@njit
def _root(half: bool, lo: int, hi: int, row: Singles) -> None:
    """Squared distances to costs, in place; what is below 0 costs 0."""
    zero = np.float32(0)
    if half:
        for m in range(lo, hi):
            row[m] = np.float32(0.5) * max(row[m], zero)
    else:
        for m in range(lo, hi):
            row[m] = np.sqrt(max(row[m], zero))


@njit
def _accumulate(n: int, code: int, lo: int, hi: int, row: Singles, D: Singles) -> None:
    """D of row n, in a ring of three rows with columns shifted by 2, as in `align`."""
    now, one, two = D[n % 3], D[(n + 2) % 3], D[(n + 1) % 3]
    if lo > 0:
        now[lo + 1] = np.float32(np.inf)
    if n == 0:
        for m in range(lo, hi):
            now[m + 2] = row[m]
    elif code == 0:
        for m in range(lo, hi):
            now[m + 2] = row[m] + min(one[m + 1], one[m])
    elif code == 1:
        for m in range(lo, hi):
            now[m + 2] = row[m] + min(min(one[m + 1], one[m]), two[m + 1])
    else:
        left = np.float32(np.inf)
        for m in range(lo, hi):
            left = row[m] + min(min(one[m + 2], one[m + 1]), left)
            now[m + 2] = left


@njit
def _least(D: Singles, N: int, M: int, code: int) -> np.float32:
    """The least D of the last row."""
    best = np.float32(np.inf)
    for m in range(N - 1 if code == 0 else 0, M):
        best = min(best, D[(N - 1) % 3, m + 2])
    return best


@njit
def _longest(offsets: Ints) -> int:
    longest = 0
    for i in range(offsets.shape[0] - 1):
        longest = max(longest, offsets[i + 1] - offsets[i])
    return longest


@njit
def low_costs(
    alpha: Singles,
    beta: Singles,
    products: Singles,
    offsets: Ints,
    code: int,
    half: bool,
    out: Singles,
) -> None:
    """out [t] = least D(N, m) over lower-bound cells, for one query and t trajectories.

    A cell's square is alpha [n] + beta [F] + products [n F], see `bounds`; trajectory i is
    columns offsets[i]:offsets[i + 1]. No starts are carried: only the winners need them.
    """
    N, longest = alpha.shape[0], _longest(offsets)
    D = np.empty((3, longest + 2), np.float32)
    row = np.empty(longest, np.float32)
    for i in range(out.shape[0]):
        first = offsets[i]
        M = offsets[i + 1] - first
        D[:] = np.inf
        for n in range(N):
            lo, hi = (n, M - N + n + 1) if code == 0 else (0, M)
            for m in range(lo, hi):
                row[m] = (alpha[n] + beta[first + m]) + products[n, first + m]
            _root(half, lo, hi, row)
            if lo < hi:
                _accumulate(n, code, lo, hi, row, D)
        out[i] = _least(D, N, M, code)


@njit
def low_costs_rounded(
    alpha: Singles,
    step: Singles,
    sides: Singles,
    products: NDArray[np.int32],
    offsets: Ints,
    code: int,
    half: bool,
    out: Singles,
) -> None:
    """As `low_costs`, for products [n F] of whole numbers, see `randomised`.

    alpha [n], step [n] belong to query frames; sides [4 F] to trajectory frames: beta, step,
    the square below which a cell falls back on the certain error, and that error.
    """
    N, longest = alpha.shape[0], _longest(offsets)
    D = np.empty((3, longest + 2), np.float32)
    row = np.empty(longest, np.float32)
    beta, unit, near, error = sides[0], sides[1], sides[2], sides[3]
    zero = np.float32(0)
    for i in range(out.shape[0]):
        first = offsets[i]
        M = offsets[i + 1] - first
        D[:] = np.inf
        for n in range(N):
            lo, hi = (n, M - N + n + 1) if code == 0 else (0, M)
            for m in range(lo, hi):
                f = first + m
                square = (alpha[n] + beta[f]) - (step[n] * unit[f]) * np.float32(products[n, f])
                row[m] = square - (error[f] if square < near[f] else zero)
            _root(half, lo, hi, row)
            if lo < hi:
                _accumulate(n, code, lo, hi, row, D)
        out[i] = _least(D, N, M, code)
