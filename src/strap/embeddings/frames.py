"""Reading of frames ahead of the encoder, by threads, in order.

Threads are enough: image decoders release the interpreter lock while they work, every thread has
its own decoders, and nothing is copied between processes. HDF5 allows one reader at a time in any
case, and reads uncompressed images at memory speed. Long jobs over videos are the exception: each
of their threads asks a process for its frames (`decoding`).
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
"""spans that are read or queued, for each thread; bounds the memory"""


@dataclass(frozen=True)
class FrameSpan:
    """Consecutive frames of one trajectory and one camera."""

    job: EmbeddingJob
    camera: int
    index: int
    """index of the trajectory in the job"""
    start: int
    stop: int
    row: int
    """row of the first frame among the camera's rows of the job"""
    final: bool
    """whether it is the job's last span"""

    @property
    def trajectory(self) -> Trajectory:
        """The trajectory of the frames."""
        return self.job.trajectories[self.index]


@dataclass(frozen=True)
class SpanImages:
    """A span's images [n h w 3], and the actions if it is the trajectory's last span."""

    span: FrameSpan
    images: Array
    actions: Array | None


def split_job(job: EmbeddingJob, cameras: tuple[str, ...]) -> Iterator[FrameSpan]:
    """Yield a job's spans, camera by camera, so that consecutive images have the same size."""
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
    """Yield the spans' images in order, read by `workers` threads while the caller is busy.

    Threads that start together finish together. So every thread has a further span in its queue,
    to read while the caller uses the finished ones.
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
    is_last = span.camera == len(cameras) - 1 and span.stop == trajectory.length
    return SpanImages(span, frames, trajectory.actions[:] if is_last else None)
