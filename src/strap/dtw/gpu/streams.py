"""CUDA streams: what runs concurrently on each device.

Frames are read and sent while the device works on earlier ones.

Local costs occupy the tensor cores, their recurrence the memory and the integer units. So one
batch's recurrence runs while the next batch's local costs are computed. The local costs run in a
foreground stream of high priority, which gets every multiprocessor that it can fill. The recurrence
runs in a background stream, which gets the others.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch

from strap.cpus import count_cpus
from strap.dtw.batching import TrajectoryBatch
from strap.dtw.types import Frames

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
N_AHEAD = 3  # batches that are prepared in advance
MAX_COPY_THREADS = 8  # that fill page-locked memory: more are not faster
# Dtypes that the kernels read; all others are converted to float64.
DEVICE_DTYPES = {np.dtype(np.float16): torch.float16, np.dtype(np.float32): torch.float32}


class _Streams(NamedTuple):
    foreground: torch.cuda.Stream
    background: torch.cuda.Stream
    copies: torch.cuda.Stream


@cache
def _get_streams(device: torch.device) -> _Streams:
    """Return the device's streams, always the same: torch reuses freed memory per stream."""
    make = partial(torch.cuda.Stream, device)
    return _Streams(make(priority=-1), make(priority=0), make(priority=0))


@contextlib.contextmanager
def _use_foreground(device: torch.device) -> Iterator[None]:
    """Launch the kernels inside the context on this device, in its foreground stream.

    Triton launches on torch's current device, whatever device its arguments are on.
    """
    if device.type != "cuda":
        yield
        return
    foreground = _get_streams(device).foreground
    foreground.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.device(device), torch.cuda.stream(foreground):
        yield
    torch.cuda.current_stream(device).wait_stream(foreground)


def run_on_devices(
    devices: Sequence[torch.device], tasks: Sequence[Callable[[], ResultT]]
) -> list[ResultT]:
    """Run each task on its device, in a thread per device; return their results."""

    def run(device: torch.device, task: Callable[[], ResultT]) -> ResultT:
        with torch.inference_mode(), _use_foreground(device):  # both are per thread
            return task()

    if len(devices) == 1:
        return [run(devices[0], tasks[0])]
    with ThreadPoolExecutor(len(devices)) as pool:
        return list(pool.map(run, devices, tasks))


class CostWorkspace:
    """Two alternating buffers for local costs: one is filled while the other is read."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        n_buffers = 2 if device.type == "cuda" else 1
        self._buffers = [self._allocate(0) for _ in range(n_buffers)]
        self._was_read: list[torch.cuda.Event | None] = [None] * n_buffers
        self._current = 0

    def take_buffer(self, n_frames: int, n_rows: int) -> torch.Tensor:
        """Return the next buffer as [frame, row], with arbitrary contents."""
        self._current = current = (self._current + 1) % len(self._buffers)
        was_read = self._was_read[current]
        if was_read is not None:
            torch.cuda.current_stream(self._device).wait_event(was_read)
        size = n_frames * n_rows
        if self._buffers[current].numel() < size:
            self._buffers[current] = self._allocate(0)  # frees the old one first
            self._buffers[current] = self._allocate(size)
        return self._buffers[current][:size].view(n_frames, n_rows)

    @contextlib.contextmanager
    def read_in_background(self, *inputs: torch.Tensor) -> Iterator[None]:
        """Launch the kernels inside the context in the background; they read the last buffer taken.

        Args:
            inputs: other tensors that they read, whose memory must not be reused before.
        """
        if self._device.type != "cuda":
            yield
            return
        background = _get_streams(self._device).background
        background.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(background):
            yield
            self._was_read[self._current] = background.record_event()
        for tensor in inputs:
            tensor.record_stream(background)

    def join_background(self) -> None:
        """Make everything launched next wait for the background stream."""
        if self._device.type == "cuda":
            background = _get_streams(self._device).background
            torch.cuda.current_stream(self._device).wait_stream(background)

    def _allocate(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint16, device=self._device)


@dataclass(frozen=True, eq=False)
class SentFrames:
    """Frames that are on the device as soon as `arrived` has happened."""

    frames: torch.Tensor  # [frame, dimension]
    arrived: torch.cuda.Event | None

    def wait(self) -> torch.Tensor:
        """Return the frames, safe to use in the current stream."""
        if self.arrived is not None:
            stream = torch.cuda.current_stream(self.frames.device)
            stream.wait_event(self.arrived)
            self.frames.record_stream(stream)
        return self.frames


Upload: TypeAlias = tuple[TrajectoryBatch, SentFrames]


def upload_batches(batches: Iterable[TrajectoryBatch], device: torch.device) -> Iterator[Upload]:
    """Send batches to a device; a thread reads, copies and sends the next ones in advance."""
    with ThreadPoolExecutor(min(MAX_COPY_THREADS, count_cpus())) as pool:
        pinned = ((batch, pin_frames(batch.frames, device, pool)) for batch in batches)
        yield from send_ahead(pinned, device)


def pin_frames(
    trajectories: Sequence[Frames], device: torch.device, pool: ThreadPoolExecutor
) -> torch.Tensor:
    """Concatenate trajectories to [frame, dimension] in page-locked memory.

    Only copies from page-locked memory run concurrently with kernels. torch reuses this memory.
    """
    dtypes = {frames.dtype for frames in trajectories}
    dtype = DEVICE_DTYPES.get(np.result_type(*dtypes), torch.float64)
    ends = np.cumsum([len(frames) for frames in trajectories])
    shape = int(ends[-1]), trajectories[0].shape[1]
    pinned = torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")
    target = pinned.numpy()

    def copy(frames: Frames, end: int) -> None:
        np.copyto(target[end - len(frames) : end], frames, casting="same_kind")

    list(pool.map(copy, trajectories, ends))
    return pinned


def send_ahead(
    pinned: Iterable[tuple[ItemT, torch.Tensor]], device: torch.device
) -> Iterator[tuple[ItemT, SentFrames]]:
    """Send each item's frames to a device; a thread makes and sends the next ones in advance."""
    stream = _get_streams(device).copies if device.type == "cuda" else None
    in_flight: deque[torch.cuda.Event] = deque()

    def send(item: ItemT, frames: torch.Tensor) -> tuple[ItemT, SentFrames]:
        if stream is None:
            return item, SentFrames(frames.to(device), None)
        if len(in_flight) == N_AHEAD - 1:
            in_flight.popleft().synchronize()  # so that page-locked memory can be reused
        with torch.cuda.stream(stream):
            sent = frames.to(device, non_blocking=True)
            in_flight.append(stream.record_event())
        return item, SentFrames(sent, in_flight[-1])

    return prefetch(send(*pair) for pair in pinned)


def prefetch(items: Iterable[ItemT]) -> Iterator[ItemT]:
    """Yield the items; a thread makes up to `N_AHEAD` of them in advance."""
    iterator = iter(items)
    pool = ThreadPoolExecutor(1)
    try:
        ahead = deque(pool.submit(next, iterator, None) for _ in range(N_AHEAD))
        while (item := ahead.popleft().result()) is not None:
            ahead.append(pool.submit(next, iterator, None))
            yield item
    finally:
        pool.shutdown(cancel_futures=True)
