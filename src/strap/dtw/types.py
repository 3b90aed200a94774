"""What goes in and comes out of `strap.dtw`: small frozen records of arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Frames: TypeAlias = NDArray[Any]
"""Frames [m d], real numbers of any width."""
Floats: TypeAlias = NDArray[np.float64]
Singles: TypeAlias = NDArray[np.float32]
Halves: TypeAlias = NDArray[np.uint16]
"""The bits of float16 or bfloat16 numbers, or of integers."""
Whole: TypeAlias = NDArray[np.int16]
Ints: TypeAlias = NDArray[np.int64]
Fetch: TypeAlias = Callable[[int], Frames]
"""Global trajectory index -> its frames [m d], read again for the exact pass."""
Name: TypeAlias = Callable[[int], str]
"""Global trajectory index -> what an error message calls it."""
Lengths: TypeAlias = tuple[int, int]
"""The least and the greatest number of frames that a match may have."""

STEPS: dict[str, tuple[tuple[int, int], ...]] = {
    "strap": ((1, 1), (1, 2)),
    "fmp": ((1, 1), (1, 2), (2, 1)),
    "classic": ((1, 0), (0, 1), (1, 1)),
}
"""Allowed moves (Δquery, Δtrajectory) of the warping path, by name."""

METRICS = ("l2", "cosine")


@dataclass(frozen=True)
class Alignment:
    """The best match of a query in one trajectory: frames start..stop−1, and what it costs."""

    cost: float
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class TopK:
    """The best matches of one query, cheapest first; r = min(k, trajectories that fit)."""

    trajectory: Ints  # [r] global trajectory index
    start: Ints  # [r]
    stop: Ints  # [r] half-open
    cost: Floats  # [r]

    def __len__(self) -> int:
        return len(self.cost)


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


@dataclass(frozen=True, eq=False)
class Sketched:
    """Sketches of some trajectories, wherever they lie: those of number t are
    numbers[begins[t]:ends[t]].
    """

    numbers: Whole  # [F r]
    scales: Singles  # [F 3]
    begins: Ints  # [t]
    ends: Ints  # [t]


@dataclass
class Tally:
    """How many (query, trajectory) pairs each step of a search removed; filled by the search."""

    pairs: int = 0
    by_sketches: int = 0
    """removed by the bound from sketches: their frames were not read"""
    by_bounds: int = 0
    """removed by the bound from all dimensions"""
    evaluated: int = 0
    """evaluated exactly"""

    def add(self, other: Tally) -> None:
        """Count another search's pairs in."""
        self.pairs += other.pairs
        self.by_sketches += other.by_sketches
        self.by_bounds += other.by_bounds
        self.evaluated += other.evaluated


@dataclass(frozen=True)
class Backend:
    """The implementation that runs, and why that one."""

    name: str
    reason: str


def top(found: Sequence[tuple[float, int, int, int]]) -> TopK:
    """Sorted (cost, trajectory, stop, −start) as arrays: the order of the tie rule."""
    columns = list(zip(*found, strict=True)) or [(), (), (), ()]
    cost = np.array(columns[0], np.float64)
    trajectory, stop, start = (np.array(column, np.int64) for column in columns[1:])
    return TopK(trajectory, -start, stop, cost)
