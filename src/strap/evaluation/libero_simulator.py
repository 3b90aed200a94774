"""LIBERO's tasks as simulators, with the names of cameras and states that datasets use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from strap.errors import StrapError
from strap.evaluation.simulators import Action, Simulator, TimeStep

if TYPE_CHECKING:
    from strap.libero.environment import LiberoEnv

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


def make_libero(suite: str, task: int, size: int, demos: str = "") -> Simulator:
    """Open a LIBERO task with the benchmark's fixed initial states, or those of demonstrations."""
    from strap.libero.environment import LiberoEnv
    from strap.libero.tasks import find_task

    return LiberoSimulator(LiberoEnv(find_task(suite, task), size=size), demos)


class LiberoSimulator:
    """A `LiberoEnv` whose observations have the names that datasets use."""

    def __init__(
        self, env: LiberoEnv, demos: str = "", *, cameras: Sequence[str] = LIBERO_CAMERAS
    ) -> None:
        self.env, self.demos, self.cameras = env, demos, cameras

    def begin(self, state: int) -> TimeStep:
        """Reset to a fixed initial state, or a demonstration's, after the settling steps."""
        if self.demos:
            self._begin_at_demonstration(f"demo_{state}")
        else:
            self.env.fixed(state)
        return self._observe(self.env.solved())

    def sample(self, seed: int) -> TimeStep:
        """Reset to a random placement drawn with the seed, after the settling steps."""
        self.env.sample(seed)
        return self._observe(self.env.solved())

    def _begin_at_demonstration(self, demo: str) -> None:
        """Reset to the first state of a recorded demonstration."""
        import h5py

        with h5py.File(self.demos, "r") as file:
            if demo not in file["data"]:
                raise StrapError(f"'{self.demos}' has no {demo}: it has {len(file['data'])} demos")
            group = file["data"][demo]
            first, model = group["states"][0], str(group.attrs["model_file"])
        self.env.place_fixtures(model)
        self.env.restore(first)

    def step(self, action: Action) -> TimeStep:
        """Apply an action for 1/20 of a second."""
        return self._observe(self.env.step(np.clip(action, -1, 1)))

    def _observe(self, solved: bool) -> TimeStep:
        observed = self.env.observe([name.removesuffix("_rgb") for name in self.cameras])
        goals = {" ".join(goal.as_list()): self.env.holds(goal) for goal in self.env.task.goals}
        images = {f"{name}_rgb": observed.upright(name) for name in observed.images}
        state = {key: np.asarray(getattr(observed, key)) for key in LIBERO_STATES}
        return TimeStep(images, state, solved, goals)
