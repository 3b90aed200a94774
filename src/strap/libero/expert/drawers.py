"""Open drawers by pulling or hooking their handle bars, and push them shut."""

from __future__ import annotations

import numpy as np
from scipy.spatial.transform import Rotation

from strap.libero.expert.kinematics import Kinematics
from strap.libero.expert.motion import Arm, point_down, tilt_towards, wrap_yaw, yaw_along
from strap.libero.expert.pick_and_place import travel
from strap.libero.expert.scene import UP, Array, Joint
from strap.libero.expert.tilted_transfer import swap_fingers
from strap.libero.tasks import Goal

BAR_PULL_TILT = np.radians((70, 82))  # range of the pulling hand's tilt; 0 points down
OPEN_WIDE = 0.155  # metres by which a drawer is pulled; at most 0.16 is possible
PUSH_TILT = np.radians(52)  # of the hand when it pushes a handle below others
LOW_BAR = 0.09  # metres above the table below which a bar is hooked: fingers do not fit under it
HOOK_TILT, HOOK_TILT_FREE = np.radians((60, 40))  # of the hooking hand: below other bars, or not
CROWDED = (0.15, 0.50)  # metres before a drawer: objects there obstruct a level hand
HOOK_BEHIND = 0.009  # metres from the bar's inner side to the finger tips behind it
HOOK_TIP = 0.010  # metres between the grip point and the finger tips
PRESS = 0.03  # metres by which the fingers press down while they pull


def close_drawer(arm: Arm, goal: Goal) -> None:
    """Push a drawer shut at its handle with closed fingers."""
    joint = arm.scene.joint(goal.subject)
    outward = _outward(joint)
    low, high = arm.scene.foremost_box(joint.body, outward)  # its handle bar
    handle = (low + high) / 2
    # Below other handles the hand tilts back: its palm would hit them first.
    tilt = PUSH_TILT if _height_above(arm, joint.fixture, handle) > 0.06 else 0.0
    yaw = wrap_yaw(yaw_along(outward) + np.pi / 2)
    hand = _tilt_inward(outward, tilt, yaw)
    arm.begin_skill("reach", joint.fixture)
    arm.close_fingers()
    front = handle + outward * 0.06
    travel(arm, front + outward * 0.04 + UP * 0.10, yaw=yaw, clearance=0.05)
    arm.move(front, rotation=hand, tolerance=0.012, angle_tolerance=0.15, max_steps=60)
    arm.begin_skill("close", joint.fixture)
    distance = abs(joint.position - joint.closed) + 0.13
    arm.move(
        front - outward * distance,
        rotation=hand,
        tolerance=0.004,
        angle_tolerance=0.3,
        speed=0.5,
        max_steps=90,
        until=lambda: arm.env.holds(goal),
    )
    arm.pause(4)
    arm.begin_skill("retreat", joint.fixture)
    back = arm.position() + outward * 0.08 + UP * 0.02
    arm.move(back, rotation=hand, tolerance=0.02, angle_tolerance=0.4, max_steps=30)
    arm.open_fingers()


def open_drawer(arm: Arm, goal: Goal) -> None:
    """Pull a drawer open at its handle bar."""
    joint = arm.scene.joint(goal.subject)
    outward = _outward(joint)
    low, high = arm.scene.foremost_box(joint.body, outward)  # its handle bar
    is_low = low[2] - arm.scene.table_height() < LOW_BAR
    if is_low or _is_crowded(arm, joint, outward, high):
        hand, press = _hook_bar(arm, joint, outward, low, high), UP * PRESS
    else:
        hand, press = _grasp_bar(arm, joint, outward, (low + high) / 2), np.zeros(3)
    arm.begin_skill("open", joint.fixture)
    start = arm.position() - press
    for share in np.linspace(0.15, 1.5, 10):
        arm.move(
            start + outward * abs(joint.opened - joint.closed) * share,
            rotation=hand,
            tolerance=0.012 + float(press[2]),
            angle_tolerance=0.3,
            speed=0.5,
            max_steps=14,
        )
        # Farther than the goal requires: putting an object in pushes the drawer back.
        if abs(arm.scene.joint(goal.subject).position - joint.closed) > OPEN_WIDE:
            break
    arm.pause(3)
    arm.begin_skill("retreat", joint.fixture)
    arm.open_fingers()
    back = arm.position() - hand.as_matrix()[:, 2] * 0.08
    arm.move(back, rotation=hand, tolerance=0.03, angle_tolerance=0.4, max_steps=30)
    arm.move(back + UP * 0.10, yaw=0.0, tolerance=0.04, angle_tolerance=0.3, max_steps=50)


