"""Several matches per trajectory and limits on match lengths, on top of any top-k search.

A plain search has no constraints: it returns the cheapest match of each trajectory. Constraints
only exclude paths, so the plain cost of a trajectory is a lower bound of its constrained cost. The
trajectories of a plain search are aligned under the constraints, in order of this bound, until the
k best matches are certain. If a trajectory that the plain search did not return could still have a
cheaper match, the plain search is repeated with a larger k.

Several matches of one trajectory must not overlap. So an accepted match, frames start..stop−1,
splits its span of the trajectory in two. Their best matches cost at least as much:

    first        start     stop            last
    |  . . . . .  | match   |  . . . . . . |
    |—— span ————|         |———— span ————|
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from strap.dtw.types import (
    Alignment,
    Fetch,
    Frames,
    Lengths,
    SearchOptions,
    SearchResult,
    SearchStatistics,
    TopK,
)

PlainSearch = Callable[[Sequence[int], int], SearchResult]
"""(indices of queries, k) -> the k best matches of each, at most one per trajectory."""
Align = Callable[[Frames, Frames, Lengths | None], Alignment | None]
"""(query, trajectory, lengths) -> the best match."""
GROWTH = 4
"""the factor by which k grows when the plain search is repeated"""


def search_constrained(
    queries: Sequence[Frames],
    options: SearchOptions,
    search_plain: PlainSearch,
    fetch: Fetch,
    align: Align,
) -> SearchResult:
    """Return each query's k best matches under the constraints. Exact.

    A trajectory gives its best match, then the best that does not overlap it, and so on, at most
    `per_trajectory`; ties are ordered as in a plain search. The statistics of a query are those of
    its last plain search.
    """
    if options.constraints.is_unconstrained:
        return search_plain(range(len(queries)), options.k)
    per_trajectory, lengths = options.constraints.per_trajectory, options.constraints.lengths
    tops: dict[int, TopK] = {}
    statistics: dict[int, SearchStatistics] = {}
    remaining, k = list(range(len(queries))), options.k
    while remaining:
        plain = search_plain(remaining, k)
        for q, plain_top, counts in zip(remaining, plain.tops, plain.statistics, strict=True):
            limits = lengths[q] if lengths is not None else None
            selection = _Selection(queries[q], options.k, limits, per_trajectory, fetch, align)
            statistics[q] = counts
            selected = selection.select(plain_top, has_all=len(plain_top) < k)
            if selected is not None:
                tops[q] = selected
        remaining = [q for q in remaining if q not in tops]
        k *= GROWTH
    each = range(len(queries))
    return SearchResult([tops[q] for q in each], [statistics[q] for q in each])


class _Candidate(NamedTuple):
    """A span of a trajectory with its best match, or with a lower bound of that match's cost.

    Candidates sort by cost; of equal costs, lower bounds come first.
    """

    cost: float
    is_certain: bool  # whether this is a match; else `cost` is a lower bound
    trajectory: int
    stop: int
    less_start: int  # −start
    first: int  # the span is frames first..last−1
    last: int
    is_plain: bool  # whether it came from the plain search unchanged


@dataclass(frozen=True, eq=False)
class _Selection:
    """The selection of one query's matches under the constraints."""

    query: Frames
    k: int
    lengths: Lengths | None
    per_trajectory: int
    fetch: Fetch
    align: Align
    n_taken: Counter[int] = field(default_factory=Counter)

    def select(self, plain: TopK, *, has_all: bool) -> TopK | None:
        """Return the k best matches, or None if more trajectories are needed to be certain.

        Args:
            plain: the matches of a plain search.
            has_all: whether these are all trajectories with a match.
        """
        heap = [self._plain_candidate(plain, row) for row in range(len(plain))]
        heapq.heapify(heap)
        limit = float(plain.cost[-1]) if len(plain) and not has_all else float("inf")
        matches: list[tuple[float, int, int, int]] = []
        while heap and len(matches) < self.k:
            best = heapq.heappop(heap)
            if self.n_taken[best.trajectory] == self.per_trajectory:
                continue
            if best.cost >= limit and not (best.is_plain and best.is_certain):
                return None
            if not best.is_certain:
                match = self._evaluate(best)
                if match is not None:
                    heapq.heappush(heap, match)
                continue
            matches.append((best.cost, best.trajectory, best.stop, best.less_start))
            self.n_taken[best.trajectory] += 1
            for span in self._spans_beside(best):
                heapq.heappush(heap, span)
        return TopK.of(matches) if has_all or len(matches) == self.k else None

    def _plain_candidate(self, plain: TopK, row: int) -> _Candidate:
        trajectory, cost = int(plain.trajectory[row]), float(plain.cost[row])
        start, stop = int(plain.start[row]), int(plain.stop[row])
        last = len(self.fetch(trajectory))
        return _Candidate(cost, self.lengths is None, trajectory, stop, -start, 0, last, True)

    def _evaluate(self, span: _Candidate) -> _Candidate | None:
        """Return a span with its best match under the length limits, or None if it has none."""
        frames = self.fetch(span.trajectory)[span.first : span.last]
        match = self.align(self.query, frames, self.lengths)
        if match is None:
            return None
        start, stop = span.first + match.start, span.first + match.stop
        return span._replace(
            cost=match.cost, is_certain=True, stop=stop, less_start=-start, is_plain=False
        )

    def _spans_beside(self, match: _Candidate) -> list[_Candidate]:
        """Return the spans before and after an accepted match, with its cost as lower bound."""
        sides = ((match.first, -match.less_start), (match.stop, match.last))
        return [
            match._replace(is_certain=False, first=first, last=last, is_plain=False)
            for first, last in sides
            if first < last
        ]
