"""The compiled loops of exact alignments; those of lower bounds are in `bounding`.

Step sets come as numbers here (`CODES`); inputs are taken as valid. The innermost loops run
over whole slices from 0: only then does the compiler know that no index is negative, and
works on several columns at once.
"""

from __future__ import annotations

import numpy as np

from strap.dtw.jit import njit
from strap.dtw.types import Floats, Frames, Ints

ROWS = 16  # query frames whose costs are computed together
CODES = {"strap": 0, "fmp": 1, "classic": 2}


@njit
def _add_squares(a: Floats, c0: Floats, c1: Floats, c2: Floats, c3: Floats, out: Floats) -> None:
    """out [m] += the squared differences of a [4] and four dimensions [m] of the columns."""
    a0, a1, a2, a3 = a[0], a[1], a[2], a[3]
    for m in range(out.shape[0]):
        e0, e1, e2, e3 = a0 - c0[m], a1 - c1[m], a2 - c2[m], a3 - c3[m]
        out[m] = (((out[m] + e0 * e0) + e1 * e1) + e2 * e2) + e3 * e3


@njit
def _cost_rows(query: Floats, columns: Floats, lo: int, hi: int, half: bool, out: Floats) -> None:
    """out[i, lo:hi] = C of query frames [r d] with columns [d m], summed in order of dimension.

    A few rows at a time, so that `out` stays in the first-level cache while columns stream by.
    """
    rows, d = query.shape
    out[:rows, lo:hi] = 0.0
    whole = d - d % 4
    for k in range(0, whole, 4):  # four at a time: a quarter of the traffic to `out`
        c0, c1 = columns[k, lo:hi], columns[k + 1, lo:hi]
        c2, c3 = columns[k + 2, lo:hi], columns[k + 3, lo:hi]
        for i in range(rows):
            _add_squares(query[i, k : k + 4], c0, c1, c2, c3, out[i, lo:hi])
    for k in range(whole, d):
        for i in range(rows):
            for m in range(lo, hi):
                e = query[i, k] - columns[k, m]
                out[i, m] += e * e
    for i in range(rows):
        for m in range(lo, hi):
            out[i, m] = 0.5 * out[i, m] if half else np.sqrt(out[i, m])


@njit
def transposed(frames: Frames) -> Floats:
    """Frames [m d] as float64 columns [d m], in tiles that fit the cache."""
    M, d = frames.shape
    out = np.empty((d, M))
    for top in range(0, d, 16):
        for left in range(0, M, 16):
            for k in range(top, min(top + 16, d)):
                for m in range(left, min(left + 16, M)):
                    out[k, m] = frames[m, k]
    return out


@njit
def better(d: float, s: int, best: float, start: int) -> bool:
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
    costs = np.empty((ROWS, M))
    for n in range(N):
        # Under `strap` a column before n can't be reached, one after M − N + n can't finish.
        lo, hi = (n, M - N + n + 1) if code == 0 else (0, M)
        if lo >= hi:
            break
        if n % ROWS == 0:
            reach = M if code else min(M, hi + ROWS)
            _cost_rows(query[n : n + ROWS], columns, lo, reach, half, costs)
        row = costs[n % ROWS]
        now, one, two = n % 3, (n + 2) % 3, (n + 1) % 3
        if lo > 0:
            D[now, lo + 1] = np.inf
        for m in range(lo, hi):
            if n == 0:
                D[now, m + 2], S[now, m + 2] = row[m], m
                continue
            best, start = D[one, m + 1], S[one, m + 1]
            if code < 2:
                if better(D[one, m], S[one, m], best, start):
                    best, start = D[one, m], S[one, m]
                if code == 1 and n > 1 and better(D[two, m + 1], S[two, m + 1], best, start):
                    best, start = D[two, m + 1], S[two, m + 1]
            else:
                if better(D[one, m + 2], S[one, m + 2], best, start):
                    best, start = D[one, m + 2], S[one, m + 2]
                if better(D[now, m + 1], S[now, m + 1], best, start):
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


@njit
def all_costs(query: Floats, columns: Floats, half: bool) -> Floats:
    """C [n m] of query [n d] with a trajectory given as columns [d m]."""
    N, M = query.shape[0], columns.shape[1]
    costs = np.empty((N, M))
    for n in range(0, N, ROWS):
        _cost_rows(query[n : n + ROWS], columns, 0, M, half, costs[n : n + ROWS])
    return costs


@njit
def align_within(costs: Floats, code: int, least: int, most: int) -> tuple[float, int, int]:
    """As `align`, for costs [n m], among the paths of least..most frames: each start by itself."""
    N, M = costs.shape
    found, first, end = np.inf, 0, 0
    D = np.empty((3, min(M, most) + 2))
    for start in range(M):
        W = min(M - start, most)
        D[:] = np.inf
        for n in range(N):
            now, one, two = n % 3, (n + 2) % 3, (n + 1) % 3
            # Under `strap` each row moves on by one or two columns.
            lo, hi = (n, min(2 * n + 1, W)) if code == 0 else (0, W)
            D[now] = np.inf
            for m in range(lo, hi):
                if n == 0 and m == 0:
                    D[now, 2] = costs[0, start]
                    continue
                best = D[one, m + 1]
                if code < 2:
                    best = min(best, D[one, m])
                    if code == 1:
                        best = min(best, D[two, m + 1])
                else:
                    best = min(min(best, D[one, m + 2]), D[now, m + 1])
                D[now, m + 2] = best + costs[n, start + m]
        last = D[(N - 1) % 3]
        for m in range(least - 1, W):
            cost, stop = last[m + 2], start + m + 1
            if cost < found or (cost == found and cost < np.inf and stop <= end):
                found, first, end = cost, start, stop
    return found, first, end


@njit
def extend(costs: Floats, code: int, D: Floats, S: Ints, seen: int, best: Floats) -> None:
    """Take new columns of costs [n m] into D [n 3] and the starts S [n 3], in a ring by column.

    `seen` columns came before. best [4] = cost, start and stop of the best match so far, and the
    cost of the best that ends with the newest column.
    """
    N, M = costs.shape
    for m in range(M):
        column = seen + m
        now, one, two = column % 3, (column + 2) % 3, (column + 1) % 3
        for n in range(N):
            if n == 0:
                D[0, now], S[0, now] = costs[0, m], column
                continue
            cost, start = D[n - 1, one], S[n - 1, one]
            if code < 2:
                if better(D[n - 1, two], S[n - 1, two], cost, start):
                    cost, start = D[n - 1, two], S[n - 1, two]
                if code == 1 and n > 1 and better(D[n - 2, one], S[n - 2, one], cost, start):
                    cost, start = D[n - 2, one], S[n - 2, one]
            else:
                if better(D[n - 1, now], S[n - 1, now], cost, start):
                    cost, start = D[n - 1, now], S[n - 1, now]
                if better(D[n, one], S[n, one], cost, start):
                    cost, start = D[n, one], S[n, one]
            D[n, now], S[n, now] = cost + costs[n, m], start
        best[3] = D[N - 1, now]
        if best[3] < best[0]:
            best[0], best[1], best[2] = best[3], S[N - 1, now], column + 1