def _is_crowded(arm: Arm, joint: Joint, outward: Array, bar: Array) -> bool:
    """Return whether an object before a drawer, as high as its bar, obstructs a level hand."""
    offset = arm.scene.obstacles(without=[joint.fixture]) - bar
    ahead = offset @ outward
    aside = np.abs(offset @ np.cross(UP, outward))
    return bool(
        np.any((ahead > CROWDED[0]) & (ahead < CROWDED[1]) & (aside < 0.12) & (offset[:, 2] > 0))
    )


def _grasp_bar(arm: Arm, joint: Joint, outward: Array, handle: Array) -> Rotation:
    """Grasp a handle bar from the front, fingers above and below; return the hand's rotation."""
    yaw = yaw_along(outward)
    hand = _tilt_inward(outward, arm.rng.uniform(*BAR_PULL_TILT), yaw)
    ready = handle - hand.as_matrix()[:, 2] * 0.10
    arm.begin_skill("reach", joint.fixture)
    travel(arm, ready + UP * 0.12 + outward * 0.04, yaw=yaw, clearance=0.05)
    arm.move(ready, rotation=hand, tolerance=0.012, angle_tolerance=0.08, max_steps=90)
    arm.move(handle, rotation=hand, tolerance=0.006, angle_tolerance=0.1, speed=0.5, max_steps=60)
    arm.begin_skill("grasp", joint.fixture)
    arm.close_fingers()
    return hand


def _hook_bar(arm: Arm, joint: Joint, outward: Array, low: Array, high: Array) -> Rotation:
    """Hook closed fingers behind a bar from above; return the hand's rotation."""
    yaw = wrap_yaw(yaw_along(outward) + np.pi / 2)
    is_under_others = _height_above(arm, joint.fixture, high) > 0.06
    hand = _tilt_inward(outward, HOOK_TILT if is_under_others else HOOK_TILT_FREE, yaw)
    pointing = hand.as_matrix()[:, 2]
    inner = min(float(low @ outward), float(high @ outward))
    middle = (low + high) / 2
    tip = middle + outward * (inner - middle @ outward - HOOK_BEHIND)
    tip[2] = high[2]
    hook = tip - pointing * HOOK_TIP
    pulled = hook + outward * OPEN_WIDE
    kinematics = Kinematics(arm.scene)
    hand = max(
        (hand, swap_fingers(hand)),
        key=lambda rotation: kinematics.joint_margin([(hook, rotation), (pulled, rotation)]),
    )
    arm.begin_skill("reach", joint.fixture)
    arm.close_fingers()
    ready = hook - pointing * 0.10 + UP * 0.02
    travel(arm, ready + UP * 0.08 + outward * 0.04, yaw=0.0, clearance=0.05)
    arm.move(ready, rotation=hand, tolerance=0.012, angle_tolerance=0.08, max_steps=90)
    above = hook + UP * 0.015
    arm.move(above, rotation=hand, tolerance=0.006, angle_tolerance=0.1, speed=0.5, max_steps=60)
    arm.begin_skill("grasp", joint.fixture)
    arm.move(hook, rotation=hand, tolerance=0.004, angle_tolerance=0.1, speed=0.4, max_steps=25)
    return hand


def _tilt_inward(outward: Array, angle: float, yaw: float) -> Rotation:
    """Return the rotation of a hand tilted from pointing down towards `-outward`."""
    return tilt_towards(-outward, angle) * point_down(yaw)


def _height_above(arm: Arm, fixture: str, point: Array) -> float:
    """Return how far a fixture rises above a point."""
    return float(arm.scene.point_cloud(fixture)[:, 2].max() - point[2])


def _outward(joint: Joint) -> Array:
    """Return the direction in which a drawer opens [3]."""
    return np.asarray(joint.axis * joint.opening)
