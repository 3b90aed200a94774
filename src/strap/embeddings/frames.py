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

from strap.embeddings.work import EmbeddingJob
from strap.types import Array, Trajectory

SPAN_BYTES = 32 << 20
SPAN_FRAMES = 256
SPANS_AHEAD = 2
"""spans read or waiting to be, for each thread; bounds the memory"""


@dataclass(frozen=True)
class FrameSpan:
    """Consecutive frames of one trajectory by one camera."""

    job: EmbeddingJob
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
class SpanImages:
    """A span's images [n h w 3], and with a trajectory's last ones its actions."""

    span: FrameSpan
    images: Array
    actions: Array | None


def split_job(job: EmbeddingJob, cameras: tuple[str, ...]) -> Iterator[FrameSpan]:
    """Yield a job's frames, camera by camera, so that neighbours in a batch have one size."""
    total = sum(t.length for t in job.trajectories)
    for camera, name in enumerate(cameras):
        row = 0
        for index, trajectory in enumerate(job.trajectories):
            frame_bytes = int(np.prod(trajectory.camera(name).shape[1:]))
            step = min(max(SPAN_BYTES // max(frame_bytes, 1), 16), SPAN_FRAMES)
            for start in range(0, trajectory.length, step):
                stop = min(start + step, trajectory.length)
                final = camera == len(cameras) - 1 and row + stop == total
                yield FrameSpan(job, camera, index, start, stop, row + start, final)
            row += trajectory.length


def read_frames(span: FrameSpan, camera: str) -> Array:
    """Return a span's images, read in this process."""
    return span.trajectory.frames(camera, span.start, span.stop)


def read_ahead(
    todo: Iterable[FrameSpan],
    cameras: tuple[str, ...],
    workers: int,
    images: Callable[[FrameSpan, str], Array] = read_frames,
) -> Iterator[SpanImages]:
    """Yield the spans' images, in order, read by `workers` threads while the caller is busy.

    Threads that begin together end together: while the caller works through what they bring, each
    needs another span to go on with.
    """
    waiting: deque[Future[SpanImages]] = deque()
    source = iter(todo)
    with ThreadPoolExecutor(workers, thread_name_prefix="decode") as threads:
        try:
            while True:
                with suppress(StopIteration):
                    while len(waiting) < workers * SPANS_AHEAD:
                        waiting.append(threads.submit(_read, next(source), cameras, images))
                if not waiting:
                    return
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _read(
    span: FrameSpan, cameras: tuple[str, ...], images: Callable[[FrameSpan, str], Array]
) -> SpanImages:
    trajectory = span.trajectory
    frames = images(span, cameras[span.camera])
    ends = span.camera == len(cameras) - 1 and span.stop == trajectory.length
    return SpanImages(span, frames, trajectory.actions[:] if ends else None)
