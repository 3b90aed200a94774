"""Move the arm like a teleoperator: bounded speed, smooth starts, small errors corrected.

Every action of a demonstration passes through `Arm.step`, which records it with the state before
it and its skill. The arm ends an attempt by raising `Solved` or `Failed`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.spatial.transform import Rotation

from strap.libero.environment import CLOSED, OPEN
from strap.libero.expert.scene import Array, Scene

SKILLS = ("reach", "grasp", "carry", "place", "open", "close", "turn", "retreat")
"""the skills of steps, which demonstrations store for each frame"""
HOLD_STEPS = 10  # the original recordings end once success has held for ten steps
METRES_PER_UNIT = 0.05  # OSC_POSE: the translation of an action of 1
RADIANS_PER_UNIT = 0.5
MAX_TURN = 0.6  # largest rotation command
MAX_CHANGE = 0.35  # largest change of a command from step to step
# The Panda's lengths: base to shoulder, wrist to the hand's axis, wrist to the grip point.
SHOULDER, WRIST_OFFSET, HAND_LENGTH = 0.333, 0.088, 0.204
STRETCH = 0.68  # metres from shoulder to wrist, of 0.70 at full stretch
MAX_TILT = 0.7
# Gripper pointing straight down, its fingers closing along the world's y axis.
_DOWN = Rotation.from_matrix(np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, -1.0]]))


class Solved(Exception):  # noqa: N818 - not an error: the attempt has reached its end
    """The task has been solved and has stayed solved."""


class Failed(Exception):  # noqa: N818
    """This attempt can no longer succeed."""


class Unreachable(Failed):
    """No plan was found that the hand can follow."""


@dataclass(frozen=True)
class Style:
    """The style of one demonstration's motions.

    No step waits: fingers close as soon as the hand arrives, and the hand moves on as soon as they
    stop. A policy with a short history cannot see how long it has stood still, and would learn to
    stay there.
    """

    speed: float = 0.9  # largest translation command, in units of the action
    noise: float = 0.04  # standard deviation of the error added to each command
    hover: float = 0.08  # metres above the object at which the approach ends
    sway: float = 0.015  # largest random shift of waypoints in metres


@dataclass(frozen=True)
class Frame:
    """One recorded step."""

    state: Array  # before the action
    action: Array  # [7] as executed
    intended: Array  # [7] without the error
    skill: str
    object_name: str  # the object of the skill


def point_down(yaw: float) -> Rotation:
    """Return the rotation of a hand that points down, turned by `yaw` about the vertical."""
    return Rotation.from_euler("z", yaw) * _DOWN


def yaw_along(direction: Array) -> float:
    """Return the yaw at which the fingers close along a horizontal direction."""
    return wrap_yaw(float(np.arctan2(direction[1], direction[0])) - np.pi / 2)


def wrap_yaw(angle: float) -> float:
    """Return the equivalent yaw from −π/2 to π/2: half a turn only swaps the fingers."""
    return float((angle + np.pi / 2) % np.pi - np.pi / 2)


def tilt_towards(direction: Array, angle: float) -> Rotation:
    """Return the rotation by an angle from pointing down towards a horizontal direction [3]."""
    return Rotation.from_rotvec(np.cross([0.0, 0.0, -1.0], direction) * angle)


def relieve_stretch(base: Array, position: Array) -> Rotation:
    """Return the smallest outward tilt of the hand at which the arm is not stretched at a position.

    A nearly straight arm cannot move inwards immediately, so it must stay bent.
    """
    outward = position[:2] - base[:2]
    radius = float(np.linalg.norm(outward))
    height = float(position[2] - base[2])
    for angle in np.arange(0.0, MAX_TILT + 1e-9, 0.05):
        wrist = radius - WRIST_OFFSET * np.cos(angle) - HAND_LENGTH * np.sin(angle)
        lift = height + HAND_LENGTH * np.cos(angle) - WRIST_OFFSET * np.sin(angle)
        if np.hypot(wrist, lift - SHOULDER) < STRETCH:
            break
    axis = np.array([outward[1], -outward[0], 0.0]) / max(radius, 1e-9)
    return Rotation.from_rotvec(axis * angle)


class Arm:
    """The robot arm of one attempt."""

    def __init__(
        self, scene: Scene, rng: np.random.Generator, style: Style, *, max_steps: int
    ) -> None:
        self.scene, self.env = scene, scene.env
        self.rng, self.style, self.max_steps = rng, style, max_steps
        self.frames: list[Frame] = []
        self._yaw = 0.0
        self._grip = OPEN
        self._label = ("reach", "")
        self._command = np.zeros(6)
        self._error = np.zeros(6)
        self._n_solved_steps = 0

    def begin_skill(self, skill: str, object_name: str) -> None:
        """Label the following steps with one of `SKILLS` and its object."""
        self._label = (skill, object_name)

    def position(self) -> Array:
        """Return the position [3] of the point between the finger tips."""
        return self.scene.hand_pose()[0]

    def rotation(self) -> Rotation:
        """Return the rotation of the hand."""
        return Rotation.from_matrix(self.scene.hand_pose()[1])

    def step(self, command: Array) -> None:
        """Send one translation and rotation command [6], after smoothing it and adding an error."""
        self._error = 0.7 * self._error + self.style.noise * self.rng.normal(size=6)
        change = np.clip(command - self._command, -MAX_CHANGE, MAX_CHANGE)
        self._command = self._command + change
        motion = np.clip(self._command + self._error * (np.abs(self._command).max() > 0.05), -1, 1)
        action = np.concatenate([motion, [self._grip]])
        intended = np.concatenate([np.clip(self._command, -1, 1), [self._grip]])
        self.frames.append(Frame(self.env.state(), action, intended, *self._label))
        is_solved = self.env.step(action)
        self._n_solved_steps = self._n_solved_steps + 1 if is_solved else 0
        if self._n_solved_steps >= HOLD_STEPS:
            raise Solved
        if len(self.frames) >= self.max_steps:
            raise Failed(f"not solved within {self.max_steps} steps ({' '.join(self._label)})")

    def move(
        self,
        target: Array,
        *,
        yaw: float | None = None,
        rotation: Rotation | None = None,
        tolerance: float = 0.01,
        angle_tolerance: float = 0.10,
        speed: float = 1.0,
        max_steps: int = 80,
        until: Callable[[], bool] | None = None,
    ) -> bool:
        """Move to a position [3] and orientation; return whether the hand arrived or `until` holds.

        The motion ends early when `until` holds, or when the hand stops getting nearer.
        """
        self._yaw = self._yaw if yaw is None else yaw
        tilt = relieve_stretch(self.scene.base_position(), np.asarray(target))
        aim = rotation or tilt * point_down(self._yaw)
        limit = self.style.speed * speed
        nearest, n_stalled = np.inf, 0
        for _ in range(max_steps):
            here, attitude = self.scene.hand_pose()
            offset = np.asarray(target) - here
            turn = (aim * Rotation.from_matrix(attitude).inv()).as_rotvec()
            distance, angle = float(np.linalg.norm(offset)), float(np.linalg.norm(turn))
            if distance < tolerance and angle < angle_tolerance:
                return True
            if until is not None and until():
                return True
            if distance + 0.1 * angle < nearest - 5e-4:
                nearest, n_stalled = distance + 0.1 * angle, 0
            else:
                n_stalled += 1
            if n_stalled >= 12:
                return False
            push = offset / METRES_PER_UNIT * 1.6
            push *= min(1.0, limit / max(float(np.linalg.norm(push)), 1e-9))
            twist = np.clip(turn / RADIANS_PER_UNIT * 1.5, -MAX_TURN, MAX_TURN)
            self.step(np.concatenate([push, twist]))
        return False

    def pause(self, steps: int) -> None:
        """Stand still for some steps."""
        for _ in range(steps):
            self.step(np.zeros(6))

    def close_fingers(self) -> None:
        """Close the fingers and wait until they have stopped."""
        self._grip = CLOSED
        self._wait_for_fingers(12)

    def open_fingers(self) -> None:
        """Open the fingers and wait until they have stopped."""
        self._grip = OPEN
        self._wait_for_fingers(8)

    def _wait_for_fingers(self, max_steps: int) -> None:
        gap = self.scene.finger_gap()
        for count in range(max_steps):
            self.pause(1)
            before, gap = gap, self.scene.finger_gap()
            if count >= 4 and abs(gap - before) < 1e-3:
                break
