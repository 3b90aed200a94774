"""Exact top-k on the CPU: bound everything cheaply, then evaluate exactly what may still win."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from threadpoolctl import threadpool_limits

from strap.dtw import kernels, reference
from strap.dtw.bounds import Filter
from strap.dtw.pieces import PIECE_FRAMES, as_values, pieces
from strap.dtw.types import Alignment, Fetch, Floats, Frames, Ints, Name, TopK, top


def threads() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def best_match(query: Frames, trajectory: Frames, steps: str, metric: str) -> Alignment | None:
    """The best match of query [n d] in trajectory [m d]; inputs are taken as valid."""
    return _align(_exact(query, metric), trajectory, steps, metric)


def _exact(frames: Frames, metric: str) -> Floats:
    if metric == "cosine":
        return reference.unit(frames)
    return np.ascontiguousarray(frames, np.float64)


def _align(query: Floats, trajectory: Frames, steps: str, metric: str) -> Alignment | None:
    # Columns, so that the loop over frames is the innermost, and one sum per frame stays in order.
    columns = kernels.transposed(as_values(trajectory, metric))
    half = metric == "cosine"
    cost, start, stop = kernels.align(query, columns, kernels.CODES[steps], half)
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
) -> list[TopK]:
    """Each query's k best of the (id, frames) in stream; `fetch(id)` reads frames again."""
    # One thread per tile, and each tile's product on that thread alone.
    with ThreadPoolExecutor(threads()) as pool, threadpool_limits(1, "blas"):
        bound = Filter(queries, steps, metric, pool)
        ids: list[int] = []
        parts = [np.empty((len(queries), 0))]
        for piece in pieces(stream, PIECE_FRAMES):
            ids += piece.ids
            parts.append(bound.bounds(piece, name))
        indices, lows = np.array(ids, np.int64), np.concatenate(parts, axis=1)
        results = []
        for q, query in enumerate(queries):
            row = lows[q]
            if exclude is not None and len(exclude[q]):
                row = np.where(np.isin(indices, list(exclude[q])), np.inf, row)
            results.append(_Refinement(query, fetch, k, steps, metric, pool).run(indices, row))
    return results


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

    @property
    def worst(self) -> float:
        """The cost to beat: that of the k-th best."""
        return self.found[-1][0] if len(self.found) == self.k else np.inf

    def run(self, ids: Ints, lows: Floats) -> TopK:
        """Evaluate until the least bound left exceeds the k-th best cost found.

        An equal bound may hide an equal cost with a smaller index: only a larger one ends it.
        """
        order = np.lexsort((ids, lows))
        order = order[np.isfinite(lows[order])]
        self._evaluate(ids[order[: self.k]])
        ids, lows = ids[order[self.k :]], lows[order[self.k :]]
        ids, lows = ids[lows <= self.worst], lows[lows <= self.worst]
        batch = 2 * threads()
        for first in range(0, len(ids), batch):
            some = slice(first, first + batch)
            if lows[first] > self.worst:
                break
            self._evaluate(ids[some][lows[some] <= self.worst])
        return top(self.found)

    def _evaluate(self, ids: Ints) -> None:
        """Align exactly with these trajectories and keep the k best."""
        query = _exact(self.query, self.metric)

        def align(index: int) -> Alignment | None:
            return _align(query, self.fetch(index), self.steps, self.metric)

        indices = [int(index) for index in ids]
        for index, match in zip(indices, self.pool.map(align, indices), strict=True):
            if match is not None:
                self.found.append((match.cost, index, match.stop, -match.start))
        self.found = sorted(self.found)[: self.k]
