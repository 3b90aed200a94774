"""Exact top-k on the CPU: bound everything cheaply, then evaluate exactly what may still win."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from strap.dtw import checks, halves, kernels, reference
from strap.dtw.bounds import Filter
from strap.dtw.corridor import Corridor, Ready
from strap.dtw.halves import HalfFilter
from strap.dtw.pieces import PIECE_FRAMES, as_values, pieces
from strap.dtw.sketches import Sketched, SketchFilter
from strap.dtw.types import Alignment, Fetch, Floats, Frames, Ints, Lengths, Name, Tally, TopK, top
from strap.processors import processors

ROUND = 16  # trajectories that each query looks at before its bar is set anew
RECENT = 64  # prepared trajectories kept for the next round
MANY = 0.3  # share of pairs left above which their bounds are computed together


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
    tally = tally or Tally()
    # One thread per tile or trajectory, and each one's product on that thread alone.
    with ThreadPoolExecutor(processors()) as pool, threadpool_limits(1, "blas"):
        refinement = _Refinement(queries, fetch, name, k, steps, metric, pool)
        if sketched and metric == "l2":
            indices, lows, owners = _sketch_bounds(queries, sketched, steps, pool, name)
            _hide(lows, indices, exclude)
            tally.pairs = int(np.isfinite(lows).sum())
            refinement.expect(indices, lows)
            refinement.round(k)  # the most promising: what the others have to beat
            for number, own in enumerate(sketched):
                some = refinement.left() & (owners == number)
                _finer_bounds(queries, own, steps, pool, indices, some, lows)
            refinement.expect(indices, lows)
            left = refinement.left()
            tally.by_sketches = tally.pairs - refinement.looked_at - int(left.sum())
            if left.mean() > MANY:  # together they are cheaper than one by one
                some = left.any(axis=0)
                stream = ((int(index), fetch(int(index))) for index in indices[some])
                _, more = _all_bounds(queries, stream, steps, metric, pool, name)
                lows[:, some] = np.maximum(lows[:, some], more)
                refinement.expect(indices, lows)
        else:
            indices, lows = _all_bounds(queries, stream, steps, metric, pool, name)
            _hide(lows, indices, exclude)
            tally.pairs = int(np.isfinite(lows).sum())
            refinement.expect(indices, lows)
            refinement.round(k)
        while refinement.round(ROUND):
            pass
    tally.evaluated = refinement.evaluated
    tally.by_bounds = tally.pairs - tally.by_sketches - tally.evaluated
    return [top(best.found) for best in refinement.bests]


def _hide(lows: Floats, indices: Ints, exclude: Sequence[Collection[int]] | None) -> None:
    """Excluded trajectories are out of reach."""
    for q, own in enumerate(exclude or ()):
        if len(own):
            lows[q, np.isin(indices, list(own))] = np.inf


def _all_bounds(
    queries: Sequence[Frames],
    stream: Iterable[tuple[int, Frames]],
    steps: str,
    metric: str,
    pool: Executor,
    name: Name,
) -> tuple[Ints, Floats]:
    """The ids [t] of the stream and their lower bounds [q t]."""
    ids: list[int] = []
    parts = [np.empty((len(queries), 0))]
    bound: Filter | HalfFilter | None = None
    for piece in pieces(stream, PIECE_FRAMES):
        if bound is None:
            size = sum(map(len, queries)), int(piece.offsets[-1]), queries[0].shape[1]
            kind = HalfFilter if halves.pays(*size) else Filter
            bound = kind(queries, steps, metric, pool)
        ids += piece.ids
        parts.append(bound.bounds(piece, name))
    return np.array(ids, np.int64), np.concatenate(parts, axis=1)


def _sketch_bounds(
    queries: Sequence[Frames],
    sketched: Sequence[Sketched],
    steps: str,
    pool: Executor,
    name: Name,
) -> tuple[Ints, Floats, Ints]:
    """The ids [t] of all sketched trajectories, their lower bounds [q t], and whose they are."""
    ids: list[int] = []
    owners: list[int] = []
    parts = [np.empty((len(queries), 0))]
    for number, own in enumerate(sketched):
        bound = SketchFilter(queries, own.sketcher, steps, pool)
        stream = (
            (int(index), block.frames[block.offsets[i] : block.offsets[i + 1]])
            for block in own.blocks
            for i, index in enumerate(block.ids)
        )
        for piece in pieces(stream, PIECE_FRAMES):
            ids += piece.ids
            owners += [number] * len(piece.ids)
            errors = np.array([own.error(index) for index in piece.ids])
            parts.append(bound.bounds(piece, errors, name))
    lows = np.concatenate(parts, axis=1)
    return np.array(ids, np.int64), lows, np.array(owners, np.int64)


def _finer_bounds(
    queries: Sequence[Frames],
    sketched: Sketched,
    steps: str,
    pool: Executor,
    indices: Ints,
    some: NDArray[np.bool_],
    lows: Floats,
) -> None:
    """Raise the lows [q t] of some pairs [q t] by longer sketches, where there are such."""
    finer = sketched.finer
    if finer is None or not some.any():
        return
    bound = SketchFilter(queries, finer.sketcher, steps, pool)

    def work(column: int) -> None:
        asking = np.flatnonzero(some[:, column])
        found = bound.some(asking, *finer.fetch(int(indices[column])))
        lows[asking, column] = np.maximum(lows[asking, column], found)

    list(pool.map(work, np.flatnonzero(some.any(axis=0))))


@dataclass
class _Best:
    """One query's k best so far, and the order in which the rest is looked at."""

    k: int
    found: list[tuple[float, int, int, int]] = field(default_factory=list)
    waiting: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    lows: Floats = field(default_factory=lambda: np.empty(0))
    done: set[int] = field(default_factory=set)

    @property
    def worst(self) -> float:
        """The cost to beat: that of the k-th best."""
        return self.found[-1][0] if len(self.found) == self.k else np.inf

    def expect(self, ids: Ints, lows: Floats) -> None:
        """Put what wasn't looked at yet in the order of its bounds."""
        new = np.isfinite(lows) & ~np.isin(ids, list(self.done))
        ids, lows = ids[new], lows[new]
        order = np.lexsort((ids, lows))
        self.waiting, self.lows = ids[order], lows[order]

    def take(self, count: int) -> list[int]:
        """The next few that may still be among the best.

        An equal bound may hide an equal cost with a smaller index: only a larger one ends it.
        """
        able = int(np.searchsorted(self.lows, self.worst, side="right"))
        chosen = [int(index) for index in self.waiting[: min(able, count)]]
        self.waiting, self.lows = self.waiting[len(chosen) :], self.lows[len(chosen) :]
        self.done.update(chosen)
        return chosen

    def add(self, index: int, match: Alignment) -> None:
        """Count a match in."""
        self.found.append((match.cost, index, match.stop, -match.start))
        self.found = sorted(self.found)[: self.k]


