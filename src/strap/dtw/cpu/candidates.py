"""The k best matches of every query, evaluated in the order of their lower bounds.

Here is decided when a candidate is dropped: when its lower bound exceeds the cost of the query's
k-th best match so far. An equal bound may hide an equal cost with a smaller index, and stays.
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
    """One query's k best so far, and the candidates that wait in the order of their bounds."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.n_exact = 0
        self.seen: set[int] = set()
        self._matches: list[tuple[float, int, int, int]] = []
        self._waiting, self._bounds = np.empty(0, np.int64), np.empty(0)

    @property
    def threshold(self) -> float:
        """The cost of the k-th best match; what costs more is not wanted."""
        return self._matches[-1][0] if len(self._matches) == self.k else np.inf

    @property
    def top(self) -> TopK:
        """The best matches so far."""
        return TopK.of(self._matches)

    def remaining(self, ids: Ints, bounds: Floats) -> Bools:
        """Return which trajectories [t] may still be among the best and were not evaluated."""
        may_win = np.isfinite(bounds) & (bounds <= self.threshold)
        places = np.flatnonzero(may_win)
        may_win[places[np.isin(ids[places], list(self.seen))]] = False
        return may_win

    def queue(self, ids: Ints, bounds: Floats) -> None:
        """Replace the candidates that wait by those of these trajectories [t] that may win."""
        may_win = self.remaining(ids, bounds)
        ids, bounds = ids[may_win], bounds[may_win]
        order = np.lexsort((ids, bounds))
        self._waiting, self._bounds = ids[order], bounds[order]

    def take(self, count: int) -> list[int]:
        """Return the next candidates that may still win, at most `count` of them."""
        n_able = int(np.searchsorted(self._bounds, self.threshold, side="right"))
        taken = [int(index) for index in self._waiting[: min(n_able, count)]]
        self._waiting, self._bounds = self._waiting[len(taken) :], self._bounds[len(taken) :]
        self.seen.update(taken)
        return taken

    def add(self, index: int, outcome: CandidateOutcome) -> None:
        """Take in what came of a candidate."""
        self.n_exact += outcome.is_exact
        match = outcome.match
        if match is not None:
            self._matches.append((match.cost, index, match.stop, -match.start))
            self._matches = sorted(self._matches)[: self.k]


class CandidateSearch:
    """All queries' k best; a trajectory that several queries want is read and prepared once."""

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

        # Prepared while others are busy with sketches: it is wanted in the first round.
        self._aligner = pool.submit(prepare)

    def remaining(self, ids: Ints, bounds: Floats) -> Bools:
        """Return which pairs [q t] may still be among the best and were not evaluated."""
        rows = zip(self.queries, bounds, strict=True)
        return np.array([query.remaining(ids, row) for query, row in rows])

    def queue(self, ids: Ints, bounds: Floats) -> None:
        """Replace the candidates that wait, by their lower bounds [q t]."""
        for query, row in zip(self.queries, bounds, strict=True):
            query.queue(ids, row)

    def evaluate(self, count: int) -> bool:
        """Evaluate each query's next candidates; return False when there were none."""
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
