"""Frames read ahead of the encoder, by threads, in order.

Threads: image decoders let go of the interpreter while they work, each thread has decoders of its
own, and nothing is copied between processes. HDF5 reads one at a time in any case; uncompressed
images come at memory speed. Long jobs over videos are the exception: there each thread has a
process to ask (`decoding`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from strap.embeddings.work import Job
from strap.types import Array, Trajectory

PIECE_BYTES = 32 << 20
PIECE_FRAMES = 256
AHEAD = 2
"""pieces read or waiting to be, for each thread; bounds the memory"""


@dataclass(frozen=True)
class Piece:
    """Consecutive frames of one trajectory by one camera."""

    job: Job
    camera: int
    index: int
    """which of the job's trajectories"""
    start: int
    stop: int
    row: int
    """the job's row of its first frame"""
    final: bool
    """the job's last"""

    @property
    def trajectory(self) -> Trajectory:
        """Whose frames they are."""
        return self.job.trajectories[self.index]


@dataclass(frozen=True)
class Read:
    """A piece's images [n h w 3], and with a trajectory's last ones its actions."""

    piece: Piece
    images: Array
    actions: Array | None


def pieces(job: Job, cameras: tuple[str, ...]) -> Iterator[Piece]:
    """A job's frames: camera by camera, so that neighbours in a batch have one size."""
    total = sum(t.length for t in job.trajectories)
    for camera, name in enumerate(cameras):
        row = 0
        for index, trajectory in enumerate(job.trajectories):
            frame_bytes = int(np.prod(trajectory.camera(name).shape[1:]))
            step = min(max(PIECE_BYTES // max(frame_bytes, 1), 16), PIECE_FRAMES)
            for start in range(0, trajectory.length, step):
                stop = min(start + step, trajectory.length)
                final = camera == len(cameras) - 1 and row + stop == total
                yield Piece(job, camera, index, start, stop, row + start, final)
            row += trajectory.length


def frames_of(piece: Piece, camera: str) -> Array:
    """A piece's images, read here."""
    return piece.trajectory.frames(camera, piece.start, piece.stop)


def read_ahead(
    todo: Iterable[Piece],
    cameras: tuple[str, ...],
    workers: int,
    images: Callable[[Piece, str], Array] = frames_of,
) -> Iterator[Read]:
    """The pieces' images, in order, read by `workers` threads while the caller is busy.

    Threads that begin together end together: while the caller works through what they bring, each
    needs another piece to go on with.
    """
    waiting: deque[Future[Read]] = deque()
    source = iter(todo)
    with ThreadPoolExecutor(workers, thread_name_prefix="decode") as threads:
        try:
            while True:
                with suppress(StopIteration):
                    while len(waiting) < workers * AHEAD:
                        waiting.append(threads.submit(_read, next(source), cameras, images))
                if not waiting:
                    return
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _read(piece: Piece, cameras: tuple[str, ...], images: Callable[[Piece, str], Array]) -> Read:
    trajectory = piece.trajectory
    found = images(piece, cameras[piece.camera])
    ends = piece.camera == len(cameras) - 1 and piece.stop == trajectory.length
    return Read(piece, found, trajectory.actions[:] if ends else None)
