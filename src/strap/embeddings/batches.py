"""Frames packed into batches, encoded, and handed on row by row."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from strap.embeddings.frames import Piece, Read, frames_of, pieces, read_ahead
from strap.embeddings.work import Job
from strap.encoders import Encoder, check_vectors
from strap.types import Array, ContentHasher

UNHASHED = 8
"""pieces that may wait to be hashed; bounds the memory"""
HASHERS = 4
"""threads that hash at most: one makes 3,000 to 4,000 images of 256×256 a second"""


class Sink(Protocol):
    """Takes what was encoded."""

    def rows(self, job: Job, camera: int, vectors: Array) -> None:
        """The next rows of a camera."""

    def whole(self, job: Job, index: int, fingerprint: Callable[[], str]) -> None:
        """A trajectory's frames have all been read; its rows are there or come before long."""

    def end(self, job: Job) -> None:
        """The job's last row has come."""


@dataclass
class _Batch:
    job: Job
    camera: int
    names: list[tuple[str, int]] = field(default_factory=list)
    """(trajectory, frame) of the first frame of each part, for messages"""
    parts: list[Array] = field(default_factory=list)
    size: int = 0


class Packer:
    """Fills batches across the borders of trajectories, in the order of the rows."""

    def __init__(self, encoder: Encoder, cameras: tuple[str, ...], batch: int, sink: Sink) -> None:
        self._encoder, self._cameras, self._limit, self._sink = encoder, cameras, batch, sink
        self._batch: _Batch | None = None
        self._flying: deque[tuple[_Batch | Job, Callable[[], Array] | None]] = deque()
        self._hashers: dict[int, ContentHasher] = {}
        self._unhashed: deque[Future[None]] = deque()

    def run(
        self,
        jobs: Iterable[Job],
        workers: int,
        images: Callable[[Piece, str], Array] = frames_of,
    ) -> None:
        """Embed the jobs; `images` reads a piece."""
        todo = (piece for job in jobs for piece in pieces(job, self._cameras))
        with ExitStack() as stack:
            hashing = [
                stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="hash"))
                for _ in range(min(HASHERS, workers))
            ]
            for read in read_ahead(todo, self._cameras, workers, images):
                self._hash(read, hashing[read.piece.index % len(hashing)])
                self._pack(read)
                if read.piece.final:
                    self._send()
                    self._hashers.clear()
                    self._flying.append((read.piece.job, None))
            self._land(0)

    def _hash(self, read: Read, hashing: ThreadPoolExecutor) -> None:
        """In a thread, always the same for a trajectory, whose pieces must come in order."""
        piece = read.piece
        hasher = self._hashers.setdefault(piece.index, ContentHasher(piece.trajectory))
        self._unhashed.append(hashing.submit(hasher.update, read.images))
        if len(self._unhashed) > UNHASHED:
            self._unhashed.popleft().result()
        if read.actions is not None:
            fingerprint = hashing.submit(hasher.finish, read.actions)
            self._sink.whole(piece.job, piece.index, fingerprint.result)

    def _pack(self, read: Read) -> None:
        piece = read.piece
        skip = max(piece.job.done[piece.camera] - piece.row, 0)
        images, frame = read.images[skip:], piece.start + skip
        while len(images):
            batch = self._fitting(read, images)
            room = self._limit - batch.size
            batch.parts.append(images[:room])
            batch.names.append((piece.trajectory.id, frame))
            batch.size += len(batch.parts[-1])
            images, frame = images[room:], frame + room
            if batch.size == self._limit:
                self._send()

    def _fitting(self, read: Read, images: Array) -> _Batch:
        """The open batch, or a new one where camera, job or image size changes."""
        batch, piece = self._batch, read.piece
        if batch and (
            batch.job is not piece.job
            or batch.camera != piece.camera
            or batch.parts[0].shape[1:] != images.shape[1:]
        ):
            self._send()
        if self._batch is None:
            self._batch = _Batch(piece.job, piece.camera)
        return self._batch

    def _send(self) -> None:
        batch, self._batch = self._batch, None
        if batch is None:
            return
        images = batch.parts[0] if len(batch.parts) == 1 else np.concatenate(batch.parts)
        ahead = int(getattr(self._encoder, "ahead", 0))
        if ahead:
            start: Any = getattr(self._encoder, "start", None)
            self._flying.append((batch, start(images)))
        else:
            vectors = self._encoder.encode(images)
            self._flying.append((batch, lambda: vectors))
        self._land(ahead)

    def _land(self, left: int) -> None:
        """Wait for batches until no more than `left` are under way; ends of jobs follow them."""
        batches = sum(wait is not None for _, wait in self._flying)
        while self._flying and (batches > left or self._flying[0][1] is None):
            landed, wait = self._flying.popleft()
            if isinstance(landed, Job) or wait is None:
                assert isinstance(landed, Job)
                self._sink.end(landed)
                continue
            batches -= 1
            where = partial(_where, landed, self._cameras)
            vectors = check_vectors(self._encoder, wait(), landed.size, where)
            self._sink.rows(landed.job, landed.camera, vectors)


def _where(batch: _Batch, cameras: tuple[str, ...], index: int) -> str:
    """Which frame a row of a batch is."""
    for part, (name, first) in zip(batch.parts, batch.names, strict=True):
        if index < len(part):
            return f"trajectory '{name}', camera '{cameras[batch.camera]}', frame {first + index}"
        index -= len(part)
    raise IndexError(index)
