"""Videos decoded by processes of their own.

Decoders let go of the interpreter while they work, but come back to it several times for every
frame: more than a few threads wait for each other more than they decode (16 processors: 2,800
images a second by 8 threads and 2,000 by 16, but 4,000 and 5,200 by as many processes). A process
is asked for a piece, writes its frames to memory that both know as a file without a name, and the
thread that asked reads them from there at once.

Processes are started as programs of their own, so that a script that calls `embed` is not run again
in each of them. One that dies is a warning: its frames are read here.
"""

from __future__ import annotations

import os
import pickle
import queue
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import numpy as np

from strap.datasets.base import Dataset
from strap.embeddings.frames import Piece, frames_of
from strap.errors import StrapError
from strap.processors import share
from strap.types import Array

VIDEOS = {".mp4", ".mkv", ".webm", ".avi", ".mov"}
WORTH = 10_000
"""images from which on processes pay: they take a second to start"""
Images: TypeAlias = Callable[[Piece, str], Array]
"""a piece and its camera -> images [n h w 3]"""


def pays(dataset: Dataset, images: int, workers: int) -> bool:
    """Whether a dataset of about so many images is better read by processes."""
    if not hasattr(os, "memfd_create") or workers < 4 or images < WORTH:
        return False
    return any(file.suffix in VIDEOS for file in dataset[dataset.ids[0]].source.files)


@contextmanager
def decoders(dataset: Dataset, count: int) -> Iterator[Images]:
    """So many processes that read a dataset's images; as many threads may ask at a time."""
    try:
        sent = pickle.dumps(dataset)
    except (pickle.PicklingError, AttributeError, TypeError):  # a reader of the user's own
        yield frames_of
        return
    free: queue.LifoQueue[_Helper | None] = queue.LifoQueue()
    helpers = [_Helper(sent, count) for _ in range(count)]
    for helper in helpers:
        free.put(helper)

    def images(piece: Piece, camera: str) -> Array:
        helper = free.get()
        try:
            if helper is not None:
                return helper.images(piece, camera)
        except (EOFError, OSError):
            helper = None
            warnings.warn("a process that decodes videos was killed (memory?)", stacklevel=2)
        finally:
            free.put(helper)
        return frames_of(piece, camera)

    try:
        yield images
    finally:
        for helper in helpers:
            helper.end()


class _Helper:
    """One process, and what is said to it."""

    def __init__(self, dataset: bytes, count: int) -> None:
        ours, theirs = socket.socketpair()
        self._memory = os.memfd_create("strap-frames")
        numbers = [theirs.fileno(), self._memory]
        words = [sys.executable, "-c", f"from {__name__} import main; main()"]
        words += map(str, [*numbers, count])
        with theirs:
            # A session of its own: Ctrl-C is the parent's business, and its end is theirs.
            self._process = subprocess.Popen(
                words, pass_fds=numbers, stdin=subprocess.DEVNULL, start_new_session=True
            )
        self._line = Connection(ours.detach())
        self._first: bytes | None = dataset

    def images(self, piece: Piece, camera: str) -> Array:
        """Ask for a piece and wait; EOFError or OSError where the process is gone."""
        if self._first is not None:
            self._line.send_bytes(self._first)
            self._first = None
        self._line.send((piece.trajectory.id, camera, piece.start, piece.stop))
        kind, *content = self._line.recv()
        if kind == "error":
            raise StrapError(content[0])
        shape, dtype = content
        out = np.empty(shape, dtype)
        if out.nbytes:
            _whole(os.preadv, self._memory, out)
        return out

    def end(self) -> None:
        """Without being asked any more it ends."""
        self._line.close()
        os.close(self._memory)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1)
        self._process.kill()
        self._process.wait()


def _whole(move: Callable[..., int], memory: int, array: Array) -> None:
    """Read or write all of an array, from the beginning of the memory."""
    view, done = array.reshape(-1).view(np.uint8).data, 0
    while done < len(view):
        moved = move(memory, [view[done:]], done)
        if moved == 0:
            raise EOFError
        done += moved


def _serve(line: Connection, memory: int) -> None:
    """Answer until nobody asks any more."""
    dataset: Dataset = pickle.loads(line.recv_bytes())  # the parent's own, not a file's
    while True:
        trajectory_id, camera, start, stop = line.recv()
        answer: tuple[Any, ...]
        try:
            images = np.ascontiguousarray(dataset[trajectory_id].frames(camera, start, stop))
            if images.nbytes:
                _whole(os.pwritev, memory, images)
            answer = "images", images.shape, images.dtype.str
        except StrapError as error:
            answer = "error", str(error)
        line.send(answer)


def main() -> None:
    """What such a process runs."""
    line, memory, count = map(int, sys.argv[1:])
    share(count)
    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        _serve(Connection(line), memory)
