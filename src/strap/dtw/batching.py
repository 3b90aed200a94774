"""Batches and tiles of trajectories, and the conversion of frames to float32 or float64."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strap.dtw.llvm import number_of
from strap.dtw.metrics import unit_vectors
from strap.dtw.types import Bools, Floats, Frames, Ints, Singles
from strap.jit import njit


@dataclass(frozen=True, eq=False)
class TrajectoryBatch:
    """Trajectories whose lower bounds are computed together."""

    ids: list[int]  # [t] global indices
    frames: list[Frames]  # [t] of [m d]

    @property
    def offsets(self) -> Ints:
        """The offsets [t + 1] of the trajectories when they are concatenated."""
        return np.cumsum([0, *(len(frames) for frames in self.frames)])


def cut_batches(stream: Iterable[tuple[int, Frames]], max_frames: int) -> Iterator[TrajectoryBatch]:
    """Yield the (index, frames) of a stream in batches of at most `max_frames` frames.

    A longer trajectory is a batch of its own: its recurrence needs all of its frames.
    """
    batch, size = TrajectoryBatch([], []), 0
    for index, frames in stream:
        if batch.ids and size + len(frames) > max_frames:
            yield batch
            batch, size = TrajectoryBatch([], []), 0
        batch.ids.append(index)
        batch.frames.append(frames)
        size += len(frames)
    if batch.ids:
        yield batch


def split_into_tiles(offsets: Ints, max_frames: int) -> list[range]:
    """Return spans of trajectories with at most `max_frames` frames, or one longer trajectory."""
    tiles, first = [], 0
    for i in range(1, len(offsets) - 1):
        if offsets[i + 1] - offsets[first] > max_frames:
            tiles.append(range(first, i))
            first = i
    return [*tiles, range(first, len(offsets) - 1)]


def find_excluded(ids: Ints, exclude: Sequence[Collection[int]]) -> Bools:
    """Return which pairs [query, trajectory] must not match."""
    return np.array([np.isin(ids, list(excluded)) for excluded in exclude])


def as_floats(frames: Frames, metric: str) -> Frames:
    """Return frames as float32 or float64, without rounding; under cosine as unit vectors."""
    if metric == "cosine":
        return unit_vectors(frames)
    if frames.dtype in (np.float32, np.float64):
        return np.asarray(frames)
    if frames.dtype != np.float16:
        return frames.astype(np.float64)
    wide = np.empty(frames.shape, np.float32)
    _widen(np.ascontiguousarray(frames).view(np.uint16).reshape(-1), wide.reshape(-1))
    return wide


def as_doubles(frames: Frames, metric: str = "l2") -> Floats:
    """Return frames [m d] as a contiguous float64 array; under cosine as unit vectors."""
    return np.ascontiguousarray(as_floats(frames, metric), np.float64)


@njit
def _widen(half_bits: NDArray[np.uint16], out: Singles) -> None:
    """Convert float16 numbers, given by their bits, to float32; much faster than numpy."""
    for k in range(half_bits.shape[0]):
        out[k] = number_of(half_bits[k])
