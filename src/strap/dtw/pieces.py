"""What both filters share: trajectories cut into pieces, queries stacked, threads, memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from strap.dtw import reference
from strap.dtw.types import Floats, Frames, Ints, Name

PIECE_BYTES = 48 * 2**20
GROUP_ROWS = 4096


@dataclass(frozen=True, eq=False)
class Piece:
    """Some trajectories that are bounded together; ids [t] are their global indices."""

    ids: list[int]
    frames: list[Frames]

    @property
    def offsets(self) -> Ints:
        """Where each trajectory begins when they lie end to end [t + 1]."""
        return np.cumsum([0, *(len(frames) for frames in self.frames)])


class LowerBound(Protocol):
    """A filter: prepared with the queries, then asked about every piece."""

    def frames_per_piece(self) -> int:
        """How many frames it wants at a time."""
        ...

    def bounds(self, piece: Piece, name: Name) -> Floats:
        """Lower bounds [q t] of the costs; ∞ where no path fits. Raises on invalid frames."""
        ...


def pieces(stream: Iterable[tuple[int, Frames]], limit: int) -> Iterable[Piece]:
    """Cut a stream of (id, frames) so that a piece has at most `limit` frames, or one trajectory.

    A trajectory is never cut: its recurrence needs all of it.
    """
    piece, size = Piece([], []), 0
    for index, frames in stream:
        if piece.ids and size + len(frames) > limit:
            yield piece
            piece, size = Piece([], []), 0
        piece.ids.append(index)
        piece.frames.append(frames)
        size += len(frames)
    if piece.ids:
        yield piece


def as_values(frames: Frames, metric: str) -> Frames:
    """Frames as the compiled loops read them, without loss; divided by their norms for cosine."""
    if metric == "cosine":
        return reference.unit(frames)
    if frames.dtype in (np.float32, np.float64):
        return np.asarray(frames)
    return frames.astype(np.float32 if frames.dtype == np.float16 else np.float64)


@dataclass(frozen=True, eq=False)
class Stacked:
    """All query frames end to end, and how frames are moved and scaled before rounding.

    The mean is that of the query frames: embeddings share a large common part, and rounding
    errors grow with what is left of the norms; it is a float32. The scale is a power of two, so
    it rounds nothing.
    """

    frames: Floats  # [R d]
    borders: Ints  # [q + 1]
    mean: Floats  # [d]
    scale: float

    @classmethod
    def of(cls, queries: Sequence[Frames], metric: str) -> Stacked:
        """Stack the queries."""
        frames = np.concatenate([as_values(query, metric) for query in queries], dtype=np.float64)
        with np.errstate(over="ignore"):
            mean = frames.mean(axis=0).astype(np.float32).astype(np.float64)
        if not np.isfinite(mean).all():
            mean = np.zeros_like(mean)
        largest = float(np.abs(frames - mean).max())
        scale = math.ldexp(1.0, -math.frexp(largest)[1]) if largest > 0 else 1.0
        borders = np.cumsum([0, *(len(query) for query in queries)])
        return cls(frames, borders, mean, scale)

    def move(self, frames: Frames) -> tuple[Frames, Frames, Any]:
        """Frames, mean and scale for `kernels.center`: in float32 where that is exact, as it is
        for float32 frames and ordinary scales, else in float64.
        """
        if frames.dtype == np.float32 and 2.0**-64 < self.scale < 2.0**64:
            return frames, self.mean.astype(np.float32), np.float32(self.scale)
        return frames.astype(np.float64, copy=False), self.mean, np.float64(self.scale)

    def groups(self) -> list[range]:
        """Whole queries in groups of at most GROUP_ROWS frames (or one query)."""
        groups, first = [], 0
        for q in range(1, len(self.borders)):
            if q - 1 > first and self.borders[q] - self.borders[first] > GROUP_ROWS:
                groups.append(range(first, q - 1))
                first = q - 1
        groups.append(range(first, len(self.borders) - 1))
        return groups


class Buffers:
    """Memory kept from piece to piece: fresh pages cost more than the copy into them."""

    def __init__(self) -> None:
        self._kept: dict[str, NDArray[Any]] = {}

    def get(self, key: str, dtype: type, rows: int, columns: int) -> NDArray[Any]:
        """An array [rows columns] with whatever was left in it."""
        if key not in self._kept or self._kept[key].size < rows * columns:
            self._kept[key] = np.empty(rows * columns, dtype)
        return self._kept[key][: rows * columns].reshape(rows, columns)


def cuts(count: int, parts: int) -> Ints:
    """Borders of at most `parts` nearly equal runs of 0..count."""
    return np.linspace(0, count, min(count, parts) + 1).astype(np.int64)


def spread(pool: Executor, work: Callable[[int], Any], count: int) -> list[Any]:
    """work(0) … work(count − 1), in order, in a few runs on the threads of the pool."""
    borders = cuts(count, 16)

    def run(part: int) -> list[Any]:
        return [work(i) for i in range(borders[part], borders[part + 1])]

    return [result for part in pool.map(run, range(len(borders) - 1)) for result in part]