class _Refinement:
    """All queries' best, evaluated exactly in the order of their bounds, round by round.

    A trajectory that several queries want in a round is read and prepared once.
    """

    def __init__(
        self,
        queries: Sequence[Frames],
        fetch: Fetch,
        name: Name,
        k: int,
        steps: str,
        metric: str,
        pool: Executor,
    ) -> None:
        self.bests = [_Best(k) for _ in queries]
        self.evaluated = 0
        self._fetch, self._name, self._pool, self._metric = fetch, name, pool, metric
        self._corridor = Corridor([exact(query, metric) for query in queries], steps, metric)
        self._recent: dict[int, Ready] = {}

    @property
    def looked_at(self) -> int:
        """Pairs that were not left to a bound alone."""
        return sum(len(best.done) for best in self.bests)

    def expect(self, indices: Ints, lows: Floats) -> None:
        """Lower bounds [q t] of the trajectories that wait."""
        self._indices, self._lows = indices, lows
        for best, row in zip(self.bests, lows, strict=True):
            best.expect(indices, row)

    def left(self) -> NDArray[np.bool_]:
        """Which pairs [q t] may still be among the best."""
        worst = np.array([[best.worst] for best in self.bests])
        left = np.isfinite(self._lows) & (self._lows <= worst)
        for best, row in zip(self.bests, left, strict=True):
            row[np.isin(self._indices, list(best.done))] = False
        return np.asarray(left)

    def round(self, count: int) -> bool:
        """Look at each query's next few; False when nothing was left."""
        wanted: dict[int, list[int]] = {}
        for q, best in enumerate(self.bests):
            for index in best.take(count):
                wanted.setdefault(index, []).append(q)
        self._recent = {i: ready for i, ready in self._recent.items() if i in wanted}
        beat = [best.worst for best in self.bests]

        def work(item: tuple[int, list[int]]) -> list[tuple[int, int, Alignment | None]]:
            index, asking = item
            ready = self._ready(index)
            looks = [(q, self._corridor.look(q, ready)) for q in asking]
            return [(q, index, look.align(beat[q])) for q, look in looks if look.bound <= beat[q]]

        for found in self._pool.map(work, sorted(wanted.items())):
            self.evaluated += len(found)
            for q, index, match in found:
                if match is not None:
                    self.bests[q].add(index, match)
        return bool(wanted)

    def _ready(self, index: int) -> Ready:
        known = self._recent.get(index)
        if known is not None:
            return known
        frames = self._fetch(index)
        ready = self._corridor.ready(
            frames, lambda: checks.values(frames, self._name(index), self._metric)
        )
        if len(self._recent) < RECENT:
            self._recent[index] = ready
        return ready
