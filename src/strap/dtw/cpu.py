"""Exact top-k on the CPU: bound everything cheaply, then evaluate exactly what may still win."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib import import_module

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from strap.dtw import halves, halving, kernels
from strap.dtw.bounds import Filter, Tiled
from strap.dtw.climb import Climb, least
from strap.dtw.corridor import Corridor
from strap.dtw.halves import HalfFilter
from strap.dtw.pieces import PIECE_FRAMES, as_values, pieces
from strap.dtw.refinement import Refinement, exact
from strap.dtw.sketches import Sketches
from strap.dtw.types import (
    Alignment,
    Fetch,
    Floats,
    Frames,
    Ints,
    Lengths,
    Name,
    Tally,
    TopK,
    top,
)
from strap.processors import processors

ROUND = 16  # trajectories that each query looks at before its bar is set anew
FEW = 6  # of each query, looked at beside the k that set the bar
TOGETHER = 8  # trajectories whose bounds are raised in one call
SPLIT_FROM = 32  # pairs left from which on another filter of their own pays
MANY = 0.3  # share of pairs left above which their bounds are computed together


@cache
def _blas() -> ThreadpoolController:
    """The libraries behind products, numpy's and those of compiled loops (scipy's).

    Looking for them takes milliseconds.
    """
    import_module("scipy.linalg.cython_blas")
    return ThreadpoolController()


def best_match(
    query: Frames, trajectory: Frames, steps: str, metric: str, lengths: Lengths | None = None
) -> Alignment | None:
    """The best match of query [n d] in trajectory [m d]; inputs are taken as valid."""
    own = exact(query, metric)
    if lengths is None:
        return Corridor([own], steps, metric).align(0, trajectory)
    columns = kernels.transposed(as_values(trajectory, metric))
    costs = kernels.all_costs(own, columns, metric == "cosine")
    cost, start, stop = kernels.align_within(costs, kernels.CODES[steps], *lengths)
    return Alignment(cost, start, stop) if cost < np.inf else None


def search(
    queries: Sequence[Frames],
    stream: Iterable[tuple[int, Frames]],
    fetch: Fetch,
    *,
    k: int,
    steps: str,
    metric: str,
    exclude: Sequence[Collection[int]] | None,
    name: Name,
    sketched: Sequence[Sequence[Sketches]] = (),
    tally: Tally | None = None,
) -> list[TopK]:
    """Each query's k best of the (id, frames) in stream; `fetch(id)` reads frames again.

    With sketches the stream isn't read: only the frames of trajectories that their bound leaves.
    """
    tally = tally or Tally()
    sketched = [[own for own in kinds if own.sketcher.suits(steps)] for kinds in sketched]
    # One thread per tile or trajectory, and each one's product on that thread alone.
    with ThreadPoolExecutor(processors()) as pool, _blas().limit(limits=1, user_api="blas"):
        refinement = Refinement(queries, fetch, name, k, steps, metric, pool)
        asked = _Asked(queries, steps, metric, exclude, name, pool)
        if metric == "l2" and sketched and all(sketched):
            indices, lows = _begin_with_sketches(refinement, asked, sketched, fetch, tally)
        else:
            indices, lows = asked.bounds(stream)
            asked.hide(indices, lows)
            tally.pairs = int(np.isfinite(lows).sum())
            refinement.expect(indices, lows)
            refinement.round(k)
        left = refinement.left()
        if asked.is_rough and left.sum() >= SPLIT_FROM:
            asked.raise_by_split(indices, left, lows, fetch)
            refinement.expect(indices, lows)
        while refinement.round(ROUND):
            pass
    tally.evaluated = refinement.evaluated
    tally.by_bounds = tally.pairs - tally.by_sketches - tally.evaluated
    return [top(best.found) for best in refinement.bests]


def _begin_with_sketches(
    refinement: Refinement,
    asked: _Asked,
    sketched: Sequence[Sequence[Sketches]],
    fetch: Fetch,
    tally: Tally,
) -> tuple[Ints, Floats]:
    """Evaluate the most promising, and leave what short and then longer sketches can't rule out.

    Returns:
        The ids [t] and their lower bounds [q t].
    """
    climb = Climb(sketched, asked.queries, asked.steps, asked.pool)
    indices, lows = climb.indices, climb.lows
    asked.hide(indices, lows)
    tally.pairs = int(np.isfinite(lows).sum())
    few = np.isfinite(lows)
    for level in range(climb.levels):
        few = least(np.where(few, lows, np.inf), (climb.levels - level + 1) * refinement.k + FEW)
        climb.rise(level, few)
    refinement.expect(indices, np.where(few, lows, np.inf))
    refinement.round(refinement.k)  # what the others have to beat
    for level in range(climb.levels):
        refinement.expect(indices, lows)
        climb.rise(level, refinement.left())
    refinement.expect(indices, lows)
    left = refinement.left()
    tally.by_sketches = tally.pairs - refinement.looked_at - int(left.sum())
    if left.mean() > MANY:  # together they are cheaper than one by one
        some = left.any(axis=0)
        _, more = asked.bounds((int(index), fetch(int(index))) for index in indices[some])
        lows[:, some] = np.maximum(lows[:, some], more)
        refinement.expect(indices, lows)
    return indices, lows


@dataclass(eq=False)
class _Asked:
    """The queries, and lower bounds of their costs."""

    queries: Sequence[Frames]
    steps: str
    metric: str
    exclude: Sequence[Collection[int]] | None
    name: Name
    pool: Executor
    is_rough: bool = False
    """whether bounds are of bfloat16 numbers, and those of split ones can be had"""

    def hide(self, indices: Ints, lows: Floats) -> None:
        """Excluded trajectories are out of reach."""
        for q, own in enumerate(self.exclude or ()):
            if len(own):
                lows[q, np.isin(indices, list(own))] = np.inf

    def bounds(self, stream: Iterable[tuple[int, Frames]]) -> tuple[Ints, Floats]:
        """The ids [t] of the stream and their lower bounds [q t]."""
        ids: list[int] = []
        parts = [np.empty((len(self.queries), 0))]
        bound: Tiled | None = None
        for piece in pieces(stream, PIECE_FRAMES):
            bound = bound or self._filter(int(piece.offsets[-1]))
            ids += piece.ids
            parts.append(bound.bounds(piece, self.name))
        return np.array(ids, np.int64), np.concatenate(parts, axis=1)

    def _filter(self, frames: int) -> Tiled:
        """The one that suits pieces of so many frames."""
        size = sum(map(len, self.queries)), frames, self.queries[0].shape[1]
        asked = self.queries, self.steps, self.metric, self.pool
        if not halves.pays(*size):
            return Filter(*asked)
        numbers = halves.fastest()
        self.is_rough = numbers == halving.BFLOAT
        return HalfFilter(*asked, numbers)

    def raise_by_split(
        self, indices: Ints, some: NDArray[np.bool_], lows: Floats, fetch: Fetch
    ) -> None:
        """Raise the lows [q t] of some pairs [q t] by products of split numbers."""
        bound = HalfFilter(self.queries, self.steps, self.metric, self.pool, halving.SPLIT)

        def work(columns: Ints) -> None:
            frames = [fetch(int(index)) for index in indices[columns]]
            found = bound.some(frames, some[:, columns])
            lows[:, columns] = np.maximum(lows[:, columns], found)

        columns = np.flatnonzero(some.any(axis=0))
        list(self.pool.map(work, np.split(columns, range(TOGETHER, len(columns), TOGETHER))))
