"""Exact top-k on the CPU: bound everything cheaply, then evaluate exactly what may still win."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from threadpoolctl import threadpool_limits

from strap.dtw import kernels, reference
from strap.dtw.bounds import Filter
from strap.dtw.corridor import Corridor
from strap.dtw.pieces import PIECE_FRAMES, as_values, pieces
from strap.dtw.sketches import Sketched, SketchFilter
from strap.dtw.types import Alignment, Fetch, Floats, Frames, Ints, Lengths, Name, Tally, TopK, top
from strap.processors import processors


def best_match(
    query: Frames, trajectory: Frames, steps: str, metric: str, lengths: Lengths | None = None
) -> Alignment | None:
    """The best match of query [n d] in trajectory [m d]; inputs are taken as valid."""
    own = exact(query, metric)
    if lengths is None:
        return Corridor(own, steps, metric).align(trajectory)
    columns = kernels.transposed(as_values(trajectory, metric))
    costs = kernels.all_costs(own, columns, metric == "cosine")
    cost, start, stop = kernels.align_within(costs, kernels.CODES[steps], *lengths)
    return Alignment(cost, start, stop) if cost < np.inf else None


def exact(frames: Frames, metric: str) -> Floats:
    """A query as the exact pass wants it."""
    if metric == "cosine":
        return reference.unit(frames)
    return np.ascontiguousarray(frames, np.float64)


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
    sketched: Sequence[Sketched] = (),
    tally: Tally | None = None,
) -> list[TopK]:
    """Each query's k best of the (id, frames) in stream; `fetch(id)` reads frames again.

    With sketches the stream isn't read: only the frames of trajectories that their bound leaves.
    """
    # One thread per tile, and each tile's product on that thread alone.
    with ThreadPoolExecutor(processors()) as pool, threadpool_limits(1, "blas"):
        bests = [_Refinement(query, fetch, k, steps, metric, pool) for query in queries]
        tally = tally or Tally()
        if sketched and metric == "l2":
            found = _by_sketches(bests, sketched, exclude, name, tally)
            stream = ((int(index), fetch(int(index))) for index in found.indices)
        bound = Filter(queries, steps, metric, pool)
        indices, lows = _all_bounds(bound, stream, name, len(queries))
        if sketched and metric == "l2":
            lows = np.maximum(lows, found.lows)
        _hide(lows, indices, exclude)
        tally.pairs = tally.pairs or int(np.isfinite(lows).sum())
        results = [best.run(indices, row) for best, row in zip(bests, lows, strict=True)]
    tally.evaluated = sum(len(best.done) for best in bests)
    tally.by_bounds = tally.pairs - tally.by_sketches - tally.evaluated
    return results


def _hide(lows: Floats, indices: Ints, exclude: Sequence[Collection[int]] | None) -> None:
    """Excluded trajectories are out of reach."""
    for q, own in enumerate(exclude or ()):
        if len(own):
            lows[q, np.isin(indices, list(own))] = np.inf


def _all_bounds(
    bound: Filter, stream: Iterable[tuple[int, Frames]], name: Name, queries: int
) -> tuple[Ints, Floats]:
    """The ids [t] of the stream and their lower bounds [q t]."""
    ids: list[int] = []
    parts = [np.empty((queries, 0))]
    for piece in pieces(stream, PIECE_FRAMES):
        ids += piece.ids
        parts.append(bound.bounds(piece, name))
    return np.array(ids, np.int64), np.concatenate(parts, axis=1)


@dataclass(frozen=True, eq=False)
class _Left:
    """What the sketches could not remove."""

    indices: Ints  # [t]
    lows: Floats  # [q t]


def _by_sketches(
    bests: Sequence[_Refinement],
    sketched: Sequence[Sketched],
    exclude: Sequence[Collection[int]] | None,
    name: Name,
    tally: Tally,
) -> _Left:
    """Bound everything by sketches, evaluate the k most promising, and keep what may beat them."""
    queries = [best.query for best in bests]
    ids: list[int] = []
    parts = [np.empty((len(queries), 0))]
    for own in sketched:
        bound = SketchFilter(queries, own.sketcher, bests[0].steps, bests[0].pool)
        stream = (
            (int(index), block.frames[block.offsets[i] : block.offsets[i + 1]])
            for block in own.blocks
            for i, index in enumerate(block.ids)
        )
        for piece in pieces(stream, PIECE_FRAMES):
            ids += piece.ids
            errors = np.array([own.error(index) for index in piece.ids])
            parts.append(bound.bounds(piece, errors, name))
    indices, lows = np.array(ids, np.int64), np.concatenate(parts, axis=1)
    _hide(lows, indices, exclude)
    tally.pairs = int(np.isfinite(lows).sum())
    for best, row in zip(bests, lows, strict=True):
        best.begin(indices, row)
    worst = np.array([[best.worst] for best in bests])
    open_ = np.isfinite(lows) & (lows <= worst)
    for best, row in zip(bests, open_, strict=True):
        tally.by_sketches += int((~np.isin(indices[~row], list(best.done))).sum())
    tally.by_sketches -= int((~np.isfinite(lows)).sum())
    left = open_.any(axis=0)
    order = np.argsort(indices[left])  # as they lie in the store
    return _Left(indices[left][order], lows[:, left][:, order])


@dataclass
class _Refinement:
    """One query's k best so far, evaluated exactly in order of their lower bounds."""

    query: Frames
    fetch: Fetch
    k: int
    steps: str
    metric: str
    pool: Executor
    found: list[tuple[float, int, int, int]] = field(default_factory=list)
    done: set[int] = field(default_factory=set)

    @cached_property
    def corridor(self) -> Corridor:
        """The query, prepared."""
        return Corridor(exact(self.query, self.metric), self.steps, self.metric)

    @property
    def worst(self) -> float:
        """The cost to beat: that of the k-th best."""
        return self.found[-1][0] if len(self.found) == self.k else np.inf

    def begin(self, ids: Ints, lows: Floats) -> None:
        """Evaluate the k with the least bounds."""
        order = np.lexsort((ids, lows))[: self.k]
        self._evaluate(ids[order[np.isfinite(lows[order])]])

    def run(self, ids: Ints, lows: Floats) -> TopK:
        """Evaluate until the least bound left exceeds the k-th best cost found.

        An equal bound may hide an equal cost with a smaller index: only a larger one ends it.
        """
        new = np.isfinite(lows) & ~np.isin(ids, list(self.done))
        ids, lows = ids[new], lows[new]
        if not self.done:
            self.begin(ids, lows)
            new = ~np.isin(ids, list(self.done))
            ids, lows = ids[new], lows[new]
        ids, lows = ids[lows <= self.worst], lows[lows <= self.worst]
        order = np.lexsort((ids, lows))
        ids, lows = ids[order], lows[order]
        batch = 2 * processors()
        for first in range(0, len(ids), batch):
            some = slice(first, first + batch)
            if lows[first] > self.worst:
                break
            self._evaluate(ids[some][lows[some] <= self.worst])
        return top(self.found)

    def _evaluate(self, ids: Ints) -> None:
        """Align exactly with these trajectories and keep the k best."""

        def align(index: int) -> Alignment | None:
            return self.corridor.align(self.fetch(index))

        indices = [int(index) for index in ids]
        self.done.update(indices)
        for index, match in zip(indices, self.pool.map(align, indices), strict=True):
            if match is not None:
                self.found.append((match.cost, index, match.stop, -match.start))
        self.found = sorted(self.found)[: self.k]
