"""Open and close doors with an upright hinge."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from scipy.spatial.transform import Rotation

from strap.libero.expert.motion import Arm, point_down, tilt_towards, yaw_along
from strap.libero.expert.pick_and_place import travel
from strap.libero.expert.scene import UP, Array, Joint
from strap.libero.tasks import Goal

DOOR_PULL_TILT = np.radians((68, 78))  # range of the pulling hand's tilt; 0 points down
AJAR = 0.55  # radians by which a door is pulled at its handle, then pushed from inside
FOLLOW = 0.4  # share of the door's turn that the hand follows while it pulls


def open_door(arm: Arm, goal: Goal) -> None:
    """Pull a door at its handle until the fingers fit behind it, then push it open from inside."""
    joint = arm.scene.joint(goal.subject)
    handle, outward = _find_handle(arm, joint)
    along = np.cross(UP, outward)
    hand = tilt_towards(-outward, arm.rng.uniform(*DOOR_PULL_TILT)) * point_down(yaw_along(along))
    _pull(arm, joint, handle, hand)
    arm.begin_skill("retreat", joint.fixture)
    arm.open_fingers()
    hand = arm.rotation()
    back = arm.position() - hand.as_matrix()[:, 2] * 0.07
    arm.move(back, rotation=hand, tolerance=0.02, angle_tolerance=0.3, max_steps=40)
    _push_from_inside(arm, goal)


def _pull(arm: Arm, joint: Joint, handle: Array, hand: Rotation) -> None:
    """Grasp a handle from the front and pull it round the hinge."""
    sense = _opening_sense(joint)
    ready = handle - hand.as_matrix()[:, 2] * 0.10
    arm.begin_skill("reach", joint.fixture)
    travel(arm, ready + UP * 0.12, yaw=0.0, clearance=0.05)
    arm.move(ready, rotation=hand, tolerance=0.012, angle_tolerance=0.08, max_steps=90)
    arm.move(handle, rotation=hand, tolerance=0.006, angle_tolerance=0.1, speed=0.5, max_steps=60)
    arm.begin_skill("grasp", joint.fixture)
    arm.close_fingers()
    arm.begin_skill("open", joint.fixture)
    for angle in np.arange(0.05, AJAR + 0.3, 0.05):
        arm.move(
            _turn_about(handle, joint, sense * angle),
            rotation=Rotation.from_euler("z", sense * angle * FOLLOW) * hand,
            tolerance=0.012,
            angle_tolerance=0.3,
            speed=0.5,
            max_steps=10,
        )
        if abs(arm.scene.joint(joint.fixture).position - joint.position) > AJAR:
            break


def _push_from_inside(arm: Arm, goal: Goal) -> None:
    """Push an ajar door open with the fingers behind it."""
    joint = arm.scene.joint(goal.subject)
    sense, top, edge = _opening_sense(joint), _top(arm, joint), _free_edge(arm, joint)

    def inside(angle: float, gap: float) -> Array:
        turned = _turn_about(joint.anchor + 0.85 * edge, joint, sense * angle)
        tangent = sense * np.cross(UP, turned - joint.anchor) * [1, 1, 0]
        point = turned - gap * tangent / np.linalg.norm(tangent)
        return np.array([point[0], point[1], top - 0.045])

    angles = np.arange(0.1, abs(joint.opened - joint.position) + 0.3, 0.1)
    _push(arm, goal, inside, angles, gap=0.06, above=0.06, tolerance=0.015, rest=4)


def close_door(arm: Arm, goal: Goal) -> None:
    """Push a hinged door round its hinge with closed fingers."""
    joint = arm.scene.joint(goal.subject)
    boxes = arm.scene.boxes(joint.body)
    centres = np.array([(low + high) / 2 for low, high in boxes])
    tip = centres[np.linalg.norm((centres - joint.anchor)[:, :2], axis=1).argmax()]
    middle = float(np.mean([(low[2] + high[2]) / 2 for low, high in boxes])) + 0.05
    edge = (tip - joint.anchor)[:2]
    sense = np.sign(joint.closed - joint.position) * np.sign(joint.axis[2])

    def behind(angle: float, gap: float) -> Array:
        cos, sin = np.cos(angle), np.sin(angle)
        turned = np.array([[cos, -sin], [sin, cos]]) @ edge
        tangent = np.array([-turned[1], turned[0]]) / np.linalg.norm(turned)
        return np.array([*(joint.anchor[:2] + turned - sense * gap * tangent), middle])

    angles = np.linspace(0.05, abs(joint.position - joint.closed) + 0.35, 30) * sense
    _push(arm, goal, behind, angles, gap=0.10, above=0.08, tolerance=0.02, rest=8)


def _push(
    arm: Arm,
    goal: Goal,
    point: Callable[[float, float], Array],
    angles: Iterable[float],
    *,
    gap: float,
    above: float,
    tolerance: float,
    rest: int,
) -> None:
    """Push a door round its hinge with closed fingers until the goal holds.

    point: returns the position of the fingers at a gap from the door, turned by an angle; gap,
    above: metres from the door and over its top at which the fingers go down; tolerance: of their
    position after that; rest: number of steps to stand still at the end.
    """
    joint = arm.scene.joint(goal.subject)
    arm.begin_skill("reach", joint.fixture)
    arm.close_fingers()
    start = point(0.0, gap)
    over = np.array([start[0], start[1], _top(arm, joint) + above])
    travel(arm, over, yaw=0.0, clearance=0.05)
    arm.move(start, tolerance=tolerance, max_steps=60)
    arm.begin_skill(goal.predicate, joint.fixture)
    for angle in angles:
        arm.move(point(angle, 0.015), tolerance=0.02, speed=0.7, max_steps=8)
        if arm.env.holds(goal):
            break
    arm.pause(rest)
    arm.begin_skill("retreat", joint.fixture)
    arm.move(arm.position() + UP * 0.10, tolerance=0.03, max_steps=30)
    arm.open_fingers()


def _find_handle(arm: Arm, joint: Joint) -> tuple[Array, Array]:
    """Return the middle of a closed door's handle, and the direction [3] the door faces."""
    outward = _opening_sense(joint) * np.cross(UP, _free_edge(arm, joint))
    outward /= np.linalg.norm(outward)
    low, high = arm.scene.foremost_box(joint.body, outward)
    return (low + high) / 2, outward


def _opening_sense(joint: Joint) -> float:
    """Return the direction, 1 or −1 about the vertical, in which a door opens."""
    return float(joint.opening * np.sign(joint.axis[2]))


def _free_edge(arm: Arm, joint: Joint) -> Array:
    """Return the level vector [3] from the hinge to the door's free edge."""
    low, high = max(arm.scene.boxes(joint.body), key=lambda box: float(np.prod(box[1] - box[0])))
    return np.asarray(2 * ((low + high) / 2 - joint.anchor) * [1, 1, 0])


def _top(arm: Arm, joint: Joint) -> float:
    return max(float(high[2]) for _, high in arm.scene.boxes(joint.body))


def _turn_about(point: Array, joint: Joint, angle: float) -> Array:
    """Return a point [3] turned about the hinge."""
    return np.asarray(joint.anchor + Rotation.from_euler("z", angle).apply(point - joint.anchor))
