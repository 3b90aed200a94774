"""Simulators in worker processes: a crashed one is replaced, and its episode is repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from strap.errors import StrapError
from strap.types import Array
from strap.workers import Assignment, Supervisor, Worker, WorkerError, serve

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

Action = npt.NDArray[np.float64]

HORIZON = 520
"""steps after which an episode counts as failed; LIBERO-10's demonstrations take up to 505"""
RETRIES = 2
"""number of times that a crashed episode is repeated"""
SILENCE = 600.0
"""seconds without an answer from any simulator after which a rollout is given up"""


@dataclass(frozen=True, eq=False)
class TimeStep:
    """The observation and goals of an environment after a reset or a step."""

    images: Mapping[str, Array]
    """camera -> uint8 [h w 3], upright"""
    proprioception: Mapping[str, Array]
    solved: bool
    goals: Mapping[str, bool]
    """sub-goal -> whether it holds now"""


class Simulator(Protocol):
    """A simulated task with numbered initial states."""

    def begin(self, state: int) -> TimeStep:
        """Reset to an initial state, after its settling steps."""

    def step(self, action: Action) -> TimeStep:
        """Apply one action and return the next observation."""


Maker = Callable[..., Simulator]


def serve_simulator(line: Connection, maker: Maker, arguments: tuple[Any, ...]) -> None:
    """Create a simulator in a worker; answer requests ("begin", state) and ("step", action)."""
    simulator = maker(*arguments)

    def answer(request: tuple[str, Any]) -> TimeStep:
        what, value = request
        return simulator.begin(value) if what == "begin" else simulator.step(value)

    serve(line, answer)


class SimulatorPool:
    """Simulators in processes. Each runs one initial state at a time, under a slot number."""

    def __init__(
        self, maker: Maker, arguments: tuple[Any, ...], states: Sequence[int], n_workers: int
    ) -> None:
        start = partial(Worker, serve_simulator, maker, arguments)
        self._supervisor = Supervisor(start, states, workers=n_workers, attempts=RETRIES + 1)
        self._running: dict[int, Assignment[int]] = {}
        self.lost: dict[int, Exception] = {}
        """initial state -> the last error of its simulator, if it crashed every time; or the
        StrapError that it raised, which it would raise again"""

    def __enter__(self) -> SimulatorPool:
        return self

    def __exit__(self, *_: object) -> None:
        self._supervisor.__exit__()

    @property
    def n_unfinished(self) -> int:
        """The number of initial states that are waiting or running."""
        return self._supervisor.n_unfinished

    def begin(self) -> dict[int, int]:
        """Start waiting initial states in free slots; return slot -> initial state."""
        assignments = self._supervisor.assign()
        for assignment in assignments:
            self._running[assignment.slot] = assignment
            assignment.worker.send(("begin", assignment.job))
        return {assignment.slot: assignment.job for assignment in assignments}

    def receive(self) -> dict[int, TimeStep]:
        """Wait for observations; return slot -> observation, in order of slots.

        The initial state of a crashed simulator waits for a new one, or is lost. That of one that
        raises a StrapError is lost.
        """
        ready = self._supervisor.wait(SILENCE)
        if not ready:
            raise StrapError(
                f"no environment has answered for {SILENCE:.0f} s: use fewer --workers; finished "
                "episodes are kept"
            )
        observations: dict[int, TimeStep] = {}
        for assignment in ready:
            try:
                observations[assignment.slot] = assignment.worker.receive()
            except StrapError as error:
                self._supervisor.finish(self._running.pop(assignment.slot))
                self.lost[assignment.job] = error
            except WorkerError as error:
                del self._running[assignment.slot]
                if not self._supervisor.retry(assignment):
                    self.lost[assignment.job] = error
        return observations

    def step(self, slot: int, action: Action) -> None:
        """Send the next action to a simulator."""
        self._running[slot].worker.send(("step", action))

    def finish(self, slot: int) -> None:
        """Mark a slot's initial state as done; its simulator takes the next one."""
        self._supervisor.finish(self._running.pop(slot), keep_worker=True)
