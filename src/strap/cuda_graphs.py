"""A training step recorded once as a CUDA graph and replayed: a thousand launches become one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

WARMUP = 4
"""Eager steps before a graph is recorded: cuDNN and the optimiser settle in them."""
AHEAD = 2
"""steps that may wait on the GPU for those before them"""


class RecordedStep:
    """Eager at first, then recorded, then replayed.

    What `compute` reads besides its inputs, and what it changes, must stay where it is in memory.
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
        """Do a step; its inputs lie in host memory and have the same shapes every time."""
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
        """Do an eager step in a stream of its own, as recording wants it."""
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
        # Recording runs nothing: this step's work is done by the first replay.
        self._graph.replay()

    def _sleep_while_ahead(self) -> None:
        """Wait for an earlier replay, asleep: CUDA itself waits for a full queue at full load."""
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record()
        self._replayed.append(event)
        if len(self._replayed) > AHEAD:
            self._replayed.popleft().synchronize()
