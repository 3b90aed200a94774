"""Exact evaluation in the order of lower bounds, until nothing left can be among the best."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from strap.dtw import checks, reference
from strap.dtw.corridor import Corridor
from strap.dtw.pieces import as_doubles
from strap.dtw.types import Alignment, Fetch, Floats, Frames, Ints, Name


def exact(frames: Frames, metric: str) -> Floats:
    """A query as the exact pass wants it."""
    if metric == "cosine":
        return reference.unit(frames)
    return as_doubles(frames)


@dataclass
class Best:
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
        """Put what wasn't looked at yet and may be among the best in the order of its bounds."""
        able = np.isfinite(lows) & (lows <= self.worst)
        ids, lows = ids[able], lows[able]
        new = ~np.isin(ids, list(self.done))
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


class Refinement:
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
        self.k = k
        self.bests = [Best(k) for _ in queries]
        self.evaluated = 0
        self._fetch, self._name, self._pool, self._metric = fetch, name, pool, metric
        # Prepared while others are busy with sketches: it is wanted in the first round.
        self._corridor = pool.submit(
            lambda: Corridor([exact(query, metric) for query in queries], steps, metric)
        )

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
            some = np.flatnonzero(row)
            row[some[np.isin(self._indices[some], list(best.done))]] = False
        return np.asarray(left)

    def round(self, count: int) -> bool:
        """Look at each query's next few; False when nothing was left."""
        wanted: dict[int, list[int]] = {}
        for q, best in enumerate(self.bests):
            for index in best.take(count):
                wanted.setdefault(index, []).append(q)
        beat = [best.worst for best in self.bests]
        corridor = self._corridor.result()

        def work(item: tuple[int, list[int]]) -> list[tuple[int, int, Alignment | None]]:
            index, asking = item
            frames = self._fetch(index)
            looks = corridor.look(
                asking,
                frames,
                [beat[q] for q in asking],
                lambda: checks.values(frames, self._name(index), self._metric),
            )
            return [
                (q, index, look.match)
                for q, look in zip(asking, looks, strict=True)
                if look.evaluated
            ]

        for found in self._pool.map(work, sorted(wanted.items())):
            self.evaluated += len(found)
            for q, index, match in found:
                if match is not None:
                    self.bests[q].add(index, match)
        return bool(wanted)
