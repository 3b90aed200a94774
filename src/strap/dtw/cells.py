"""The compiled loops of exact alignments within a corridor, see `corridor`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strap.dtw import bits, bounding, halving, kernels, ordered, sweeps
from strap.dtw.bounds import U
from strap.dtw.jit import njit
from strap.dtw.types import Floats, Frames, Ints, Singles

SLACK = 1e-9


@njit
def _decide(
    query: Floats,
    frames: NDArray[Any],
    low: Floats,
    beat: float,
    code: int,
    half: bool,
    out: Floats,
) -> None:
    """out [3] = cost, start and stop; ∞ and −2 where a bound is above what is to be beaten, −1
    where no path fits.
    """
    F = _forward(low, code)
    least = F[-1].min()
    out[0], out[1], out[2] = np.inf, -2, 0
    if least == np.inf:
        out[1] = -1
    elif least * (1 - SLACK) <= beat:
        most = beat * (1 + SLACK)
        out[0], out[1], out[2] = _align(query, frames, low, F, most, code, half)


@njit
def looks(
    queries: Floats,
    borders: Ints,
    rows: Singles,
    alpha: Singles,
    scale: float,
    values: Frames,
    moved: Singles,
    beta: Singles,
    asking: Ints,
    beat: Floats,
    code: int,
    half: bool,
    out: Floats,
) -> None:
    """out [a 3] = cost, start and stop for each of the asking queries; ∞ and −2 where a bound is
    above what is to be beaten, first one from float32 sums, then one from float64.

    In one call, and so without coming back to Python, where threads would wait for each other.
    """
    M = values.shape[0]
    ends, first = np.array([0, M]), np.empty(1, np.float32)
    for i in range(asking.shape[0]):
        part = slice(borders[asking[i]], borders[asking[i] + 1])
        N = part.stop - part.start
        products = np.empty((N, M), np.float32)
        np.dot(rows[part], moved.T, products)
        bounding.low_costs(alpha[part], beta, products, beta[:0], ends, code, half, first)
        shrink = 1 - (N + (M if code == 2 else 0) + 8) * U
        if first[0] < np.inf and first[0] * shrink / (scale * scale if half else scale) > beat[i]:
            out[i, 0], out[i, 1], out[i, 2] = np.inf, -2, 0
            continue
        low = costs(alpha[part], beta, products, scale, half)
        _decide(queries[part], values, low, beat[i], code, half, out[i])


@njit
def looks_by_integers(
    rows: halving.Rows,
    queries: Floats,
    borders: Ints,
    frames: NDArray[Any],
    mean: Frames,
    scale: bounding.Real,
    asking: Ints,
    beat: Floats,
    code: int,
    room: halving.Room,
    products: Singles,
    out: Floats,
) -> bool:
    """As `looks`, for metric l2, with lower bounds from products of integers; each query is a group
    of its own. Frames are as they lie in memory. False where they are too large, or no numbers.

    `products` is memory for those of every asking query with all frames, filled up to whole 64.
    """
    M = frames.shape[0]
    height = products.shape[0] // asking.shape[0]
    beta, worth, more = np.empty((3, M), np.float32)
    state = np.full((3, rows.alpha.shape[0]), np.float32(np.inf))
    for first in range(0, M, halving.FRAMES):
        count = halving.take(rows, frames, mean, scale, first, room)
        if count == 0:
            return False
        beta[first : first + count] = room.beta[:count]
        worth[first : first + count] = room.factor[:count]
        more[first : first + count] = room.slack[:count]
        for i in range(asking.shape[0]):
            here = i * height + first
            own = products[here : here + halving.FRAMES]
            sweeps.multiply(rows, asking[i], count, room, own)
            if code == 0:
                sweeps.walk(rows, asking[i], count, room, own, state)
    for i in range(asking.shape[0]):
        q = asking[i]
        N = borders[q + 1] - borders[q]
        if code == 0:
            least = state[2, rows.ends[q] - 1] * (1 - (N + 8) * U) / rows.scale
            if least > beat[i]:
                out[i, 0], out[i, 1], out[i, 2] = np.inf, -1 if least == np.inf else -2, 0
                continue
        begin = rows.blocks[q] * halving.ROWS
        part, own = slice(begin, begin + N), products[i * height : i * height + M]
        sweeps.whole_costs(
            rows.alpha[part], rows.factor[part], rows.slack[part], beta, worth, more, own
        )
        low = _turned(own, N, (1 - 2.0**-20) / rows.scale)
        _decide(queries[borders[q] : borders[q + 1]], frames, low, beat[i], code, False, out[i])
    return True


@njit
def _turned(cells: Singles, N: int, shrink: float) -> Floats:
    """The first n of each frame's cells [m …], as [n m], a little lower."""
    M = cells.shape[0]
    low = np.empty((N, M))
    for m in range(M):
        for n in range(N):
            low[n, m] = cells[m, n] * shrink
    return low


