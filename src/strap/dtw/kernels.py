"""The compiled loops: one exact alignment, and the lower bounds of many.

Step sets come as numbers here (`CODES`); inputs are taken as valid.
"""

from __future__ import annotations

import numpy as np

from strap.dtw.jit import njit, njit_reordered
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
def center(frames: Frames, mean: Floats, scale: float, out: Singles, squares: Floats) -> None:
    """out [m d] = (frames − mean)·scale rounded to float32; squares [m] its squared norms."""
    for i in range(frames.shape[0]):
        total = 0.0
        for k in range(frames.shape[1]):
            value = np.float32((np.float64(frames[i, k]) - mean[k]) * scale)
            out[i, k] = value
            total += np.float64(value) * np.float64(value)
        squares[i] = total


@njit
def _low_row(
    alpha: np.float32, beta: Singles, product: Singles, lo: int, hi: int, half: bool, row: Singles
) -> None:
    """row[lo:hi] = lower bounds of C, from norms and the product −2·a·b of one query frame."""
    zero = np.float32(0)
    if half:
        for m in range(lo, hi):
            square = (alpha + beta[m]) + product[m]
            row[m] = np.float32(0.5) * max(square, zero)
    else:
        for m in range(lo, hi):
            square = (alpha + beta[m]) + product[m]
            row[m] = np.sqrt(max(square, zero))


@njit
def _accumulate(
    n: int, code: int, lo: int, hi: int, row: Singles, one: Singles, two: Singles, now: Singles
) -> None:
    """D of row n from the two rows before it; columns shifted by 2 as in `align`."""
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

    alpha [n], beta [F] and products [n F] as in `bounds`; trajectory i is columns
    offsets[i]:offsets[i + 1]. No starts are carried: they are found for the winners alone.
    """
    N = alpha.shape[0]
    longest = 0
    for i in range(out.shape[0]):
        longest = max(longest, offsets[i + 1] - offsets[i])
    infinity = np.float32(np.inf)
    D = np.empty((3, longest + 2), np.float32)
    row = np.empty(longest, np.float32)
    for i in range(out.shape[0]):
        first = offsets[i]
        M = offsets[i + 1] - first
        out[i] = infinity
        if code == 0 and N > M:
            continue
        D[:, :2] = infinity
        D[1:, : M + 2] = infinity  # rows −1 and −2
        for n in range(N):
            lo, hi = (n, M - N + n + 1) if code == 0 else (0, M)
            cells = slice(first, first + M)
            _low_row(alpha[n], beta[cells], products[n, cells], lo, hi, half, row)
            now, one, two = n % 3, (n + 2) % 3, (n + 1) % 3
            if lo > 0:
                D[now, lo + 1] = infinity
            _accumulate(n, code, lo, hi, row, D[one], D[two], D[now])
        best = infinity
        last = D[(N - 1) % 3]
        for m in range(N - 1 if code == 0 else 0, M):
            best = min(best, last[m + 2])
        out[i] = best
