"""Trajectories cut into pieces and tiles, queries stacked, memory reused."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strap.dtw import bounding, reference
from strap.dtw.types import Floats, Frames, Ints, Singles

PIECE_FRAMES = 2**15  # looked at together: what a search keeps open at a time
LINE = 64
GROUP_ROWS = 512  # query frames in one product


@dataclass(frozen=True, eq=False)
class Piece:
    """Some trajectories that are bounded together; ids [t] are their global indices."""

    ids: list[int]
    frames: list[Frames]

    @property
    def offsets(self) -> Ints:
        """Where each trajectory begins when they lie end to end [t + 1]."""
        return np.cumsum([0, *(len(frames) for frames in self.frames)])


def tiles(offsets: Ints, limit: int) -> list[range]:
    """Runs of trajectories with at most `limit` frames together, or one that is longer."""
    runs, first = [], 0
    for i in range(1, len(offsets) - 1):
        if offsets[i + 1] - offsets[first] > limit:
            runs.append(range(first, i))
            first = i
    return [*runs, range(first, len(offsets) - 1)]


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


def as_values(frames: Frames, metric: str, buffers: Buffers | None = None) -> Frames:
    """Frames as the compiled loops read them, without loss; divided by their norms for cosine.

    With buffers, what is returned may lie there.
    """
    if metric == "cosine":
        return reference.unit(frames)
    if frames.dtype in (np.float32, np.float64):
        return np.asarray(frames)
    if frames.dtype != np.float16:
        return frames.astype(np.float64)
    if buffers is None:
        out = np.empty(frames.shape, np.float32)
    else:
        out = buffers.get("wide", np.float32, *frames.shape)
    bounding.widened(np.ascontiguousarray(frames).view(np.uint16), out)
    return out


def as_doubles(frames: Frames) -> Floats:
    """Frames [m d] as float64, row by row; faster than numpy from float16."""
    return np.ascontiguousarray(as_values(frames, "l2"), np.float64)


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
    def of(cls, queries: Sequence[Frames], metric: str, *, moved: bool = True) -> Stacked:
        """Stack the queries; the mean is 0 where frames are not to be moved."""
        frames = np.concatenate([as_values(query, metric) for query in queries], dtype=np.float64)
        with np.errstate(over="ignore"):
            mean = frames.mean(axis=0).astype(np.float32).astype(np.float64)
        if not moved or not np.isfinite(mean).all():
            mean = np.zeros_like(mean)
        # As the largest |frames − mean|: the differences' rounding keeps their order.
        largest = float(max((frames.max(axis=0) - mean).max(), (mean - frames.min(axis=0)).max()))
        scale = math.ldexp(1.0, -math.frexp(largest)[1]) if largest > 0 else 1.0
        borders = np.cumsum([0, *(len(query) for query in queries)])
        return cls(frames, borders, mean, scale)

    def move(self, frames: Frames) -> tuple[Frames, Frames, Any]:
        """Frames, mean and scale for `bounding.center`: in float32 where that is exact, as it is
        for float32 frames and ordinary scales, else in float64.
        """
        if frames.dtype == np.float32 and self.is_ordinary:
            return frames, self.single_mean, np.float32(self.scale)
        return frames.astype(np.float64, copy=False), self.mean, np.float64(self.scale)

    @property
    def is_ordinary(self) -> bool:
        """Whether the scale is one that float32 frames can be moved with."""
        return 2.0**-64 < self.scale < 2.0**64

    @cached_property
    def single_mean(self) -> Singles:
        """The mean, [d]; it is a float32 already."""
        return self.mean.astype(np.float32)

    def groups(self) -> list[range]:
        """Whole queries in groups of at most GROUP_ROWS frames (or one query)."""
        groups, first = [], 0
        for q in range(1, len(self.borders)):
            if q - 1 > first and self.borders[q] - self.borders[first] > GROUP_ROWS:
                groups.append(range(first, q - 1))
                first = q - 1
        groups.append(range(first, len(self.borders) - 1))
        return groups


def aligned(shape: tuple[int, ...], dtype: type) -> NDArray[Any]:
    """An array of anything that begins at a multiple of 64 bytes: a cache line."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    room = np.empty(size + LINE, np.uint8)
    first = -room.ctypes.data % LINE
    return room[first : first + size].view(dtype).reshape(shape)


def aligned_copy(array: NDArray[Any]) -> NDArray[Any]:
    """The same numbers, beginning at a multiple of 64 bytes."""
    out = aligned(array.shape, array.dtype.type)
    out[...] = array
    return out


class Buffers(threading.local):
    """Memory kept by each thread: fresh pages cost more than the copy into them."""

    def __init__(self) -> None:
        self._kept: dict[str, NDArray[Any]] = {}

    def get(self, key: str, dtype: type, rows: int, columns: int) -> NDArray[Any]:
        """An array [rows columns] with whatever was left in it."""
        if key not in self._kept or self._kept[key].size < rows * columns:
            self._kept[key] = aligned((rows * columns,), dtype)
        return self._kept[key][: rows * columns].reshape(rows, columns)
