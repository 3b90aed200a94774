"""Videos decoded by processes of their own.

Decoders let go of the interpreter while they work, but come back to it several times for every
frame: more than a few threads wait for each other more than they decode (16 processors: 2,800
images a second by 8 threads and 2,000 by 16, but 4,000 and 5,200 by as many processes). A process
is asked for a span, writes its frames to memory that both know as a file without a name, and the
thread that asked reads them from there at once.

A process that dies is a warning: its frames are read here.
"""

from __future__ import annotations

import os
import pickle
import queue
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import TypeAlias

import numpy as np

from strap.datasets.base import Dataset
from strap.embeddings.frames import FrameSpan, read_frames
from strap.processors import share
from strap.types import Array
from strap.workers import Worker, WorkerError, serve

VIDEOS = {".mp4", ".mkv", ".webm", ".avi", ".mov"}
MIN_IMAGES = 10_000
"""images from which on processes pay: they take a second to start"""
Images: TypeAlias = Callable[[FrameSpan, str], Array]
"""a span and its camera -> images [n h w 3]"""


def pays(dataset: Dataset, images: int, workers: int) -> bool:
    """Return whether a dataset of about so many images is better read by processes."""
    if not hasattr(os, "memfd_create") or workers < 4 or images < MIN_IMAGES:
        return False
    return any(file.suffix in VIDEOS for file in dataset[dataset.ids[0]].source.files)


@contextmanager
def decoders(dataset: Dataset, count: int) -> Iterator[Images]:
    """Give so many processes that read a dataset's images; as many threads may ask at a time."""
    try:
        sent = pickle.dumps(dataset)
    except (pickle.PicklingError, AttributeError, TypeError):  # a reader of the user's own
        yield read_frames
        return
    free: queue.LifoQueue[FrameDecoder | None] = queue.LifoQueue()
    started = [FrameDecoder(sent, count) for _ in range(count)]
    for decoder in started:
        free.put(decoder)

    def images(span: FrameSpan, camera: str) -> Array:
        decoder = free.get()
        try:
            if decoder is not None:
                return decoder.images(span, camera)
        except (WorkerError, EOFError) as error:
            decoder = None
            warnings.warn(
                f"a process that decodes videos was killed (memory?): {error}", stacklevel=2
            )
        finally:
            free.put(decoder)
        return read_frames(span, camera)

    try:
        yield images
    finally:
        for decoder in started:
            decoder.close()


class FrameDecoder:
    """A worker that decodes, and the memory through which its frames come."""

    def __init__(self, dataset: bytes, count: int) -> None:
        self._memory = os.memfd_create("strap-frames")
        self.worker = Worker(
            _serve_frames, dataset, self._memory, count, descriptors=[self._memory]
        )

    def images(self, span: FrameSpan, camera: str) -> Array:
        """Ask for a span's images and wait; `WorkerError` where the process is gone."""
        self.worker.send((span.trajectory.id, camera, span.start, span.stop))
        shape, dtype = self.worker.receive()
        out = np.empty(shape, dtype)
        if out.nbytes:
            _move_all(os.preadv, self._memory, out)
        return out

    def close(self) -> None:
        """End the process."""
        self.worker.close()
        os.close(self._memory)


def _move_all(move: Callable[..., int], memory: int, array: Array) -> None:
    """Read or write all of an array, from the beginning of the memory."""
    view, done = array.reshape(-1).view(np.uint8).data, 0
    while done < len(view):
        moved = move(memory, [view[done:]], done)
        if moved == 0:
            raise EOFError
        done += moved


def _serve_frames(line: Connection, pickled: bytes, memory: int, count: int) -> None:
    """Decode in a worker; answer each request with the shape and dtype of what is in memory."""
    share(count)
    dataset: Dataset = pickle.loads(pickled)  # the parent's own, not a file's

    def answer(request: tuple[str, str, int, int]) -> tuple[tuple[int, ...], str]:
        trajectory_id, camera, start, stop = request
        images = np.ascontiguousarray(dataset[trajectory_id].frames(camera, start, stop))
        if images.nbytes:
            _move_all(os.pwritev, memory, images)
        return images.shape, images.dtype.str

    serve(line, answer)
