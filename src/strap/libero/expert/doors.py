"""Doors that swing on an upright hinge."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from strap.libero.expert.motion import Arm, pointing_down, tilt_towards, yaw_along
from strap.libero.expert.pick_and_place import travel
from strap.libero.expert.scene import Joint
from strap.libero.tasks import Goal

Array = NDArray[np.float64]

UP = np.array([0.0, 0.0, 1.0])
TILT = np.radians((68, 78))  # of the hand that pulls a door open: 0 is pointing down
AJAR = 0.55  # radians by which a door is pulled at its handle, then pushed from inside
FOLLOW = 0.4  # of the door's turn that the hand makes while it pulls


def open_door(arm: Arm, goal: Goal) -> None:
    """Pull a door at its handle until the fingers fit behind it, then push it open from inside."""
    joint = arm.scene.joint(goal.subject)
    handle, outward = _handle(arm, joint)
    along = np.cross(UP, outward)
    hand = tilt_towards(-outward, arm.rng.uniform(*TILT)) * pointing_down(yaw_along(along))
    _pull(arm, joint, handle, hand)
    arm.begin("retreat", joint.fixture)
    arm.open_fingers()
    hand = Rotation.from_matrix(arm.scene.hand()[1])
    back = arm.position() - hand.as_matrix()[:, 2] * 0.07
    arm.move(back, rotation=hand, tolerance=0.02, angle_tolerance=0.3, max_steps=40)
    _push_from_inside(arm, goal)


def _pull(arm: Arm, joint: Joint, handle: Array, hand: Rotation) -> None:
    """Take a handle from the front and pull it round the hinge."""
    sense = _opening(joint)
    ready = handle - hand.as_matrix()[:, 2] * 0.10
    arm.begin("reach", joint.fixture)
    travel(arm, ready + UP * 0.12, yaw=0.0, clearance=0.05)
    arm.move(ready, rotation=hand, tolerance=0.012, angle_tolerance=0.08, max_steps=90)
    arm.move(handle, rotation=hand, tolerance=0.006, angle_tolerance=0.1, speed=0.5, max_steps=60)
    arm.begin("grasp", joint.fixture)
    arm.close_fingers()
    arm.begin("open", joint.fixture)
    for angle in np.arange(0.05, AJAR + 0.3, 0.05):
        arm.move(
            _turned(handle, joint, sense * angle),
            rotation=Rotation.from_euler("z", sense * angle * FOLLOW) * hand,
            tolerance=0.012,
            angle_tolerance=0.3,
            speed=0.5,
            max_steps=10,
        )
        if abs(arm.scene.joint(joint.fixture).position - joint.position) > AJAR:
            break


def _push_from_inside(arm: Arm, goal: Goal) -> None:
    joint = arm.scene.joint(goal.subject)
    sense, top, spoke = _opening(joint), _top(arm, joint), _spoke(arm, joint)

    def inside(angle: float, gap: float) -> Array:
        turned = _turned(joint.anchor + 0.85 * spoke, joint, sense * angle)
        tangent = sense * np.cross(UP, turned - joint.anchor) * [1, 1, 0]
        point = turned - gap * tangent / np.linalg.norm(tangent)
        return np.array([point[0], point[1], top - 0.045])

    angles = np.arange(0.1, abs(joint.opened - joint.position) + 0.3, 0.1)
    _push(arm, goal, inside, angles, Push(gap=0.06, above=0.06, tolerance=0.015, rest=4))


def close_door(arm: Arm, goal: Goal) -> None:
    """Push a hinged door round its hinge with closed fingers."""
    joint = arm.scene.joint(goal.subject)
    boxes = arm.scene.boxes(joint.body)
    centres = np.array([(low + high) / 2 for low, high in boxes])
    tip = centres[np.linalg.norm((centres - joint.anchor)[:, :2], axis=1).argmax()]
    middle = float(np.mean([(low[2] + high[2]) / 2 for low, high in boxes])) + 0.05
    arm_of_door = (tip - joint.anchor)[:2]
    sense = np.sign(joint.closed - joint.position) * np.sign(joint.axis[2])

    def behind(angle: float, gap: float) -> Array:
        cos, sin = np.cos(angle), np.sin(angle)
        spoke = np.array([[cos, -sin], [sin, cos]]) @ arm_of_door
        tangent = np.array([-spoke[1], spoke[0]]) / np.linalg.norm(spoke)
        return np.array([*(joint.anchor[:2] + spoke - sense * gap * tangent), middle])

    angles = np.linspace(0.05, abs(joint.position - joint.closed) + 0.35, 30) * sense
    _push(arm, goal, behind, angles, Push(gap=0.10, above=0.08, tolerance=0.02, rest=8))


@dataclass(frozen=True)
class Push:
    """How a door is pushed; in metres and steps."""

    gap: float  # before the door, where the fingers go down
    above: float  # the door's top, from where they do
    tolerance: float  # of that place
    rest: int  # steps to stand still at the end


def _push(
    arm: Arm,
    goal: Goal,
    point: Callable[[float, float], Array],
    angles: Iterable[float],
    push: Push,
) -> None:
    """Push a door round its hinge with closed fingers until the goal holds.

    point: where the fingers are when the door has turned by an angle, a gap before it.
    """
    joint = arm.scene.joint(goal.subject)
    arm.begin("reach", joint.fixture)
    arm.close_fingers()
    start = point(0.0, push.gap)
    over = np.array([start[0], start[1], _top(arm, joint) + push.above])
    travel(arm, over, yaw=0.0, clearance=0.05)
    arm.move(start, tolerance=push.tolerance, max_steps=60)
    arm.begin(goal.predicate, joint.fixture)
    for angle in angles:
        arm.move(point(angle, 0.015), tolerance=0.02, speed=0.7, max_steps=8)
        if arm.env.holds(goal):
            break
    arm.pause(push.rest)
    arm.begin("retreat", joint.fixture)
    arm.move(arm.position() + UP * 0.10, tolerance=0.03, max_steps=30)
    arm.open_fingers()


def _handle(arm: Arm, joint: Joint) -> tuple[Array, Array]:
    """The middle of a closed door's handle, and the direction [3] in which the door faces."""
    outward = _opening(joint) * np.cross(UP, _spoke(arm, joint))
    outward /= np.linalg.norm(outward)
    low, high = arm.scene.foremost(joint.body, outward)
    return (low + high) / 2, outward


def _opening(joint: Joint) -> float:
    """The sense, 1 or −1 about the vertical, in which a door opens."""
    return float(np.sign(joint.opened - joint.closed) * np.sign(joint.axis[2]))


def _spoke(arm: Arm, joint: Joint) -> Array:
    """From the hinge to the door's free edge [3], level."""
    low, high = max(arm.scene.boxes(joint.body), key=lambda box: float(np.prod(box[1] - box[0])))
    return np.asarray(2 * ((low + high) / 2 - joint.anchor) * [1, 1, 0])


def _top(arm: Arm, joint: Joint) -> float:
    return max(float(high[2]) for _, high in arm.scene.boxes(joint.body))


def _turned(point: Array, joint: Joint, angle: float) -> Array:
    """A point turned about the hinge."""
    return np.asarray(joint.anchor + Rotation.from_euler("z", angle).apply(point - joint.anchor))
