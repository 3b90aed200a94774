"""Frames packed into batches, encoded, and handed on row by row."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from strap.embeddings.frames import FrameSpan, SpanImages, read_ahead, read_frames, split_job
from strap.embeddings.work import EmbeddingJob
from strap.encoders import Encoder, check_vectors
from strap.types import Array, ContentHasher

UNHASHED = 8
"""spans that may wait to be hashed; bounds the memory"""
HASHERS = 4
"""threads that hash at most: one makes 3,000 to 4,000 images of 256×256 a second"""
GATHERED = 1
"""batches whose images may lie ready for a GPU; bounds its memory"""


class Sink(Protocol):
    """Takes what was encoded."""

    def add_rows(self, job: EmbeddingJob, camera: int, vectors: Array) -> None:
        """Take the next rows of a camera."""

    def finish_trajectory(
        self, job: EmbeddingJob, index: int, fingerprint: Callable[[], str]
    ) -> None:
        """Take note that a trajectory's frames are all read; its rows are there or soon come."""

    def end_job(self, job: EmbeddingJob) -> None:
        """Take note that the job's last row has come."""


@dataclass
class _Batch:
    job: EmbeddingJob
    camera: int
    names: list[tuple[str, int, int]] = field(default_factory=list)
    """(trajectory, first frame, frames) of each part, for messages"""
    parts: list[Array] = field(default_factory=list)
    size: int = 0


@dataclass
class _Flight:
    """A batch on its way, or the end of a job, which follows its batches."""

    batch: _Batch | EmbeddingJob
    gathered: Future[Any] | None = None
    """its images, once they lie together"""
    wait: Callable[[], Array] | None = None
    """for its vectors, once it is started"""


class Packer:
    """Fills batches across the borders of trajectories, in the order of the rows."""

    def __init__(self, encoder: Encoder, cameras: tuple[str, ...], batch: int, sink: Sink) -> None:
        self._encoder, self._cameras, self._limit, self._sink = encoder, cameras, batch, sink
        self._batch: _Batch | None = None
        self._flying: deque[_Flight] = deque()
        self._hashers: dict[int, ContentHasher] = {}
        self._unhashed: deque[Future[None]] = deque()

    def run(
        self,
        jobs: Iterable[EmbeddingJob],
        workers: int,
        images: Callable[[FrameSpan, str], Array] = read_frames,
    ) -> None:
        """Embed the jobs; `images` reads a span."""
        todo = (span for job in jobs for span in split_job(job, self._cameras))
        with ExitStack() as stack:
            hashing = [
                stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="hash"))
                for _ in range(min(HASHERS, workers))
            ]
            self._gathering = stack.enter_context(
                ThreadPoolExecutor(1, thread_name_prefix="gather")
            )
            for read in read_ahead(todo, self._cameras, workers, images):
                self._hash(read, hashing[read.span.index % len(hashing)])
                self._pack(read)
                if read.span.final:
                    self._send()
                    self._hashers.clear()
                    self._flying.append(_Flight(read.span.job))
            self._start(0)
            self._land(0)

    def _hash(self, read: SpanImages, hashing: ThreadPoolExecutor) -> None:
        """Hash a span in a thread, the same for all of a trajectory, whose spans come in order."""
        span = read.span
        hasher = self._hashers.setdefault(span.index, ContentHasher(span.trajectory))
        self._unhashed.append(hashing.submit(hasher.update, read.images))
        if len(self._unhashed) > UNHASHED:
            self._unhashed.popleft().result()
        if read.actions is not None:
            fingerprint = hashing.submit(hasher.finish, read.actions)
            self._sink.finish_trajectory(span.job, span.index, fingerprint.result)

    def _pack(self, read: SpanImages) -> None:
        span = read.span
        skip = max(span.job.done[span.camera] - span.row, 0)
        images, frame = read.images[skip:], span.start + skip
        while len(images):
            batch = self._fitting(read, images)
            n_free = self._limit - batch.size
            part = images[:n_free]
            batch.parts.append(part)
            batch.names.append((span.trajectory.id, frame, len(part)))
            batch.size += len(part)
            images, frame = images[n_free:], frame + n_free
            if batch.size == self._limit:
                self._send()

    def _fitting(self, read: SpanImages, images: Array) -> _Batch:
        """Return the open batch, or a new one where camera, job or image size changes."""
        batch, span = self._batch, read.span
        if batch and (
            batch.job is not span.job
            or batch.camera != span.camera
            or batch.parts[0].shape[1:] != images.shape[1:]
        ):
            self._send()
        if self._batch is None:
            self._batch = _Batch(span.job, span.camera)
        return self._batch

    def _send(self) -> None:
        """Encode the open batch: at once, or beside what is read next.

        For a GPU its images are gathered in another thread while the one before is started.
        """
        batch, self._batch = self._batch, None
        if batch is None:
            return
        ahead = int(getattr(self._encoder, "ahead", 0))
        if not ahead:
            vectors = self._encoder.encode(_gather(batch.parts))
            self._flying.append(_Flight(batch, wait=lambda: vectors))
        else:
            gather = getattr(self._encoder, "gather", _gather)
            self._flying.append(_Flight(batch, self._gathering.submit(gather, batch.parts)))
            self._start(GATHERED)
        self._land(ahead)

    def _start(self, n_waiting: int) -> None:
        """Start batches until no more than `left` wait for that."""
        waiting = [flight for flight in self._flying if flight.gathered is not None]
        for flight in waiting[: max(0, len(waiting) - n_waiting)]:
            assert flight.gathered is not None
            assert isinstance(flight.batch, _Batch)
            start: Any = getattr(self._encoder, "start", None)
            flight.wait = start(flight.gathered.result())
            flight.gathered, flight.batch.parts = None, []

    def _land(self, n_waiting: int) -> None:
        """Wait for batches until no more than `left` are under way; ends of jobs follow them."""
        started = sum(flight.wait is not None for flight in self._flying)
        while self._flying:
            batch, wait = self._flying[0].batch, self._flying[0].wait
            if isinstance(batch, EmbeddingJob):
                self._sink.end_job(batch)
            elif wait is not None and started > n_waiting:
                started -= 1
                where = partial(_where, batch, self._cameras)
                vectors = check_vectors(self._encoder, wait(), batch.size, where)
                self._sink.add_rows(batch.job, batch.camera, vectors)
            else:
                return
            self._flying.popleft()


def _gather(parts: Sequence[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _where(batch: _Batch, cameras: tuple[str, ...], index: int) -> str:
    """Return which frame a row of a batch is."""
    for name, first, count in batch.names:
        if index < count:
            return f"trajectory '{name}', camera '{cameras[batch.camera]}', frame {first + index}"
        index -= count
    raise IndexError(index)
