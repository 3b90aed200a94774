"""One piece's cells are walked through while the next one's are made.

Making cells keeps the tensor cores busy, walking through them the memory and the integer units, so
the two run on one chip beside each other: cells in a stream of high priority, which gets every
multiprocessor that it can fill, the walk in what is left of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache

import torch


@cache
def _streams(device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """Of high and of low priority, the same ones always: the allocator keeps memory by stream."""
    high = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
    low = torch.cuda.Stream(device, priority=0)  # type: ignore[no-untyped-call]
    return high, low


@contextlib.contextmanager
def foreground(device: torch.device) -> Iterator[None]:
    """What is launched in here is launched on that device, and goes before what runs beside it."""
    if device.type != "cuda":
        yield
        return
    high = _streams(device)[0]
    high.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.device(device), torch.cuda.stream(high):
        yield
    torch.cuda.current_stream(device).wait_stream(high)


class Scratch:
    """Memory for cells, two buffers in turn: one is filled while the other is read."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        turns = 2 if device.type == "cuda" else 1
        self._kept = [self._empty(0) for _ in range(turns)]
        self._read: list[torch.cuda.Event | None] = [None] * turns
        self._turn = 0

    def get(self, size: int) -> torch.Tensor:
        """[size] with whatever was left in it: the other buffer than last time."""
        self._turn = turn = (self._turn + 1) % len(self._kept)
        read = self._read[turn]
        if read is not None:
            torch.cuda.current_stream(self._device).wait_event(read)
        if self._kept[turn].numel() < size:
            self._kept[turn] = self._empty(0)
            self._kept[turn] = self._empty(size)
        return self._kept[turn][:size]

    @contextlib.contextmanager
    def beside(self, *used: torch.Tensor) -> Iterator[None]:
        """What reads the last buffer: it runs beside what is launched next.

        Args:
            used: other tensors that it reads and that may be let go before it is done.
        """
        if self._device.type != "cuda":
            yield
            return
        low = _streams(self._device)[1]
        low.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(low):
            yield
            self._read[self._turn] = low.record_event()
        for tensor in used:
            tensor.record_stream(low)

    def join(self) -> None:
        """What is launched next waits for all that ran beside."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).wait_stream(_streams(self._device)[1])

    def _empty(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint16, device=self._device)
