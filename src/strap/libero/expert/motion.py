"""Moving the arm as a teleoperator would: bounded speed, smooth starts, small errors put right.

Every action of a demonstration passes through `Arm.step`, which records it with the state before
it and what it was for. The arm stops the attempt by raising `Solved` or `Failed`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from strap.libero.environment import CLOSED, OPEN, LiberoEnv
from strap.libero.expert.scene import Scene

Array = NDArray[np.float64]

SKILLS = ("reach", "grasp", "carry", "place", "open", "close", "turn", "retreat")
HOLD_STEPS = 10  # the original recordings end once success has held for ten steps
METRES_PER_UNIT = 0.05  # OSC_POSE: what an action of 1 asks for
RADIANS_PER_UNIT = 0.5
MAX_TURN = 0.6  # largest rotation command
# The Panda's lengths: shoulder above the base, wrist to the hand's axis, wrist to the grip point.
SHOULDER, WRIST_OFFSET, HAND_LENGTH = 0.333, 0.088, 0.204
STRETCH = 0.68  # metres from shoulder to wrist, of 0.70 at full stretch
MAX_TILT = 0.7
# Gripper pointing straight down, its fingers closing along the world's y axis.
_DOWN = Rotation.from_matrix(np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, -1.0]]))


class Solved(Exception):  # noqa: N818 - not an error: the attempt has reached its end
    """The task has been solved and has stayed so."""


class Failed(Exception):  # noqa: N818
    """This attempt can't succeed any more."""


class Unreachable(Failed):
    """No way was found in which the hand could do it."""


@dataclass(frozen=True)
class Style:
    """How one demonstration is carried out; drawn anew for each attempt.

    Nothing in it waits: fingers close where the hand arrives and the hand moves on once they have
    stopped. A policy with a short memory can't see how long it has stood still, and learns to stay.
    """

    speed: float = 0.9  # largest translation command, in units of the action
    noise: float = 0.04  # standard deviation of the error added to each command
    hover: float = 0.08  # metres above the object at which the approach ends
    sway: float = 0.015  # metres by which waypoints vary

    @staticmethod
    def draw(rng: np.random.Generator, noise: float) -> Style:
        """A teleoperator of the day."""
        return Style(
            speed=float(rng.uniform(0.75, 1.0)),
            noise=noise,
            hover=float(rng.uniform(0.06, 0.10)),
        )


@dataclass(frozen=True)
class Frame:
    """One recorded step."""

    state: Array  # before the action
    action: Array  # [7] as executed
    intended: Array  # [7] without the error
    skill: str
    thing: str


def pointing_down(yaw: float) -> Rotation:
    """The hand pointing down, turned by `yaw` about the vertical."""
    return Rotation.from_euler("z", yaw) * _DOWN


def yaw_along(direction: Array) -> float:
    """The yaw at which the fingers close along a horizontal direction."""
    return wrap(float(np.arctan2(direction[1], direction[0])) - np.pi / 2)


def wrap(angle: float) -> float:
    """The same hand, its fingers swapped where that turns it less."""
    return float((angle + np.pi / 2) % np.pi - np.pi / 2)


def tilt_towards(direction: Array, angle: float) -> Rotation:
    """The turn of the hand from pointing down towards pointing in a horizontal direction [3]."""
    return Rotation.from_rotvec(np.cross([0.0, 0.0, -1.0], direction) * angle)


def reach_tilt(base: Array, position: Array) -> Rotation:
    """The least outward tilt of the hand with which the arm isn't stretched at a position.

    Near full stretch the arm can't move inwards at once: it has to be kept bent.
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
        self.yaw = 0.0
        self.grip = OPEN
        self._label = ("reach", "")
        self._command = np.zeros(6)
        self._error = np.zeros(6)
        self._solved_for = 0

    @property
    def environment(self) -> LiberoEnv:
        """The environment this arm acts in."""
        return self.env

    def begin(self, skill: str, thing: str) -> None:
        """Name what the following steps are for."""
        self._label = (skill, thing)

    def position(self) -> Array:
        """Where the point between the finger tips is [3]."""
        return self.scene.hand()[0]

    def step(self, command: Array) -> None:
        """Send one translation and rotation command [6], smoothed and with a little error."""
        self._error = 0.7 * self._error + self.style.noise * self.rng.normal(size=6)
        change = np.clip(command - self._command, -0.35, 0.35)
        self._command = self._command + change
        motion = np.clip(self._command + self._error * (np.abs(self._command).max() > 0.05), -1, 1)
        action = np.concatenate([motion, [self.grip]])
        intended = np.concatenate([np.clip(self._command, -1, 1), [self.grip]])
        self.frames.append(Frame(self.env.state(), action, intended, *self._label))
        solved = self.env.step(action)
        self._solved_for = self._solved_for + 1 if solved else 0
        if self._solved_for >= HOLD_STEPS:
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
        """Go to a position [3] and orientation; whether it got there.

        Ends early when `until` holds, and when the arm has stopped getting nearer.
        """
        self.yaw = self.yaw if yaw is None else yaw
        tilt = reach_tilt(self.scene.base(), np.asarray(target))
        aim = rotation or tilt * pointing_down(self.yaw)
        limit = self.style.speed * speed
        nearest, stalled = np.inf, 0
        for _ in range(max_steps):
            here, attitude = self.scene.hand()
            offset = np.asarray(target) - here
            turn = (aim * Rotation.from_matrix(attitude).inv()).as_rotvec()
            distance, angle = float(np.linalg.norm(offset)), float(np.linalg.norm(turn))
            if distance < tolerance and angle < angle_tolerance:
                return True
            if until is not None and until():
                return True
            if distance + 0.1 * angle < nearest - 5e-4:
                nearest, stalled = distance + 0.1 * angle, 0
            else:
                stalled += 1
            if stalled >= 12:
                return False
            push = offset / METRES_PER_UNIT * 1.6
            push *= min(1.0, limit / max(float(np.linalg.norm(push)), 1e-9))
            twist = np.clip(turn / RADIANS_PER_UNIT * 1.5, -MAX_TURN, MAX_TURN)
            self.step(np.concatenate([push, twist]))
        return False

    def pause(self, steps: int) -> None:
        """Stand still."""
        for _ in range(steps):
            self.step(np.zeros(6))

    def close_fingers(self) -> float:
        """Close until the fingers have stopped; the gap that is left."""
        self.grip = CLOSED
        return self._wait_for_fingers(12)

    def open_fingers(self) -> None:
        """Open the fingers and wait until they have parted."""
        self.grip = OPEN
        self._wait_for_fingers(8)

    def _wait_for_fingers(self, max_steps: int) -> float:
        gap = self.scene.finger_gap()
        for count in range(max_steps):
            self.pause(1)
            before, gap = gap, self.scene.finger_gap()
            if count >= 4 and abs(gap - before) < 1e-3:
                break
        return gap
