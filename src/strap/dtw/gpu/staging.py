"""Getting frames onto a device while it works on those that came before."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from strap.dtw.batching import Batch as Piece
from strap.dtw.gpu.frames import as_tensor
from strap.processors import processors

T = TypeVar("T")
AHEAD = 2  # pieces on their way while one is worked on
COPIERS = 8  # threads that fill pinned memory: more don't make it faster


@dataclass(frozen=True, eq=False)
class Staged:
    """A piece whose frames are on the device, or will be when `arrived` has happened."""

    piece: Piece
    frames: torch.Tensor
    arrived: torch.cuda.Event | None

    def wait(self) -> torch.Tensor:
        """The frames, safe to be used by what the current stream does next."""
        if self.arrived is not None:
            stream = torch.cuda.current_stream(self.frames.device)
            stream.wait_event(self.arrived)
            self.frames.record_stream(stream)
        return self.frames


def ahead(items: Iterable[T], depth: int) -> Iterator[T]:
    """The items, up to `depth` of them made in a thread before they are asked for."""
    ready: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(maxsize=depth)
    stopped = threading.Event()

    def offer(item: T | None, error: BaseException | None) -> None:
        while not stopped.is_set():
            with contextlib.suppress(queue.Full):
                ready.put((item, error), timeout=0.1)
                return

    def produce() -> None:
        try:
            for item in items:
                offer(item, None)
                if stopped.is_set():
                    return
            offer(None, None)
        except BaseException as error:
            offer(None, error)

    worker = threading.Thread(target=produce, daemon=True)
    worker.start()
    try:
        while True:
            item, error = ready.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item
    finally:
        stopped.set()
        worker.join()


class Pinned:
    """Page-locked buffers, used in turn: only from such memory do copies run beside the work."""

    def __init__(self, count: int) -> None:
        self._buffers = [torch.empty(0, dtype=torch.uint8) for _ in range(count)]
        self._free: list[torch.cuda.Event | None] = [None] * count
        self._next = 0

    def fill(self, piece: Piece, pool: ThreadPoolExecutor) -> tuple[torch.Tensor, int]:
        """The piece's frames end to end in the next buffer, and that buffer's number."""
        number = self._next
        self._next = (number + 1) % len(self._buffers)
        event = self._free[number]
        if event is not None:
            event.synchronize()
        dtype = as_tensor(piece.frames[0][:1]).dtype
        total, dim = int(piece.offsets[-1]), piece.frames[0].shape[1]
        size = total * dim * dtype.itemsize
        if self._buffers[number].numel() < size:
            self._buffers[number] = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        out = self._buffers[number][:size].view(dtype).view(total, dim)
        target, offsets = out.numpy(), piece.offsets

        def copy(i: int) -> None:
            np.copyto(target[offsets[i] : offsets[i + 1]], piece.frames[i], casting="safe")

        list(pool.map(copy, range(len(piece.frames))))
        return out, number

    def used(self, number: int, event: torch.cuda.Event) -> None:
        """The buffer may be filled again after this event."""
        self._free[number] = event


def staged(pieces: Iterable[Piece], device: torch.device) -> Iterator[Staged]:
    """The pieces on a device, read, copied and sent ahead in a thread of their own."""
    if device.type != "cuda":
        for piece in pieces:
            yield Staged(piece, as_tensor(np.concatenate(piece.frames)).to(device), None)
        return
    with ThreadPoolExecutor(min(COPIERS, processors())) as pool:
        yield from ahead(_sent(pieces, device, pool), AHEAD)


def _sent(
    pieces: Iterable[Piece], device: torch.device, pool: ThreadPoolExecutor
) -> Iterator[Staged]:
    pinned, stream = Pinned(AHEAD + 1), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    for piece in pieces:
        host, number = pinned.fill(piece, pool)
        frames, event = send(host, stream)
        pinned.used(number, event)
        yield Staged(piece, frames, event)


def send(host: torch.Tensor, stream: torch.cuda.Stream) -> tuple[torch.Tensor, torch.cuda.Event]:
    """Start copying pinned memory to the stream's device."""
    with torch.cuda.stream(stream):
        frames = host.to(stream.device, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(stream)
    return frames, event
