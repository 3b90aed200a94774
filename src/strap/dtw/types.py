"""The inputs and the results of `strap.dtw`: small frozen records of arrays."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from strap.dtw.sketches.sketcher import Sketches

Frames: TypeAlias = NDArray[Any]
"""Frames [m d], real numbers of any width."""
Real: TypeAlias = float | np.float32
Floats: TypeAlias = NDArray[np.float64]
Singles: TypeAlias = NDArray[np.float32]
Shorts: TypeAlias = NDArray[np.int16]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Fetch: TypeAlias = Callable[[int], Frames]
"""Global trajectory index -> its frames [m d], read again for the exact pass."""
Name: TypeAlias = Callable[[int], str]
"""Global trajectory index -> what an error message calls it."""
Excluded: TypeAlias = Sequence[Collection[int]] | None
"""For each query the global indices of trajectories that it must not match."""
Lengths: TypeAlias = tuple[int, int]
"""The least and the greatest number of frames that a match may have."""

METRICS = ("l2", "cosine")


@dataclass(frozen=True, eq=False)
class WarpingPath:
    """The pairs of a query and a trajectory frame that meet, from first to last, and their costs.

    It iterates over (query frame, trajectory frame, cost).
    """

    query: Ints  # [p] frame of the query, 0 to n − 1
    trajectory: Ints  # [p] frame of the trajectory, start to stop − 1
    costs: Floats  # [p] local costs; added in this order they are the alignment's, to the last bit

    def __len__(self) -> int:
        return len(self.costs)

    def __iter__(self) -> Iterator[tuple[int, int, float]]:
        columns = self.query.tolist(), self.trajectory.tolist(), self.costs.tolist()
        return zip(*columns, strict=True)


@dataclass(frozen=True)
class Alignment:
    """The best match of a query in one trajectory: frames start..stop−1, and what it costs."""

    cost: float
    start: int
    stop: int
    path: WarpingPath | None = field(default=None, compare=False, repr=False)
    """where it was asked for; alignments are equal with and without"""


@dataclass(frozen=True, eq=False)
class TopK:
    """The best matches of one query, cheapest first; r = min(k, trajectories that fit)."""

    trajectory: Ints  # [r] global trajectory index
    start: Ints  # [r]
    stop: Ints  # [r] half-open
    cost: Floats  # [r]

    def __len__(self) -> int:
        return len(self.cost)

    @classmethod
    def of(cls, matches: Sequence[tuple[float, int, int, int]]) -> TopK:
        """Return sorted (cost, trajectory, stop, −start), the order of the tie rule, as arrays."""
        columns = list(zip(*matches, strict=True)) or [(), (), (), ()]
        cost = np.array(columns[0], np.float64)
        trajectory, stop, less_start = (np.array(column, np.int64) for column in columns[1:])
        return cls(trajectory, -less_start, stop, cost)

    @classmethod
    def best_of(cls, tops: Sequence[TopK], k: int) -> TopK:
        """Return the k best of what several parts of a search found for one query."""
        trajectory, start, stop, cost = (
            np.concatenate([getattr(top, part) for top in tops])
            for part in ("trajectory", "start", "stop", "cost")
        )
        order = np.lexsort((-start, stop, trajectory, cost))[:k]
        return cls(trajectory[order], start[order], stop[order], cost[order])


@dataclass(frozen=True, eq=False)
class Block:
    """Trajectories laid end to end: number i is frames[offsets[i]:offsets[i + 1]].

    frames    | a a a a | b b | c c c |        [F d]
    offsets   0         4     6       9        [t + 1]
    ids         17        3     40             [t]  global indices, in any order
    """

    frames: Frames
    offsets: Ints
    ids: Ints


@dataclass(frozen=True)
class Constraints:
    """The conditions of a match besides its cost."""

    per_trajectory: int = 1
    """how many matches of a query may lie in one trajectory; they don't overlap"""
    lengths: Sequence[Lengths] | None = None
    """for each query the least and the greatest number of frames of a match"""

    @property
    def are_none(self) -> bool:
        """Whether a plain search will do: the best match of each trajectory, of any length."""
        return self.per_trajectory == 1 and self.lengths is None


@dataclass(frozen=True)
class SearchOptions:
    """The options of a search, which every part of it gets whole."""

    k: int
    steps: str = "strap"
    metric: str = "l2"
    backend: str = "auto"
    constraints: Constraints = field(default_factory=Constraints)


@dataclass(frozen=True, eq=False)
class Library:
    """The trajectories that are searched."""

    stream: Callable[[int], Iterable[tuple[int, Frames]]]
    """dimension of the queries -> every (global index, frames [m d]), checked, read once"""
    fetch: Fetch
    name: Name
    sketches: Sequence[Sequence[Sketches]] = ()
    """of all trajectories, of one or more kinds for each part of them, the fastest first"""


@dataclass(frozen=True)
class SearchStatistics:
    """The number of (query, trajectory) pairs that each step of a search removed."""

    pairs: int = 0
    by_sketches: int = 0
    """removed by the bound from sketches: their frames were not read"""
    by_bounds: int = 0
    """removed by the bound from all dimensions"""
    evaluated: int = 0
    """evaluated exactly"""

    def __add__(self, other: SearchStatistics) -> SearchStatistics:
        counts = zip(astuple(self), astuple(other), strict=True)
        return SearchStatistics(*(one + another for one, another in counts))


@dataclass(frozen=True, eq=False)
class SearchResult:
    """The matches of each query, and how many pairs each step of the search removed."""

    tops: list[TopK]  # [q]
    statistics: list[SearchStatistics]  # [q]

    @property
    def total(self) -> SearchStatistics:
        """The statistics of all queries together."""
        return sum(self.statistics, SearchStatistics())


@dataclass(frozen=True)
class Backend:
    """The implementation that runs, and why that one."""

    name: str
    reason: str
