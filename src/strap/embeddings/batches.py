"""Packing of frames into batches, encoding of the batches, and delivery of the vectors."""

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

MAX_UNHASHED_SPANS = 8
"""spans that may wait to be hashed; bounds the memory"""
MAX_HASH_THREADS = 4
"""one thread hashes 3,000 to 4,000 images of 256×256 a second"""
MAX_GATHERED_BATCHES = 1
"""batches whose images may wait in one tensor for a GPU; bounds its memory"""


class Sink(Protocol):
    """The receiver of the vectors."""

    def add_rows(self, job: EmbeddingJob, camera: int, vectors: Array) -> None:
        """Receive the next rows of a camera."""

    def finish_trajectory(
        self, job: EmbeddingJob, index: int, fingerprint: Callable[[], str]
    ) -> None:
        """Receive a trajectory's fingerprint: all its frames are read, its rows may come later."""

    def end_job(self, job: EmbeddingJob) -> None:
        """Finish the job, whose last rows have been received."""


@dataclass
class _Batch:
    job: EmbeddingJob
    camera: int
    names: list[tuple[str, int, int]] = field(default_factory=list)
    """(trajectory, first frame, number of frames) of each part, for messages"""
    parts: list[Array] = field(default_factory=list)
    size: int = 0


@dataclass
class _Pending:
    """A batch whose vectors have not been delivered, or a job to end after its batches."""

    batch: _Batch | EmbeddingJob
    gathered: Future[Any] | None = None
    """its images in one tensor, until it is started"""
    wait: Callable[[], Array] | None = None
    """the function that waits for its vectors, once it is started"""


class Packer:
    """Packs frames of successive trajectories into full batches and encodes them in order."""

    def __init__(self, encoder: Encoder, cameras: tuple[str, ...], batch: int, sink: Sink) -> None:
        self._encoder, self._cameras, self._limit, self._sink = encoder, cameras, batch, sink
        self._batch: _Batch | None = None
        self._pending: deque[_Pending] = deque()
        self._hashers: dict[int, ContentHasher] = {}
        self._unhashed: deque[Future[None]] = deque()

    def run(
        self,
        jobs: Iterable[EmbeddingJob],
        workers: int,
        images: Callable[[FrameSpan, str], Array] = read_frames,
    ) -> None:
        """Embed the jobs.

        Args:
            jobs: the jobs, in order.
            workers: threads that read frames.
            images: reads the images of a span by a camera.
        """
        todo = (span for job in jobs for span in split_job(job, self._cameras))
        with ExitStack() as stack:
            hashing = [
                stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="hash"))
                for _ in range(min(MAX_HASH_THREADS, workers))
            ]
            self._gathering = stack.enter_context(
                ThreadPoolExecutor(1, thread_name_prefix="gather")
            )
            for read in read_ahead(todo, self._cameras, workers, images):
                self._hash(read, hashing[read.span.index % len(hashing)])
                self._pack(read)
                if read.span.final:
                    self._submit()
                    self._hashers.clear()
                    self._pending.append(_Pending(read.span.job))
            self._start(0)
            self._deliver(0)

    def _hash(self, read: SpanImages, hashing: ThreadPoolExecutor) -> None:
        """Hash a span in a thread; one thread hashes all spans of a trajectory, in order."""
        span = read.span
        hasher = self._hashers.setdefault(span.index, ContentHasher(span.trajectory))
        self._unhashed.append(hashing.submit(hasher.update, read.images))
        if len(self._unhashed) > MAX_UNHASHED_SPANS:
            self._unhashed.popleft().result()
        if read.actions is not None:
            fingerprint = hashing.submit(hasher.finish, read.actions)
            self._sink.finish_trajectory(span.job, span.index, fingerprint.result)

    def _pack(self, read: SpanImages) -> None:
        span = read.span
        skip = max(span.job.done[span.camera] - span.row, 0)
        images, frame = read.images[skip:], span.start + skip
        while len(images):
            batch = self._batch_for(read, images)
            n_free = self._limit - batch.size
            part = images[:n_free]
            batch.parts.append(part)
            batch.names.append((span.trajectory.id, frame, len(part)))
            batch.size += len(part)
            images, frame = images[n_free:], frame + n_free
            if batch.size == self._limit:
                self._submit()

    def _batch_for(self, read: SpanImages, images: Array) -> _Batch:
        """Return the open batch, or a new one if the camera, job or image size changes."""
        batch, span = self._batch, read.span
        if batch and (
            batch.job is not span.job
            or batch.camera != span.camera
            or batch.parts[0].shape[1:] != images.shape[1:]
        ):
            self._submit()
        if self._batch is None:
            self._batch = _Batch(span.job, span.camera)
        return self._batch

    def _submit(self) -> None:
        """Encode the open batch: at once, or on a GPU while the next frames are read.

        For a GPU, a thread gathers the batch's images while the batch before it is started.
        """
        batch, self._batch = self._batch, None
        if batch is None:
            return
        ahead = int(getattr(self._encoder, "ahead", 0))
        if not ahead:
            vectors = self._encoder.encode(_gather(batch.parts))
            self._pending.append(_Pending(batch, wait=lambda: vectors))
        else:
            gather = getattr(self._encoder, "gather", _gather)
            self._pending.append(_Pending(batch, self._gathering.submit(gather, batch.parts)))
            self._start(MAX_GATHERED_BATCHES)
        self._deliver(ahead)

    def _start(self, n_waiting: int) -> None:
        """Start gathered batches, the oldest first, until at most `n_waiting` are not started."""
        waiting = [pending for pending in self._pending if pending.gathered is not None]
        for pending in waiting[: max(0, len(waiting) - n_waiting)]:
            assert pending.gathered is not None
            assert isinstance(pending.batch, _Batch)
            start: Any = getattr(self._encoder, "start", None)
            pending.wait = start(pending.gathered.result())
            pending.gathered, pending.batch.parts = None, []

    def _deliver(self, n_waiting: int) -> None:
        """Deliver started batches until at most `n_waiting` remain, and end jobs that are done."""
        started = sum(pending.wait is not None for pending in self._pending)
        while self._pending:
            batch, wait = self._pending[0].batch, self._pending[0].wait
            if isinstance(batch, EmbeddingJob):
                self._sink.end_job(batch)
            elif wait is not None and started > n_waiting:
                started -= 1
                where = partial(_name_frame, batch, self._cameras)
                vectors = check_vectors(self._encoder, wait(), batch.size, where)
                self._sink.add_rows(batch.job, batch.camera, vectors)
            else:
                return
            self._pending.popleft()


def _gather(parts: Sequence[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _name_frame(batch: _Batch, cameras: tuple[str, ...], index: int) -> str:
    """Return the trajectory, camera and frame at an index of a batch, for messages."""
    for name, first, count in batch.names:
        if index < count:
            return f"trajectory '{name}', camera '{cameras[batch.camera]}', frame {first + index}"
        index -= count
    raise IndexError(index)
