"""Environments in processes of their own, spoken to over a pipe."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from strap.errors import StrapError
from strap.types import Array

if TYPE_CHECKING:
    from strap.libero.environment import LiberoEnv

Action = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Seen:
    """What an environment shows after a reset or a step."""

    images: Mapping[str, Array]
    """camera -> uint8 [h w 3], upright"""
    proprioception: Mapping[str, Array]
    solved: bool
    goals: Mapping[str, bool]
    """sub-goal -> whether it holds now"""


class Simulator(Protocol):
    """One task that can be begun from numbered initial states."""

    def begin(self, state: int) -> Seen:
        """Go to an initial state, settled."""

    def step(self, action: Action) -> Seen:
        """Apply one action."""


Maker = Callable[..., Simulator]


class Worker:
    """A simulator in a process of its own; `send` does not wait, `receive` does."""

    def __init__(self, maker: Maker, arguments: tuple[Any, ...]) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, maker, arguments), daemon=True)
        self.process.start()
        theirs.close()

    def begin(self, state: int) -> None:
        """Ask for a reset."""
        self.connection.send(("begin", state))

    def step(self, action: Action) -> None:
        """Ask for a step."""
        self.connection.send(("step", action))

    def receive(self) -> Seen | str:
        """What was asked for, or in words why it did not come."""
        try:
            answer: Seen | str = self.connection.recv()
            return answer
        except (EOFError, OSError):
            self.process.join(5)
            return f"its process ended (exit code {self.process.exitcode})"

    def close(self) -> None:
        """End the process."""
        self.connection.close()
        self.process.terminate()
        self.process.join(10)
        if self.process.is_alive():
            self.process.kill()


def _serve(connection: Connection, maker: Maker, arguments: tuple[Any, ...]) -> None:
    simulator: Simulator | None = None
    while True:
        try:
            what, value = connection.recv()
        except EOFError:
            return
        try:
            simulator = simulator or maker(*arguments)
            connection.send(simulator.begin(value) if what == "begin" else simulator.step(value))
        except Exception as error:
            connection.send(f"{type(error).__name__}: {error}")
            return


def make_libero(suite: str, task: int, size: int, demos: str = "") -> Simulator:
    """A LIBERO task on the benchmark's fixed initial states, or those of demonstrations."""
    from strap.libero.environment import LiberoEnv
    from strap.libero.tasks import find_task

    return LiberoSimulator(LiberoEnv(find_task(suite, task), size=size), demos)


class LiberoSimulator:
    """A `LiberoEnv`, its observations under the names that datasets use."""

    def __init__(self, env: LiberoEnv, demos: str = "") -> None:
        self.env, self.demos = env, demos

    def begin(self, state: int) -> Seen:
        """The benchmark's initial state of that number, after its settling steps."""
        if self.demos:
            self._begin_as(f"demo_{state}")
        else:
            self.env.fixed(state)
        return self._see(self.env.solved())

    def _begin_as(self, demo: str) -> None:
        """Where a recorded demonstration begins."""
        import h5py

        with h5py.File(self.demos, "r") as file:
            if demo not in file["data"]:
                raise StrapError(f"'{self.demos}' has no {demo}: it has {len(file['data'])} demos")
            group = file["data"][demo]
            first, model = group["states"][0], str(group.attrs["model_file"])
        self.env.place_fixtures(model)
        self.env.restore(first)

    def step(self, action: Action) -> Seen:
        """A twentieth of a second."""
        return self._see(self.env.step(np.clip(action, -1, 1)))

    def _see(self, solved: bool) -> Seen:
        seen = self.env.observe()
        goals = {" ".join(goal.as_list()): self.env.holds(goal) for goal in self.env.task.goals}
        images = {f"{name}_rgb": seen.upright(name) for name in seen.images}
        state = {key: np.asarray(getattr(seen, key)) for key in LIBERO_STATES}
        return Seen(images, state, solved, goals)


LIBERO_CAMERAS = ("agentview_rgb", "eye_in_hand_rgb")
LIBERO_STATES = {
    "ee_pos": 3,
    "ee_ori": 3,
    "ee_states": 6,
    "gripper_states": 2,
    "joint_states": 7,
    "robot_states": 9,
}
LIBERO_ACTION = 7
