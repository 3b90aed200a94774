"""The inputs and the results of `strap.dtw`: frozen dataclasses of arrays."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from strap.dtw.sketches.sketcher import Sketches

Frames: TypeAlias = NDArray[Any]
"""Frames [m d] of any real dtype."""
Real: TypeAlias = float | np.float32
Floats: TypeAlias = NDArray[np.float64]
Singles: TypeAlias = NDArray[np.float32]
Shorts: TypeAlias = NDArray[np.int16]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Fetch: TypeAlias = Callable[[int], Frames]
"""Global trajectory index -> its frames [m d]; called for the exact alignment of candidates."""
Name: TypeAlias = Callable[[int], str]
"""Global trajectory index -> the trajectory's name in error messages."""
Excluded: TypeAlias = Sequence[Collection[int]] | None
"""For each query the global indices of the trajectories that it must not match."""
Lengths: TypeAlias = tuple[int, int]
"""The minimum and the maximum number of frames of a match."""


@dataclass(frozen=True, eq=False)
class WarpingPath:
    """A warping path: its (query frame, trajectory frame) pairs in order, and their local costs.

    Iterating over a path gives (query frame, trajectory frame, cost).
    """

    query: Ints  # [p] frame of the query, 0 to n − 1
    trajectory: Ints  # [p] frame of the trajectory, start to stop − 1
    costs: Floats  # [p] local costs; summed in this order they give the alignment's cost bit by bit

    def __len__(self) -> int:
        return len(self.costs)

    def __iter__(self) -> Iterator[tuple[int, int, float]]:
        columns = self.query.tolist(), self.trajectory.tolist(), self.costs.tolist()
        return zip(*columns, strict=True)


@dataclass(frozen=True)
class Alignment:
    """The best match of a query in one trajectory: frames start..stop−1, and their cost."""

    cost: float
    start: int
    stop: int
    path: WarpingPath | None = field(default=None, compare=False, repr=False)
    """the warping path if it was requested; comparing alignments ignores it"""


@dataclass(frozen=True, eq=False)
class TopK:
    """The best matches of one query, cheapest first; r = min(k, number of matches)."""

    trajectory: Ints  # [r] global trajectory index
    start: Ints  # [r]
    stop: Ints  # [r] half-open
    cost: Floats  # [r]

    def __len__(self) -> int:
        return len(self.cost)

    @classmethod
    def of(cls, matches: Sequence[tuple[float, int, int, int]]) -> TopK:
        """Return matches as arrays; they are tuples (cost, trajectory, stop, −start), sorted."""
        columns = list(zip(*matches, strict=True)) or [(), (), (), ()]
        cost = np.array(columns[0], np.float64)
        trajectory, stop, less_start = (np.array(column, np.int64) for column in columns[1:])
        return cls(trajectory, -less_start, stop, cost)

    @classmethod
    def best_of(cls, tops: Sequence[TopK], k: int) -> TopK:
        """Return the k best of one query's matches from several parts of a search."""
        trajectory, start, stop, cost = (
            np.concatenate([getattr(top, part) for top in tops])
            for part in ("trajectory", "start", "stop", "cost")
        )
        order = np.lexsort((-start, stop, trajectory, cost))[:k]
        return cls(trajectory[order], start[order], stop[order], cost[order])


@dataclass(frozen=True, eq=False)
class Block:
    """Concatenated trajectories: number i is frames[offsets[i]:offsets[i + 1]].

    frames    | a a a a | b b | c c c |        [F d]
    offsets   0         4     6       9        [t + 1]
    ids         17        3     40             [t]  global indices, in any order
    """

    frames: Frames
    offsets: Ints
    ids: Ints


@dataclass(frozen=True)
class Constraints:
    """The limits on the number and the length of matches."""

    per_trajectory: int = 1
    """the maximum number of matches of a query in one trajectory; they don't overlap"""
    lengths: Sequence[Lengths] | None = None
    """for each query the minimum and the maximum number of frames of a match"""

    @property
    def is_unconstrained(self) -> bool:
        """Whether each trajectory gives its one best match, of any length."""
        return self.per_trajectory == 1 and self.lengths is None


@dataclass(frozen=True)
class SearchOptions:
    """The options of one search."""

    k: int
    steps: str = "strap"
    metric: str = "l2"
    backend: str = "auto"
    constraints: Constraints = field(default_factory=Constraints)


@dataclass(frozen=True, eq=False)
class Library:
    """The trajectories that are searched, and the functions that read them."""

    stream: Callable[[int], Iterable[tuple[int, Frames]]]
    """dimension of the queries -> (global index, frames [m d]) of each trajectory, shape-checked"""
    fetch: Fetch
    name: Name
    sketches: Sequence[Sequence[Sketches]] = ()
    """for each part of the library (a store, say) its kinds of sketches, the fastest kind first"""


@dataclass(frozen=True)
class SearchStatistics:
    """The number of (query, trajectory) pairs that each stage of a search ruled out."""

    pairs: int = 0
    by_sketches: int = 0
    """ruled out by bounds from sketches, without reading the trajectory's frames"""
    by_bounds: int = 0
    """ruled out by bounds from the frames"""
    evaluated: int = 0
    """aligned exactly"""

    def __add__(self, other: SearchStatistics) -> SearchStatistics:
        counts = zip(astuple(self), astuple(other), strict=True)
        return SearchStatistics(*(one + another for one, another in counts))


@dataclass(frozen=True, eq=False)
class SearchResult:
    """The matches of each query, and how many pairs each stage of the search ruled out."""

    tops: list[TopK]  # [q]
    statistics: list[SearchStatistics]  # [q]

    @property
    def total(self) -> SearchStatistics:
        """The statistics of all queries together."""
        return sum(self.statistics, SearchStatistics())


@dataclass(frozen=True)
class Backend:
    """The name of the backend that runs, and the reason why it was chosen."""

    name: str
    reason: str
