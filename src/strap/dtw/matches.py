"""Several matches in one trajectory, and lengths within limits, on top of any top-k search.

Both rest on one fact: what they ask for is a path among those the plain search looks at, so the
plain cost bounds it from below. Trajectories come from the plain search in order of that bound and
are looked at best first, until k matches are certain; where the bound of what has not been seen
could still beat one of them, the plain search is asked for more.

A path is contiguous, so the best one clear of frames start..stop−1 lies before or after them: a
match that is taken leaves two shorter trajectories, whose best match costs at least as much.

    lo           start     stop            hi
    |  . . . . .  | taken   |  . . . . . . |
    |—— piece ———|         |——— piece ————|
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from strap.dtw.types import Alignment, Fetch, Frames, Lengths, TopK, top

Plain = Callable[[Sequence[int], int], list[TopK]]
"""(which queries, k) -> the k best of each, one in each trajectory, any length."""
Align = Callable[[Frames, Frames, Lengths | None], Alignment | None]
"""(query, trajectory, lengths) -> the best match."""
GROWTH = 4


@dataclass(frozen=True)
class Wish:
    """What is asked for beyond the k best, one in each trajectory."""

    k: int
    per_trajectory: int = 1
    lengths: Sequence[Lengths] | None = None
    """for each query the least and the greatest number of frames of a match"""

    @property
    def plain(self) -> bool:
        """Nothing is: a plain search does."""
        return self.per_trajectory == 1 and self.lengths is None


def search(
    queries: Sequence[Frames], wish: Wish, plain: Plain, fetch: Fetch, align: Align
) -> list[TopK]:
    """Each query's k best matches that don't overlap and have an allowed length. Exact.

    Best first: the best match, then the best clear of it, and so on, at most `per_trajectory` in
    each; ties as in a plain search.
    """
    if wish.plain:
        return plain(range(len(queries)), wish.k)
    found: list[TopK | None] = [None] * len(queries)
    left, k = list(range(len(queries))), wish.k
    while left:
        for q, firsts in zip(left, plain(left, k), strict=True):
            lengths = wish.lengths[q] if wish.lengths is not None else None
            choice = _Choice(queries[q], lengths, wish, fetch, align)
            found[q] = choice.run(firsts, everything=len(firsts) < k)
        left = [q for q in left if found[q] is None]
        k *= GROWTH
    return [one for one in found if one is not None]


class _Candidate(NamedTuple):
    """What is known of a piece of a trajectory; sorts by cost, bounds before what is certain."""

    cost: float
    certain: bool
    """a match was found; else `cost` is a lower bound"""
    trajectory: int
    stop: int
    less_start: int
    lo: int
    hi: int
    first: bool
    """as the plain search gave it"""


@dataclass(frozen=True, eq=False)
class _Choice:
    """One query's matches, best first."""

    query: Frames
    lengths: Lengths | None
    wish: Wish
    fetch: Fetch
    align: Align
    taken: Counter[int] = field(default_factory=Counter)

    def run(self, firsts: TopK, everything: bool) -> TopK | None:
        """The k best, or None where a trajectory beyond `firsts` might hold one of them."""
        heap = [self._first(firsts, row) for row in range(len(firsts))]
        heapq.heapify(heap)
        limit = float(firsts.cost[-1]) if len(firsts) and not everything else float("inf")
        found: list[tuple[float, int, int, int]] = []
        while heap and len(found) < self.wish.k:
            best = heapq.heappop(heap)
            if self.taken[best.trajectory] == self.wish.per_trajectory:
                continue
            if best.cost >= limit and not (best.first and best.certain):
                return None
            if not best.certain:
                match = self._evaluate(best)
                if match is not None:
                    heapq.heappush(heap, match)
                continue
            found.append((best.cost, best.trajectory, best.stop, best.less_start))
            self.taken[best.trajectory] += 1
            for piece in self._rest(best):
                heapq.heappush(heap, piece)
        return top(found) if everything or len(found) == self.wish.k else None

    def _first(self, firsts: TopK, row: int) -> _Candidate:
        trajectory, cost = int(firsts.trajectory[row]), float(firsts.cost[row])
        start, stop = int(firsts.start[row]), int(firsts.stop[row])
        hi = len(self.fetch(trajectory)) if self.wish.per_trajectory > 1 or self.lengths else stop
        certain = self.lengths is None
        return _Candidate(cost, certain, trajectory, stop, -start, 0, hi, True)

    def _evaluate(self, piece: _Candidate) -> _Candidate | None:
        frames = self.fetch(piece.trajectory)[piece.lo : piece.hi]
        match = self.align(self.query, frames, self.lengths)
        if match is None:
            return None
        start, stop = piece.lo + match.start, piece.lo + match.stop
        return piece._replace(
            cost=match.cost, certain=True, stop=stop, less_start=-start, first=False
        )

    def _rest(self, match: _Candidate) -> list[_Candidate]:
        """What lies before and after a match that was taken, bounded by its cost."""
        if self.wish.per_trajectory == 1:
            return []
        sides = ((match.lo, -match.less_start), (match.stop, match.hi))
        return [
            match._replace(certain=False, lo=lo, hi=hi, first=False) for lo, hi in sides if lo < hi
        ]
