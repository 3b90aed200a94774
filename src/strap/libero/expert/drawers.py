"""Drawers and knobs, and the way to each of what can be opened, closed or turned."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from strap.libero.expert.doors import close_door, open_door
from strap.libero.expert.kinematics import Kinematics
from strap.libero.expert.motion import Arm, Failed, pointing_down, tilt_towards, wrap, yaw_along
from strap.libero.expert.pick_and_place import travel
from strap.libero.expert.scene import Joint
from strap.libero.tasks import Goal

Array = NDArray[np.float64]

UP = np.array([0.0, 0.0, 1.0])
TILT = np.radians((70, 82))  # of the hand when it pulls a handle: 0 is pointing down
OPEN_WIDE = 0.155  # metres by which a drawer is pulled, of 0.16 that it can be
LEAN = np.radians(52)  # of the hand when it pushes a handle below others
LOW = 0.09  # metres above the table, below which a bar is hooked: there is no room below it
HOOK_TILT, HOOK_TILT_FREE = np.radians((60, 40))  # of the hooking hand: below other bars, or not
CROWDED = (0.15, 0.50)  # metres before a drawer: what stands there is in the way of a level hand
HOOK_BEHIND = 0.009  # metres behind the bar's inner side for the tips, which lie
HOOK_TIP = 0.010  # this far before the grip point
PRESS = 0.03  # metres by which the hook is pressed down while it pulls


def operate(arm: Arm, goal: Goal) -> None:
    """Open, close or turn what a goal names."""
    joint = arm.scene.joint(goal.subject)
    if goal.predicate in ("turnon", "turnoff"):
        turn_knob(arm, goal)
    elif joint.slides:
        (open_drawer if goal.predicate == "open" else close_drawer)(arm, goal)
    else:
        (open_door if goal.predicate == "open" else close_door)(arm, goal)
    if not arm.env.holds(goal):
        raise Failed(f"{goal.subject} did not {goal.predicate}")


def close_drawer(arm: Arm, goal: Goal) -> None:
    """Push a drawer shut at its handle with closed fingers."""
    joint = arm.scene.joint(goal.subject)
    outward = _outward(joint)
    low, high = arm.scene.foremost(joint.body, outward)  # its handle bar
    handle = (low + high) / 2
    # Below other handles the hand leans back, or its palm would meet them first.
    lean = LEAN if _height_above(arm, joint.fixture, handle) > 0.06 else 0.0
    yaw = wrap(yaw_along(outward) + np.pi / 2)
    hand = _tilted(outward, lean, yaw)
    arm.begin("reach", joint.fixture)
    arm.close_fingers()
    front = handle + outward * 0.06
    travel(arm, front + outward * 0.04 + UP * 0.10, yaw=yaw, clearance=0.05)
    arm.move(front, rotation=hand, tolerance=0.012, angle_tolerance=0.15, max_steps=60)
    arm.begin("close", joint.fixture)
    reach = abs(joint.position - joint.closed) + 0.13
    arm.move(
        front - outward * reach,
        rotation=hand,
        tolerance=0.004,
        angle_tolerance=0.3,
        speed=0.5,
        max_steps=90,
        until=lambda: arm.env.holds(goal),
    )
    arm.pause(4)
    arm.begin("retreat", joint.fixture)
    back = arm.position() + outward * 0.08 + UP * 0.02
    arm.move(back, rotation=hand, tolerance=0.02, angle_tolerance=0.4, max_steps=30)
    arm.open_fingers()


def _height_above(arm: Arm, fixture: str, point: Array) -> float:
    """How far a fixture rises above a point."""
    return float(arm.scene.cloud(fixture)[:, 2].max() - point[2])


def open_drawer(arm: Arm, goal: Goal) -> None:
    """Pull a drawer open at its handle bar."""
    joint = arm.scene.joint(goal.subject)
    outward = _outward(joint)
    low, high = arm.scene.foremost(joint.body, outward)  # its handle bar
    if low[2] - arm.scene.table_height() < LOW or _is_crowded(arm, joint, outward, high):
        hand = _hook_bar(arm, joint, outward, low, high)
        press = UP * PRESS
    else:
        hand = _take_bar(arm, joint, outward, (low + high) / 2)
        press = np.zeros(3)
    pointing = hand.as_matrix()[:, 2]
    arm.begin("open", joint.fixture)
    start = arm.position() - press
    for share in np.linspace(0.15, 1.5, 10):
        goal_point = start + outward * abs(joint.opened - joint.closed) * share
        arm.move(
            goal_point,
            rotation=hand,
            tolerance=0.012 + float(press[2]),
            angle_tolerance=0.3,
            speed=0.5,
            max_steps=14,
        )
        # A little farther than the goal asks for: putting something in pushes the drawer back.
        if abs(arm.scene.joint(goal.subject).position - joint.closed) > OPEN_WIDE:
            break
    arm.pause(3)
    arm.begin("retreat", joint.fixture)
    arm.open_fingers()
    back = arm.position() - pointing * 0.08
    arm.move(back, rotation=hand, tolerance=0.03, angle_tolerance=0.4, max_steps=30)
    arm.move(back + UP * 0.10, yaw=0.0, tolerance=0.04, angle_tolerance=0.3, max_steps=50)


def _is_crowded(arm: Arm, joint: Joint, outward: Array, bar: Array) -> bool:
    """Whether something before a drawer, as high as its bar, leaves no room for a level hand."""
    offset = arm.scene.obstacles(without=[joint.fixture]) - bar
    ahead = offset @ outward
    aside = np.abs(offset @ np.cross(UP, outward))
    return bool(
        np.any((ahead > CROWDED[0]) & (ahead < CROWDED[1]) & (aside < 0.12) & (offset[:, 2] > 0))
    )


def _take_bar(arm: Arm, joint: Joint, outward: Array, handle: Array) -> Rotation:
    """Take a handle bar from the front, fingers above and below it."""
    yaw = yaw_along(outward)
    hand = _tilted(outward, arm.rng.uniform(*TILT), yaw)
    ready = handle - hand.as_matrix()[:, 2] * 0.10
    arm.begin("reach", joint.fixture)
    travel(arm, ready + UP * 0.12 + outward * 0.04, yaw=yaw, clearance=0.05)
    arm.move(ready, rotation=hand, tolerance=0.012, angle_tolerance=0.08, max_steps=90)
    arm.move(handle, rotation=hand, tolerance=0.006, angle_tolerance=0.1, speed=0.5, max_steps=60)
    arm.begin("grasp", joint.fixture)
    arm.close_fingers()
    return hand


def _hook_bar(arm: Arm, joint: Joint, outward: Array, low: Array, high: Array) -> Rotation:
    """Hook closed fingers behind a bar from above, where there is no room to take it level."""
    yaw = wrap(yaw_along(outward) + np.pi / 2)
    under_others = _height_above(arm, joint.fixture, high) > 0.06
    hand = _tilted(outward, HOOK_TILT if under_others else HOOK_TILT_FREE, yaw)
    pointing = hand.as_matrix()[:, 2]
    inner = min(float(low @ outward), float(high @ outward))
    middle = (low + high) / 2
    tip = middle + outward * (inner - middle @ outward - HOOK_BEHIND)
    tip[2] = high[2]
    hook = tip - pointing * HOOK_TIP
    swapped = hand * Rotation.from_euler("z", np.pi)
    reach = Kinematics(arm.scene)
    hand = max(
        (hand, swapped), key=lambda it: reach.room([(hook, it), (hook + outward * OPEN_WIDE, it)])
    )
    arm.begin("reach", joint.fixture)
    arm.close_fingers()
    ready = hook - pointing * 0.10 + UP * 0.02
    travel(arm, ready + UP * 0.08 + outward * 0.04, yaw=0.0, clearance=0.05)
    arm.move(ready, rotation=hand, tolerance=0.012, angle_tolerance=0.08, max_steps=90)
    above = hook + UP * 0.015
    arm.move(above, rotation=hand, tolerance=0.006, angle_tolerance=0.1, speed=0.5, max_steps=60)
    arm.begin("grasp", joint.fixture)
    arm.move(hook, rotation=hand, tolerance=0.004, angle_tolerance=0.1, speed=0.4, max_steps=25)
    return hand


def _tilted(outward: Array, angle: float, yaw: float) -> Rotation:
    """The hand turned from pointing down towards pointing against `outward`."""
    return tilt_towards(-outward, angle) * pointing_down(yaw)


def turn_knob(arm: Arm, goal: Goal) -> None:
    """Take a knob by its bar and turn it."""
    joint = arm.scene.joint(goal.subject)
    boxes = arm.scene.boxes(joint.body)
    top = max(float(high[2]) for _, high in boxes)
    start = wrap(joint.position)
    centre = np.array([joint.anchor[0], joint.anchor[1], top - 0.015])
    arm.begin("reach", joint.fixture)
    travel(arm, centre + UP * 0.10, yaw=start, clearance=0.04)
    arm.move(centre, tolerance=0.006, angle_tolerance=0.06, speed=0.5, max_steps=60)
    arm.begin("grasp", joint.fixture)
    arm.close_fingers()
    arm.begin("turn", joint.fixture)
    held = arm.position()
    way = 1.0 if goal.predicate == "turnon" else -1.0
    reach = 1.3 if way > 0 else abs(joint.position) + 0.4
    for angle in np.arange(0.1, reach, 0.1) * way:
        arm.move(held, yaw=start + angle, tolerance=0.02, angle_tolerance=0.05, max_steps=6)
        if arm.env.holds(goal):
            break
    arm.pause(3)
    arm.begin("retreat", joint.fixture)
    arm.open_fingers()
    arm.move(arm.position() + UP * 0.12, tolerance=0.03, max_steps=40)
    arm.move(arm.position(), yaw=0.0, tolerance=0.03, max_steps=20)


def _outward(joint: Joint) -> Array:
    """The direction in which a drawer opens [3]."""
    return np.asarray(joint.axis * np.sign(joint.opened - joint.closed))
