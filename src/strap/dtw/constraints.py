"""Several matches in one trajectory, and lengths within limits, on top of any top-k search.

A constrained match is one of the paths among which the plain search finds the cheapest. So the
plain cost of a trajectory is a lower bound of its constrained cost. Trajectories come from the
plain search in order of that bound, and are aligned under the constraints until k matches are
certain. Where a trajectory beyond those could still hold a cheaper match, the plain search is
repeated with a larger k.

A match that does not overlap frames start..stop−1 lies before or after them. So a match that is
taken leaves two shorter spans, whose best matches cost at least as much:

    first        start     stop            last
    |  . . . . .  | taken   |  . . . . . . |
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
    Constraints,
    Fetch,
    Frames,
    Lengths,
    SearchOptions,
    SearchResult,
    SearchStatistics,
    TopK,
)

PlainSearch = Callable[[Sequence[int], int], SearchResult]
"""(which queries, k) -> the k best of each, one in each trajectory, any length."""
Align = Callable[[Frames, Frames, Lengths | None], Alignment | None]
"""(query, trajectory, lengths) -> the best match."""
GROWTH = 4
"""times as many matches are asked of the plain search where those were too few"""


def search_constrained(
    queries: Sequence[Frames],
    options: SearchOptions,
    search_plain: PlainSearch,
    fetch: Fetch,
    align: Align,
) -> SearchResult:
    """Return each query's k best matches that don't overlap and have an allowed length. Exact.

    Best first: the best match, then the best clear of it, and so on, at most `per_trajectory` in
    each; ties as in a plain search. The statistics of a query are those of its last plain search,
    which saw all its pairs: each is counted once.
    """
    if options.constraints.are_none:
        return search_plain(range(len(queries)), options.k)
    lengths = options.constraints.lengths
    tops: dict[int, TopK] = {}
    statistics: dict[int, SearchStatistics] = {}
    remaining, k = list(range(len(queries))), options.k
    while remaining:
        plain = search_plain(remaining, k)
        for q, firsts, counts in zip(remaining, plain.tops, plain.statistics, strict=True):
            limits = lengths[q] if lengths is not None else None
            choice = _Choice(queries[q], options.k, limits, options.constraints, fetch, align)
            statistics[q] = counts
            chosen = choice.choose(firsts, has_all=len(firsts) < k)
            if chosen is not None:
                tops[q] = chosen
        remaining = [q for q in remaining if q not in tops]
        k *= GROWTH
    each = range(len(queries))
    return SearchResult([tops[q] for q in each], [statistics[q] for q in each])


class _Candidate(NamedTuple):
    """A span of a trajectory and its best match, or a bound of it; sorts by cost, bounds first."""

    cost: float
    is_certain: bool  # a match was found; else `cost` is a lower bound
    trajectory: int
    stop: int
    less_start: int
    first: int
    last: int
    is_plain: bool  # as the plain search gave it


@dataclass(frozen=True, eq=False)
class _Choice:
    """One query's matches, best first."""

    query: Frames
    k: int
    lengths: Lengths | None
    constraints: Constraints
    fetch: Fetch
    align: Align
    n_taken: Counter[int] = field(default_factory=Counter)

    def choose(self, plain: TopK, *, has_all: bool) -> TopK | None:
        """Return the k best, or None where a trajectory beyond the plain ones might hold one."""
        heap = [self._plain_candidate(plain, row) for row in range(len(plain))]
        heapq.heapify(heap)
        limit = float(plain.cost[-1]) if len(plain) and not has_all else float("inf")
        matches: list[tuple[float, int, int, int]] = []
        while heap and len(matches) < self.k:
            best = heapq.heappop(heap)
            if self.n_taken[best.trajectory] == self.constraints.per_trajectory:
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
        """Return the best match within a span, if any."""
        frames = self.fetch(span.trajectory)[span.first : span.last]
        match = self.align(self.query, frames, self.lengths)
        if match is None:
            return None
        start, stop = span.first + match.start, span.first + match.stop
        return span._replace(
            cost=match.cost, is_certain=True, stop=stop, less_start=-start, is_plain=False
        )

    def _spans_beside(self, match: _Candidate) -> list[_Candidate]:
        """Return what lies before and after a match that was taken, bounded by its cost."""
        if self.constraints.per_trajectory == 1:
            return []
        sides = ((match.first, -match.less_start), (match.stop, match.last))
        return [
            match._replace(is_certain=False, first=first, last=last, is_plain=False)
            for first, last in sides
            if first < last
        ]
