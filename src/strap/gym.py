"""LIBERO's tasks as Gymnasium environments; importing this module registers them.

    import gymnasium

    env = gymnasium.make("strap.gym:strap/libero-10-v0", task=5)

Gymnasium imports the module before the colon. The simulator is loaded when an environment is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from strap.errors import StrapError, shorten, unknown
from strap.evaluation.libero_simulator import (
    LIBERO_ACTION,
    LIBERO_CAMERAS,
    LIBERO_STATES,
    LiberoSimulator,
)
from strap.evaluation.simulators import HORIZON, TimeStep
from strap.types import Array

SUITES = ("libero_10", "libero_90", "libero_spatial", "libero_object", "libero_goal")
"""Suites that are registered with an id; for others use `LiberoGymEnv(suite, task)`."""
RATE = 20
"""Actions per second."""
ARM_NOISE = 0.02
"""How much the joints vary at the start of an episode, in radians, as in demonstrations."""
LARGEST = {
    "ee_pos": 3.0,
    "ee_ori": 2 * np.pi,
    "ee_states": 2 * np.pi,
    "gripper_states": 0.1,
    "joint_states": 2 * np.pi,
    "robot_states": 3.0,
}
"""Bounds of the proprioception's values, in metres and radians; the arm reaches 0.9 m."""

Seen = dict[str, Array]
Command = npt.NDArray[np.float32]


def environment_id(suite: str) -> str:
    """Return the id under which a suite's tasks are registered.

    >>> environment_id("libero_10")
    'strap/libero-10-v0'
    """
    return f"strap/{suite.replace('_', '-')}-v0"


class LiberoGymEnv(gymnasium.Env[Any, Command]):
    """A LIBERO task at 20 Hz as a Gymnasium environment.

    Observations have the same names as in our datasets and policies: upright uint8 images by
    camera, and the proprioception as float32. The reward is 1 when the task is solved, which ends
    the episode.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": RATE}  # noqa: RUF012

    def __init__(
        self,
        suite: str,
        task: str | int = 0,
        *,
        cameras: Sequence[str] = LIBERO_CAMERAS,
        image_size: int = 128,
        demos: str | Path = "",
        render_mode: str | None = None,
    ) -> None:
        """Load a task.

        Args:
            suite: `libero_10`, `libero_90` and so on.
            task: its number, or a part of its instruction that no other task of the suite has.
            cameras: the cameras of the observations; with none, nothing is rendered.
            image_size: side of the images in pixels.
            demos: an HDF5 file with demonstrations of this task. Initial state i is then the start
                of demonstration i, instead of the benchmark's state i.
            render_mode: `rgb_array`, or None.
        """
        from strap.libero.environment import LiberoEnv
        from strap.libero.tasks import find_task

        for name in cameras:
            if name not in LIBERO_CAMERAS:
                raise unknown("camera", name, LIBERO_CAMERAS)
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise unknown("render_mode", render_mode, self.metadata["render_modes"])
        chosen = find_task(suite, task)
        self.instruction = chosen.instruction
        self.render_mode = render_mode
        shown = bool(cameras) or render_mode is not None
        self._env = LiberoEnv(chosen, size=image_size, cameras=shown, arm_noise=ARM_NOISE)
        self._simulator = LiberoSimulator(self._env, str(demos), cameras=tuple(cameras))
        self.observation_space = spaces.Dict(_describe_observation(cameras, image_size))
        self.action_space = spaces.Box(-1, 1, (LIBERO_ACTION,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Seen, dict[str, Any]]:
        """Start an episode from a random placement of the objects, drawn with the seed.

        With `options={"initial_state": 3}` it starts from the benchmark's fixed initial state with
        that number, or from the start of that demonstration in `demos`.
        """
        super().reset(seed=seed)
        state = _read_options(options)
        if state is None:
            seen = self._simulator.sample(int(self.np_random.integers(2**31)))
        else:
            seen = self._simulator.begin(state)
        return _observe(seen), self._inform(seen)

    def step(self, action: Command) -> tuple[Seen, float, bool, bool, dict[str, Any]]:
        """Apply one action [7]; values outside −1 … 1 are clipped."""
        seen = self._simulator.step(_read_action(action))
        return _observe(seen), float(seen.solved), seen.solved, False, self._inform(seen)

    def render(self) -> Array | None:
        """Return the upright image of the agent view; None if `render_mode` is not set."""
        if self.render_mode is None:
            gymnasium.logger.warn(
                "render() shows nothing without a render_mode: make the environment with "
                'render_mode="rgb_array"'
            )
            return None
        return self._env.observe(["agentview"]).upright("agentview")

    def close(self) -> None:
        """Free the simulator; safe to call twice."""
        self._env.close()

    def _inform(self, seen: TimeStep) -> dict[str, Any]:
        """Return the instruction, whether the task is solved, and which of its goals hold."""
        return {
            "instruction": self.instruction,
            "is_success": seen.solved,
            "goals": dict(seen.goals),
        }


def _describe_observation(cameras: Sequence[str], size: int) -> list[tuple[str, spaces.Box]]:
    """Return the cameras' spaces, then the proprioception's in alphabetical order."""
    images = [(name, spaces.Box(0, 255, (size, size, 3), np.uint8)) for name in cameras]
    state = [
        (key, spaces.Box(-LARGEST[key], LARGEST[key], (LIBERO_STATES[key],), np.float32))
        for key in sorted(LIBERO_STATES)
    ]
    return [*images, *state]


def _observe(seen: TimeStep) -> Seen:
    state = {key: seen.proprioception[key].astype(np.float32) for key in sorted(LIBERO_STATES)}
    return {**seen.images, **state}


def _read_options(options: Mapping[str, Any] | None) -> int | None:
    """Return the initial state's number from the options of `reset`; None if not given."""
    for name in options or {}:
        if name != "initial_state":
            raise unknown("option of reset", name, ["initial_state"])
    state = (options or {}).get("initial_state")
    if state is None:
        return None
    if isinstance(state, bool) or not isinstance(state, int | np.integer):
        raise StrapError(
            f"the initial state is {shorten(repr(state))}: give its number, as "
            'options={"initial_state": 3}'
        )
    return int(state)


def _read_action(action: object) -> npt.NDArray[np.float64]:
    command = np.asarray(action, dtype=np.float64)
    if command.shape != (LIBERO_ACTION,) or not np.isfinite(command).all():
        raise StrapError(
            f"the action is {shorten(str(command.tolist()))}: give {LIBERO_ACTION} finite numbers "
            "from -1 to 1, the gripper's last"
        )
    return command


for _suite in SUITES:
    gymnasium.register(
        environment_id(_suite),
        entry_point=f"{__name__}:LiberoGymEnv",
        max_episode_steps=HORIZON,
        kwargs={"suite": _suite},
    )
