"""Decoding of videos in separate processes.

Decoders release the interpreter lock while they work, but take it several times for every frame.
So many threads spend more time waiting for each other than decoding: on 16 cores, 8 and 16 threads
decode 2,800 and 2,000 images a second, 8 and 16 processes 4,000 and 5,200. A thread asks a process
for a span; the process writes the frames to a file in memory without a name, which both have open;
the thread reads them from there.

If a process dies, there is a warning and its frames are read in this process.
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

from strap.cpus import share_cpus
from strap.datasets.base import Dataset
from strap.embeddings.frames import FrameSpan, read_frames
from strap.types import Array
from strap.workers import Worker, WorkerError, serve

VIDEOS = {".mp4", ".mkv", ".webm", ".avi", ".mov"}
MIN_IMAGES = 10_000
"""the number of images from which on processes are faster: they take a second to start"""
Images: TypeAlias = Callable[[FrameSpan, str], Array]
"""a function from a span and its camera to images [n h w 3]"""


def has_videos(dataset: Dataset) -> bool:
    """Return whether a dataset's images are stored in videos."""
    return any(file.suffix in VIDEOS for file in dataset[dataset.ids[0]].source.files)


def is_worth_processes(images: int, workers: int) -> bool:
    """Return whether processes read about `images` images of videos faster than threads."""
    return hasattr(os, "memfd_create") and workers >= 4 and images >= MIN_IMAGES


@contextmanager
def decoder_processes(count: int) -> Iterator[Callable[[Dataset], Images]]:
    """Start `count` processes that decode images; yield a function from a dataset to its reader.

    The reader may be called by `count` threads at a time.
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
    except (pickle.PicklingError, AttributeError, TypeError):  # a user's own dataset format
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
    """A process that decodes frames, and the memory through which it returns them."""

    def __init__(self, count: int) -> None:
        self._memory = os.memfd_create("strap-frames")
        self._dataset = b""
        self.worker = Worker(_serve_frames, self._memory, count, descriptors=[self._memory])

    def images(self, dataset: bytes, span: FrameSpan, camera: str) -> Array:
        """Return a span's images; raise `WorkerError` if the process is gone.

        The pickled dataset is sent only if it is not the one of the last call.
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
    """Read or write a whole array at the start of the memory."""
    view, done = array.reshape(-1).view(np.uint8).data, 0
    while done < len(view):
        moved = move(memory, [view[done:]], done)
        if moved == 0:
            raise EOFError
        done += moved


def _serve_frames(line: Connection, memory: int, count: int) -> None:
    """Decode in a worker; answer each request with the shape and dtype of the images in memory."""
    share_cpus(count)
    dataset: Dataset

    def answer(request: tuple[bytes | None, str, str, int, int]) -> tuple[tuple[int, ...], str]:
        nonlocal dataset
        pickled, trajectory_id, camera, start, stop = request
        if pickled is not None:
            dataset = pickle.loads(pickled)  # sent by the parent process, not read from a file
        images = np.ascontiguousarray(dataset[trajectory_id].frames(camera, start, stop))
        if images.nbytes:
            _move_all(os.pwritev, memory, images)
        return images.shape, images.dtype.str

    serve(line, answer)