@njit
def costs(alpha: Singles, beta: Singles, products: Singles, scale: float, half: bool) -> Floats:
    """Lower bounds [n m] of the costs; a cell's square is alpha [n] + beta [m] + its product."""
    N, M = products.shape
    out = np.empty((N, M))
    shrink = (1 - 1e-12) / scale
    for n in range(N):
        for m in range(M):
            square = max(np.float64((alpha[n] + beta[m]) + products[n, m]), 0.0)
            out[n, m] = 0.5 * square * shrink * shrink if half else np.sqrt(square) * shrink
    return out


@njit
def _fill_exact(query: Floats, frames: NDArray[Any], cells: Ints, half: bool, C: Floats) -> None:
    """C [n m] of these cells [c 2], each summed in order of dimension, eight at a time."""
    count, d = cells.shape[0], query.shape[1]
    lies_in_rows = frames.strides[1] == frames.itemsize and query.strides[1] == query.itemsize
    blocks = np.intp(d // ordered.SIDE if lies_in_rows else 0)
    ours, theirs = np.empty(ordered.SIDE, np.intp), np.empty(ordered.SIDE, np.intp)
    sums = np.empty(ordered.SIDE)
    for first in range(0, count, ordered.SIDE):
        some = min(ordered.SIDE, count - first)
        for i in range(ordered.SIDE):
            n, m = cells[first + min(i, some - 1)]
            ours[i] = np.intp(query.ctypes.data) + n * query.strides[0]
            theirs[i] = np.intp(frames.ctypes.data) + m * frames.strides[0]
            sums[i] = 0
        ordered.add_squares(
            np.intp(ours.ctypes.data),
            np.intp(theirs.ctypes.data),
            blocks,
            np.intp(sums.ctypes.data),
            frames[0, 0],
        )
        for i in range(some):
            n, m = cells[first + i]
            total = sums[i]
            for k in range(blocks * ordered.SIDE, d):
                e = query[n, k] - bits.number(frames[m, k])
                total += e * e
            C[n, m] = 0.5 * total if half else np.sqrt(total)


@njit
def _before(D: Floats, n: int, m: int, code: int) -> tuple[float, int, int]:
    """The cheapest predecessor of a cell: what it costs, and where it is."""
    best, i, j = np.inf, n, m
    if n > 0 and m > 0:
        best, i, j = D[n - 1, m - 1], n - 1, m - 1
    if code < 2:
        if n > 0 and m > 1 and D[n - 1, m - 2] < best:
            best, i, j = D[n - 1, m - 2], n - 1, m - 2
        if code == 1 and n > 1 and m > 0 and D[n - 2, m - 1] < best:
            best, i, j = D[n - 2, m - 1], n - 2, m - 1
    else:
        if n > 0 and D[n - 1, m] < best:
            best, i, j = D[n - 1, m], n - 1, m
        if m > 0 and D[n, m - 1] < best:
            best, i, j = D[n, m - 1], n, m - 1
    return best, i, j


@njit
def _forward(low: Floats, code: int) -> Floats:
    """F [n m]."""
    N, M = low.shape
    F = np.full((N, M), np.inf)
    F[0] = low[0]
    for n in range(1, N):
        if code == 0:
            for m in range(n, min(M, M - N + n + 1)):
                best = F[n - 1, m - 1]
                if m > 1:
                    best = min(best, F[n - 1, m - 2])
                F[n, m] = low[n, m] + best
        else:
            for m in range(M):
                F[n, m] = low[n, m] + _before(F, n, m, code)[0]
    return F


@njit
def _backward(low: Floats, code: int) -> Floats:
    """B [n m]."""
    N, M = low.shape
    B = np.full((N, M), np.inf)
    B[N - 1] = low[N - 1]
    if code == 0:
        for n in range(N - 2, -1, -1):
            for m in range(n, min(M, M - N + n + 1)):
                best = B[n + 1, m + 1]
                if m + 2 < M:
                    best = min(best, B[n + 1, m + 2])
                B[n, m] = low[n, m] + best
        return B
    for n in range(N - 1, -1, -1):
        for m in range(M - 1, -1, -1):
            best = B[n, m] - low[n, m] if n == N - 1 else np.inf
            if n + 1 < N and m + 1 < M:
                best = min(best, B[n + 1, m + 1])
            if code == 1:
                if n + 1 < N and m + 2 < M:
                    best = min(best, B[n + 1, m + 2])
                if n + 2 < N and m + 1 < M:
                    best = min(best, B[n + 2, m + 1])
            else:
                if n + 1 < N:
                    best = min(best, B[n + 1, m])
                if n > 0 and m + 1 < M:
                    best = min(best, B[n, m + 1])
            B[n, m] = low[n, m] + best
    return B


@njit
def _path(F: Floats, code: int) -> Ints:
    """The cells [c 2] of the path that is best under F, from its end to its start."""
    n = F.shape[0] - 1
    m = int(np.argmin(F[n]))
    cells = np.empty((F.shape[0] + F.shape[1], 2), np.int64)
    count = 0
    while n >= 0:
        cells[count, 0], cells[count, 1] = n, m
        count += 1
        if n == 0:
            break
        _, n, m = _before(F, n, m, code)
    return cells[:count]


@njit
def _corridor(F: Floats, low: Floats, C: Floats, limit: float, code: int) -> Ints:
    """The cells [c 2] that may lie on a path of at most this cost and have no cost C yet."""
    N, M = low.shape
    B = _backward(low, code)
    cells = np.empty((N * M, 2), np.int64)
    count = 0
    for n in range(N):
        for m in range(M):
            if F[n, m] + B[n, m] - low[n, m] <= limit and F[n, m] < np.inf:
                if C[n, m] == np.inf:
                    cells[count, 0], cells[count, 1] = n, m
                    count += 1
            else:
                C[n, m] = np.inf
    return cells[:count]


@njit
def _align(
    query: Floats,
    frames: NDArray[Any],
    low: Floats,
    F: Floats,
    beat: float,
    code: int,
    half: bool,
) -> tuple[float, int, int]:
    """As `kernels.align`, for frames [m d] and lower bounds [n m] of their costs.

    Where the best match costs more than `beat`, what is returned does too.
    """
    N, M = low.shape
    C = np.full((N, M), np.inf)
    cells = _path(F, code)
    _fill_exact(query, frames, cells, half, C)
    total = 0.0
    for i in range(cells.shape[0]):
        total += C[cells[i, 0], cells[i, 1]]
    limit = min(total * (1 + SLACK), beat)
    _fill_exact(query, frames, _corridor(F, low, C, limit, code), half, C)
    D = np.full((N, M), np.inf)
    S = np.zeros((N, M), np.int64)
    for n in range(N):
        for m in range(M):
            if C[n, m] == np.inf:
                continue
            if n == 0:
                D[0, m], S[0, m] = C[0, m], m
                continue
            best, start = np.inf, -1
            if m > 0:
                best, start = D[n - 1, m - 1], S[n - 1, m - 1]
            if code < 2:
                if m > 1 and kernels.better(D[n - 1, m - 2], S[n - 1, m - 2], best, start):
                    best, start = D[n - 1, m - 2], S[n - 1, m - 2]
                skips = code == 1 and n > 1 and m > 0
                if skips and kernels.better(D[n - 2, m - 1], S[n - 2, m - 1], best, start):
                    best, start = D[n - 2, m - 1], S[n - 2, m - 1]
            else:
                if kernels.better(D[n - 1, m], S[n - 1, m], best, start):
                    best, start = D[n - 1, m], S[n - 1, m]
                if m > 0 and kernels.better(D[n, m - 1], S[n, m - 1], best, start):
                    best, start = D[n, m - 1], S[n, m - 1]
            if best < np.inf:
                D[n, m], S[n, m] = best + C[n, m], start
    end = int(np.argmin(D[N - 1]))
    return D[N - 1, end], S[N - 1, end], end + 1
