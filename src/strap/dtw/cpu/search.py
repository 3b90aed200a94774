"""Exact top-k search on the CPU.

1. Cheap lower bounds of all (query, trajectory) pairs: from sketches, else from the frames.
2. Exact alignments of the pairs with the smallest bounds. The cost of a query's k-th best match so
   far is its threshold.
3. With sketches: tighter bounds of the pairs whose bounds do not exceed the threshold.
4. Exact alignments of the remaining pairs in order of their bounds, until the next bound exceeds
   the threshold, which falls whenever a better match is found (`candidates.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib import import_module

import numpy as np
from threadpoolctl import ThreadpoolController

from strap.cpus import count_cpus
from strap.dtw.batching import cut_batches, find_excluded
from strap.dtw.cpu.candidates import CandidateSearch
from strap.dtw.cpu.tiled_bounds import TileBounds, bound_batch, choose_bounds
from strap.dtw.cpu.tuning import CpuTuning
from strap.dtw.sketches.cascade import Cascade, shortlist
from strap.dtw.sketches.sketcher import Sketches
from strap.dtw.steps import step_set
from strap.dtw.types import (
    Excluded,
    Floats,
    Frames,
    Ints,
    Library,
    SearchOptions,
    SearchResult,
    SearchStatistics,
)

SHORTLIST_EXTRA = 6  # candidates in each shortlist in addition to a multiple of k


def search(
    queries: Sequence[Frames],
    library: Library,
    options: SearchOptions,
    exclude: Excluded,
    tuning: CpuTuning | None = None,
) -> SearchResult:
    """Return each query's k best matches in a library.

    With sketches, only the frames of trajectories that they don't rule out are read.
    """
    # The pool's threads are the only ones: each runs its BLAS products by itself.
    with ThreadPoolExecutor(count_cpus()) as pool, _blas().limit(limits=1, user_api="blas"):
        tuning = tuning or CpuTuning()
        return _Search(queries, library, options, exclude, tuning, pool).run()


@cache
def _blas() -> ThreadpoolController:
    """Return numpy's and scipy's BLAS libraries (numba uses scipy's); finding them is slow."""
    import_module("scipy.linalg.cython_blas")
    return ThreadpoolController()


@dataclass(frozen=True, eq=False)
class _Search:
    """One search and its thread pool."""

    queries: Sequence[Frames]
    library: Library
    options: SearchOptions
    exclude: Excluded
    tuning: CpuTuning
    pool: Executor

    def run(self) -> SearchResult:
        topk = CandidateSearch(self.queries, self.library, self.options, self.pool)
        sketches = self._suitable_sketches()
        if sketches:
            n_pairs, n_remaining = self._search_sketches(topk, sketches)
        else:
            ids, bounds = self._bound(self.library.stream(self.queries[0].shape[1]))
            bounds = self._hide_excluded(ids, bounds)
            n_pairs = n_remaining = np.isfinite(bounds).sum(axis=1)
            topk.replace_queue(ids, bounds)
            topk.evaluate(self.options.k)
        while topk.evaluate(self.tuning.round_size):
            pass
        statistics = [
            SearchStatistics(
                pairs=int(pairs),
                by_sketches=int(pairs - left),
                by_bounds=int(left - query.n_exact),
                evaluated=query.n_exact,
            )
            for query, pairs, left in zip(topk.queries, n_pairs, n_remaining, strict=True)
        ]
        return SearchResult([query.top for query in topk.queries], statistics)

    def _suitable_sketches(self) -> list[list[Sketches]]:
        """Return the sketches that are valid under these options; none if any part has none."""
        if self.options.metric != "l2":
            return []
        suitable = [
            [one for one in kinds if one.sketcher.suits(self.options.steps)]
            for kinds in self.library.sketches
        ]
        return suitable if all(suitable) else []

    def _search_sketches(
        self, topk: CandidateSearch, sketches: Sequence[Sequence[Sketches]]
    ) -> tuple[Ints, Ints]:
        """Align the most promising pairs, then queue the pairs that sketches can't rule out.

        Returns:
            The number of pairs of each query, and of those not ruled out by sketches [q].
        """
        k, steps = self.options.k, step_set(self.options.steps)
        cascade = Cascade(sketches, self.queries, steps, self.pool)
        ids, bounds = cascade.bound_all()
        bounds = self._hide_excluded(ids, bounds)
        n_pairs = np.isfinite(bounds).sum(axis=1)
        candidates = np.isfinite(bounds)
        for stage in range(cascade.n_stages):  # each stage compares longer sketches of fewer pairs
            size = (cascade.n_stages - stage + 1) * k + SHORTLIST_EXTRA
            candidates = shortlist(np.where(candidates, bounds, np.inf), size)
            bounds = cascade.tighten(stage, bounds, candidates)
        topk.replace_queue(ids, np.where(candidates, bounds, np.inf))
        topk.evaluate(k)  # now each query has a threshold
        for stage in range(cascade.n_stages):
            bounds = cascade.tighten(stage, bounds, topk.find_remaining(ids, bounds))
        remaining = topk.find_remaining(ids, bounds)
        n_remaining = remaining.sum(axis=1) + [len(query.taken) for query in topk.queries]
        if remaining.mean() > self.tuning.batched_share:  # bounds in batches, before alignments
            columns = np.flatnonzero(remaining.any(axis=0))
            stream = ((int(index), self.library.fetch(int(index))) for index in ids[columns])
            bounds[:, columns] = np.maximum(bounds[:, columns], self._bound(stream)[1])
        topk.replace_queue(ids, bounds)
        return n_pairs, n_remaining

    def _bound(self, stream: Iterable[tuple[int, Frames]]) -> tuple[Ints, Floats]:
        """Return the indices [t] of a stream and lower bounds [q t]; raise on invalid frames."""
        ids: list[int] = []
        bounds = [np.empty((len(self.queries), 0))]
        tile_bounds: TileBounds | None = None
        for batch in cut_batches(stream, self.tuning.batch_frames):
            if tile_bounds is None:
                n_frames = int(batch.offsets[-1])
                tile_bounds = choose_bounds(self.queries, self.options, n_frames, self.tuning)
            tile_frames = self.tuning.tile_frames or tile_bounds.tile_frames
            ids += batch.ids
            bounds.append(
                bound_batch(tile_bounds, batch, tile_frames, self.library.name, self.pool)
            )
        return np.array(ids, np.int64), np.concatenate(bounds, axis=1)

    def _hide_excluded(self, ids: Ints, bounds: Floats) -> Floats:
        """Return bounds [q t] with ∞ for the trajectories that a query must not match."""
        if self.exclude is None:
            return bounds
        return np.where(find_excluded(ids, self.exclude), np.inf, bounds)
