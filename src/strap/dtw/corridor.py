"""One exact alignment at the price of a float32 product: only cells that may matter are exact.

With low(n, m) ≤ C(n, m) for every cell (from the float32 product, as in `bounds`), let F(n, m) be
the cheapest way to the cell under `low` and B(n, m) the cheapest way on from it, the cell counted
in both. Every path through the cell costs at least F + B − low. The exact cost U of one path, the
best one under `low`, is at least the optimum. So a cell with F + B − low > U lies on no optimal
path. Nor does one with F + B − low above a cost that is to be beaten.

What is left is a corridor a few cells wide, and the recurrence over it, with exact costs, gives the
same cost, start and stop as over all cells, to the last bit: cells on optimal paths keep all their
optimal predecessors, and a cell that is left out can only have made others cheaper than they are
allowed to be. U is raised by 1e−9 of itself, far more than float64 rounds in these sums, so that
whatever rounding makes equal is left in.

    . . . . . . . . . .        .  low alone
    . . x x . . . . . .        x  exact
    . . . x x . . . . .
    . . . . . x . . . .
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from strap.dtw import kernels
from strap.dtw.bounding import low_costs
from strap.dtw.bounds import Moved, U
from strap.dtw.jit import njit
from strap.dtw.pieces import Buffers, as_values
from strap.dtw.types import Alignment, Floats, Frames, Ints, Singles

SLACK = 1e-9
SMALL = 24  # dimensions: below, every cell's exact cost is cheaper than its bound


@dataclass(frozen=True, eq=False)
class Ready:
    """A trajectory, prepared once and aligned with any of the queries, on the same thread and
    before another is prepared there: its arrays are used again.
    """

    values: Frames  # [m d] as compiled loops read them
    moved: Singles | None  # [m d], None where no bounds are to be had
    beta: Singles | None  # [m]


class Corridor:
    """Queries, prepared once and aligned exactly with many trajectories."""

    def __init__(self, queries: Sequence[Floats], steps: str, metric: str) -> None:
        """Queries are as the exact pass wants them: float64, divided by their norms for cosine."""
        self.queries, self.code, self.metric = queries, kernels.CODES[steps], metric
        self.half = metric == "cosine"
        # Norms are divided out already: from here on numbers are taken as they are.
        self._moved = Moved(queries, "l2") if queries[0].shape[1] >= SMALL else None
        self._buffers = Buffers()

    def ready(self, trajectory: Frames, doubt: Callable[[], object] | None = None) -> Ready:
        """Prepare a trajectory [m d]; `doubt` is called where its numbers are not ordinary ones."""
        with np.errstate(invalid="ignore"):  # 0/0 under cosine: for `doubt` to report
            values = as_values(trajectory, self.metric, self._buffers)
        if self._moved is not None and self._moved.usable:
            moved = self._buffers.get("moved", np.float32, *values.shape)
            squares = np.empty(len(values))
            if self._moved.take(values, moved, squares):
                return Ready(values, moved, self._moved.beta(squares))
        if doubt is not None:
            doubt()
        return Ready(values, None, None)

    def look(self, asking: Sequence[int], ready: Ready, beat: Sequence[float]) -> list[Look]:
        """Queries of these numbers at a trajectory, each with a cost that is to be beaten."""
        if ready.moved is None or ready.beta is None or self._moved is None:
            return [self._all_cells(q, ready, own) for q, own in zip(asking, beat, strict=True)]
        stacked = self._moved.stacked
        found = np.empty((len(asking), 3))
        _looks(
            stacked.frames,
            stacked.borders,
            self._moved.rows,
            self._moved.alpha,
            stacked.scale,
            ready.values,
            ready.moved,
            ready.beta,
            np.asarray(asking, np.int64),
            np.asarray(beat, np.float64),
            self.code,
            self.half,
            found,
        )
        return [
            Look(start >= -1, _match(cost, int(start), int(stop), own))
            for (cost, start, stop), own in zip(found.tolist(), beat, strict=True)
        ]

    def _all_cells(self, q: int, ready: Ready, beat: float) -> Look:
        columns = kernels.transposed(ready.values)
        found = kernels.align(self.queries[q], columns, self.code, self.half)
        return Look(True, _match(*found, beat))

    def align(self, q: int, trajectory: Frames) -> Alignment | None:
        """The best match of query number q in a trajectory [m d]; it is taken as valid."""
        (look,) = self.look([q], self.ready(trajectory), [np.inf])
        return look.match


@dataclass(frozen=True)
class Look:
    """What came of one query at one trajectory."""

    evaluated: bool
    """False where a bound was enough to tell that it costs more than what is to be beaten"""
    match: Alignment | None
    """None where no path fits, or where it costs more than what is to be beaten"""


def _match(cost: float, start: int, stop: int, beat: float) -> Alignment | None:
    return Alignment(cost, start, stop) if cost < np.inf and cost <= beat else None


@njit
def _looks(
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
        out[i, 0], out[i, 1], out[i, 2] = np.inf, -2, 0
        products = np.empty((N, M), np.float32)
        np.dot(rows[part], moved.T, products)
        low_costs(alpha[part], beta, products, ends, code, half, first)
        shrink = 1 - (N + (M if code == 2 else 0) + 8) * U
        if first[0] == np.inf:
            out[i, 1] = -1
            continue
        if first[0] * shrink / (scale * scale if half else scale) > beat[i]:
            continue
        low = _costs(alpha[part], beta, products, scale, half)
        F = _forward(low, code)
        if F[-1].min() * (1 - SLACK) > beat[i]:
            continue
        most = beat[i] * (1 + SLACK)
        cost, start, stop = _align(queries[part], values, low, F, most, code, half)
        out[i, 0], out[i, 1], out[i, 2] = cost, start, stop


@njit
def _costs(alpha: Singles, beta: Singles, products: Singles, scale: float, half: bool) -> Floats:
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
def _fill_exact(query: Floats, frames: Frames, cells: Ints, half: bool, C: Floats) -> None:
    """C [n m] of these cells [c 2], each summed in order of dimension.

    Four sums at a time: one alone would wait for each of its additions.
    """
    count = cells.shape[0]
    for i in range(0, count, 4):
        i1, i2, i3 = min(i + 1, count - 1), min(i + 2, count - 1), min(i + 3, count - 1)
        a0, b0 = query[cells[i, 0]], frames[cells[i, 1]]
        a1, b1 = query[cells[i1, 0]], frames[cells[i1, 1]]
        a2, b2 = query[cells[i2, 0]], frames[cells[i2, 1]]
        a3, b3 = query[cells[i3, 0]], frames[cells[i3, 1]]
        t0 = t1 = t2 = t3 = 0.0
        for k in range(query.shape[1]):
            e0, e1, e2, e3 = a0[k] - b0[k], a1[k] - b1[k], a2[k] - b2[k], a3[k] - b3[k]
            t0 += e0 * e0
            t1 += e1 * e1
            t2 += e2 * e2
            t3 += e3 * e3
        C[cells[i, 0], cells[i, 1]] = 0.5 * t0 if half else np.sqrt(t0)
        C[cells[i1, 0], cells[i1, 1]] = 0.5 * t1 if half else np.sqrt(t1)
        C[cells[i2, 0], cells[i2, 1]] = 0.5 * t2 if half else np.sqrt(t2)
        C[cells[i3, 0], cells[i3, 1]] = 0.5 * t3 if half else np.sqrt(t3)


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
    for n in range(N - 1, -1, -1):
        for m in range(M - 1, -1, -1):
            best = B[n, m] - low[n, m] if n == N - 1 else np.inf
            if n + 1 < N and m + 1 < M:
                best = min(best, B[n + 1, m + 1])
            if code < 2:
                if n + 1 < N and m + 2 < M:
                    best = min(best, B[n + 1, m + 2])
                if code == 1 and n + 2 < N and m + 1 < M:
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
    query: Floats, frames: Frames, low: Floats, F: Floats, beat: float, code: int, half: bool
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
