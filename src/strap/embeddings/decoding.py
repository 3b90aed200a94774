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
from contextlib import ExitStack, contextmanager
from functools import partial
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


def has_videos(dataset: Dataset) -> bool:
    """Return whether a dataset's images lie in videos."""
    return any(file.suffix in VIDEOS for file in dataset[dataset.ids[0]].source.files)


def pays(images: int, workers: int) -> bool:
    """Return whether about so many images of videos are better read by processes."""
    return hasattr(os, "memfd_create") and workers >= 4 and images >= MIN_IMAGES


@contextmanager
def decoder_processes(count: int) -> Iterator[Callable[[Dataset], Images]]:
    """Give so many processes that read the images of datasets; as many threads may ask at a time.

    What is given takes a dataset and returns what reads its images.
    """
    free: queue.LifoQueue[FrameDecoder | None] = queue.LifoQueue()
    with ExitStack() as stack:
        for _ in range(count):
            decoder = FrameDecoder(count)
            stack.callback(decoder.close)
            free.put(decoder)
        yield partial(_images_of, free)


def _images_of(free: queue.LifoQueue[FrameDecoder | None], dataset: Dataset) -> Images:
    try:
        sent = pickle.dumps(dataset)
    except (pickle.PicklingError, AttributeError, TypeError):  # a reader of the user's own
        return read_frames

    def images(span: FrameSpan, camera: str) -> Array:
        decoder = free.get()
        try:
            if decoder is not None:
                return decoder.images(sent, span, camera)
        except (WorkerError, EOFError) as error:
            decoder = None
            warnings.warn(
                f"a process that decodes videos was killed (memory?): {error}", stacklevel=2
            )
        finally:
            free.put(decoder)
        return read_frames(span, camera)

    return images


class FrameDecoder:
    """A worker that decodes, and the memory through which its frames come."""

    def __init__(self, count: int) -> None:
        self._memory = os.memfd_create("strap-frames")
        self._dataset = b""
        self.worker = Worker(_serve_frames, self._memory, count, descriptors=[self._memory])

    def images(self, dataset: bytes, span: FrameSpan, camera: str) -> Array:
        """Ask for a span's images and wait; `WorkerError` where the process is gone.

        The pickled dataset goes along where it is another than last time.
        """
        is_new, self._dataset = dataset is not self._dataset, dataset
        place = (span.trajectory.id, camera, span.start, span.stop)
        self.worker.send((dataset if is_new else None, *place))
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


def _serve_frames(line: Connection, memory: int, count: int) -> None:
    """Decode in a worker; answer each request with the shape and dtype of what is in memory."""
    share(count)
    dataset: Dataset

    def answer(request: tuple[bytes | None, str, str, int, int]) -> tuple[tuple[int, ...], str]:
        nonlocal dataset
        pickled, trajectory_id, camera, start, stop = request
        if pickled is not None:
            dataset = pickle.loads(pickled)  # the parent's own, not a file's
        images = np.ascontiguousarray(dataset[trajectory_id].frames(camera, start, stop))
        if images.nbytes:
            _move_all(os.pwritev, memory, images)
        return images.shape, images.dtype.str

    serve(line, answer)
