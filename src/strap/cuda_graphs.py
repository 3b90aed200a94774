"""A training step that is recorded as a CUDA graph: replaying it is one launch, not a thousand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

WARMUP = 4
"""Eager steps before recording, in which cuDNN and the optimiser initialise their state."""
AHEAD = 2
"""Largest number of unfinished replays on the GPU."""


class RecordedStep:
    """A step that runs eagerly at first, is then recorded, and after that replayed.

    All tensors that `compute` reads or changes, except its inputs, must keep their memory address.
    """

    def __init__(
        self,
        compute: Callable[..., None],
        optimizer: torch.optim.Optimizer,
        device: torch.device,
    ) -> None:
        self.compute, self.optimizer, self.device = compute, optimizer, device
        self._inputs: list[Tensor] = []
        self._stream: torch.cuda.Stream | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._steps = 0
        self._replayed: deque[torch.cuda.Event] = deque()

    def __call__(self, *inputs: Tensor) -> None:
        """Run a step; its inputs are in host memory and have the same shapes in every call."""
        with torch.cuda.device(self.device):
            if not self._inputs:
                self._inputs = [torch.zeros_like(given, device=self.device) for given in inputs]
                self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            for resident, given in zip(self._inputs, inputs, strict=True):
                resident.copy_(given.pin_memory(), non_blocking=True)
            if self._graph is not None:
                self._graph.replay()
                self._sleep_while_ahead()
            elif self._steps < WARMUP:
                self._compute_aside()
            else:
                self._record()
            self._steps += 1

    def _compute_aside(self) -> None:
        """Run an eager step in a separate stream, as CUDA requires before a recording."""
        assert self._stream is not None
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            self.compute(*self._inputs)
        current.wait_stream(self._stream)

    def _record(self) -> None:
        torch.cuda.synchronize()
        self.optimizer.zero_grad(set_to_none=True)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=self._stream):
            self.compute(*self._inputs)
        # Recording does not execute the step, so the first replay does.
        self._graph.replay()

    def _sleep_while_ahead(self) -> None:
        """Sleep until an earlier replay is done; CUDA would wait for its full queue busily."""
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record()
        self._replayed.append(event)
        if len(self._replayed) > AHEAD:
            self._replayed.popleft().synchronize()
