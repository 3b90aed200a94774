"""The k best matches of every query, aligned in order of their lower bounds.

This module decides when a candidate is dropped: when its lower bound exceeds the query's threshold,
the cost of its k-th best match so far. A candidate whose bound equals the threshold is kept: it
could be a tie that wins by its smaller index.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor

import numpy as np

from strap.dtw.batching import as_doubles
from strap.dtw.cpu.exact import CandidateOutcome, ExactAligner
from strap.dtw.steps import step_set
from strap.dtw.types import Bools, Floats, Frames, Ints, Library, SearchOptions, TopK
from strap.dtw.validation import check_numbers


class QueryCandidates:
    """One query's k best matches so far, and its queue of candidates in order of their bounds."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.n_exact = 0
        self.taken: set[int] = set()
        self._matches: list[tuple[float, int, int, int]] = []
        self._queue, self._bounds = np.empty(0, np.int64), np.empty(0)

    @property
    def threshold(self) -> float:
        """The cost of the k-th best match so far; ∞ while there are fewer than k."""
        return self._matches[-1][0] if len(self._matches) == self.k else np.inf

    @property
    def top(self) -> TopK:
        """The best matches so far."""
        return TopK.of(self._matches)

    def find_remaining(self, ids: Ints, bounds: Floats) -> Bools:
        """Return which trajectories [t] can still be among the k best and were not taken yet."""
        can_win = np.isfinite(bounds) & (bounds <= self.threshold)
        positions = np.flatnonzero(can_win)
        can_win[positions[np.isin(ids[positions], list(self.taken))]] = False
        return can_win

    def replace_queue(self, ids: Ints, bounds: Floats) -> None:
        """Replace the queue by those of these trajectories [t] that remain."""
        can_win = self.find_remaining(ids, bounds)
        ids, bounds = ids[can_win], bounds[can_win]
        order = np.lexsort((ids, bounds))
        self._queue, self._bounds = ids[order], bounds[order]

    def take(self, count: int) -> list[int]:
        """Take up to `count` candidates from the queue, none with a bound above the threshold."""
        n_below = int(np.searchsorted(self._bounds, self.threshold, side="right"))
        taken: list[int] = self._queue[: min(n_below, count)].tolist()
        self._queue, self._bounds = self._queue[len(taken) :], self._bounds[len(taken) :]
        self.taken.update(taken)
        return taken

    def add(self, index: int, outcome: CandidateOutcome) -> None:
        """Add the outcome of aligning a candidate."""
        self.n_exact += outcome.is_exact
        match = outcome.match
        if match is not None:
            self._matches.append((match.cost, index, match.stop, -match.start))
            self._matches = sorted(self._matches)[: self.k]


class CandidateSearch:
    """The candidates of all queries; a trajectory that several queries need is read only once."""

    def __init__(
        self,
        queries: Sequence[Frames],
        library: Library,
        options: SearchOptions,
        pool: Executor,
    ) -> None:
        self.queries = [QueryCandidates(options.k) for _ in queries]
        self._library, self._metric, self._pool = library, options.metric, pool

        def prepare() -> ExactAligner:
            frames = [as_doubles(query, options.metric) for query in queries]
            return ExactAligner(frames, step_set(options.steps), options.metric)

        # In the background, while bounds are computed.
        self._aligner = pool.submit(prepare)

    def find_remaining(self, ids: Ints, bounds: Floats) -> Bools:
        """Return which pairs [q t] can still be among the k best and were not taken yet."""
        rows = zip(self.queries, bounds, strict=True)
        return np.array([query.find_remaining(ids, row) for query, row in rows])

    def replace_queue(self, ids: Ints, bounds: Floats) -> None:
        """Replace each query's queue by those of its trajectories that remain; bounds [q t]."""
        for query, row in zip(self.queries, bounds, strict=True):
            query.replace_queue(ids, row)

    def evaluate(self, count: int) -> bool:
        """Align each query's next `count` candidates; return False if there were none."""
        wanted: dict[int, list[int]] = {}
        for q, query in enumerate(self.queries):
            for index in query.take(count):
                wanted.setdefault(index, []).append(q)
        thresholds = [query.threshold for query in self.queries]
        aligner = self._aligner.result()

        def work(item: tuple[int, list[int]]) -> list[CandidateOutcome]:
            index, query_indices = item
            frames = self._library.fetch(index)

            def validate() -> None:
                check_numbers(frames, self._library.name(index), self._metric)

            limits = [thresholds[q] for q in query_indices]
            return aligner.align_candidate(query_indices, frames, limits, validate)

        items = sorted(wanted.items())
        results = self._pool.map(work, items)
        for (index, query_indices), outcomes in zip(items, results, strict=True):
            for q, outcome in zip(query_indices, outcomes, strict=True):
                self.queries[q].add(index, outcome)
        return bool(wanted)
