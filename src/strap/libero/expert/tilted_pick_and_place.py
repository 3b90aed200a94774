"""Pick and place with a tilted hand: into a microwave, under a shelf, beside a drawer."""

from __future__ import annotations

from functools import partial

import numpy as np
from scipy.spatial.transform import Rotation

from strap.libero.expert.insertion import is_covered, is_too_tall, plan_insertion, plan_lowering
from strap.libero.expert.motion import Arm
from strap.libero.expert.pick_and_place import (
    HELD_SPEED,
    MAX_SLIP,
    MIN_LIFT,
    move_to_goal,
    obstacle_height,
    travel,
)
from strap.libero.expert.scene import UP, Array, Scene
from strap.libero.expert.tilted_transfer import TiltedTransfer
from strap.libero.tasks import Goal

ENTRANCE = 0.17  # metres before its place from which an object moves straight in
MAX_RAISE = 0.03  # largest extra height in metres for an object that hangs askew
DRAW_BACK = 0.2  # metres by which a level hand draws back while it lifts an object
APPROACH = 0.09  # metres along the hand's axis over which it approaches and leaves an object


def needs_tilt(scene: Scene, goal: Goal) -> bool:
    """Return whether a goal's place is under a cover, or too low for the upright object."""
    if goal.predicate != "in" or goal.target is None:
        return False
    return is_covered(scene, scene.region(goal.target)) or is_too_tall(
        scene, goal.subject, goal.target
    )


def transfer_tilted(arm: Arm, goal: Goal) -> None:
    """Move an object to the target of an `in` or `on` goal, with a tilted hand."""
    move_to_goal(arm, goal, partial(_plan, arm, goal), pick_tilted, place_tilted)


def _plan(arm: Arm, goal: Goal) -> TiltedTransfer | None:
    name, target = goal.subject, str(goal.target)
    if is_covered(arm.scene, arm.scene.region(target)):
        return plan_insertion(arm.scene, name, target, rng=arm.rng)
    return plan_lowering(arm.scene, name, target, inside=goal.predicate == "in", rng=arm.rng)


def pick_tilted(arm: Arm, name: str, plan: TiltedTransfer) -> bool:
    """Grasp with a tilted hand and lift; return whether the object was lifted."""
    ahead, start = plan.hand.as_matrix()[:, 2], arm.scene.origin(name)
    ready = plan.position - ahead * APPROACH
    arm.begin_skill("reach", name)
    travel(arm, ready + UP * 0.08, yaw=0.0, clearance=0.05)
    arm.move(ready, rotation=plan.hand, tolerance=0.012, angle_tolerance=0.08, max_steps=90)
    arm.move(plan.position, rotation=plan.hand, tolerance=0.006, speed=0.5, max_steps=60)
    arm.begin_skill("grasp", name)
    arm.close_fingers()
    arm.begin_skill("carry", name)
    here = arm.position()
    lift = UP * 0.08
    if plan.approach[2] < 0:  # out from under the obstacle to an upright hand
        lift = lift - ahead * [1, 1, 0] * DRAW_BACK
    arm.move(here + lift, rotation=plan.hand, tolerance=0.02, speed=0.6, max_steps=40)
    if arm.scene.origin(name)[2] > start[2] + MIN_LIFT:
        return True
    release_tilted(arm, name, plan.hand)
    return False


def place_tilted(arm: Arm, name: str, plan: TiltedTransfer) -> bool:
    """Carry an object to the entrance, move it in and let go; return whether it was held."""
    scene, hand = arm.scene, plan.carried_turn * plan.hand
    held = arm.position() - scene.origin(name)
    below = float(arm.position()[2] - scene.point_cloud(name)[:, 2].min())
    entrance = plan.origin - plan.approach * ENTRANCE
    carry(arm, entrance + plan.carried_turn.apply(held), hand, below, name)
    slip = np.linalg.norm(arm.position() - scene.origin(name)) - np.linalg.norm(held)
    if abs(float(slip)) > MAX_SLIP:
        release_tilted(arm, name, hand)
        return False
    arm.begin_skill("place", name)
    # The object might have slipped or turned in the hand: aim again with its current offset, and
    # higher if a side of it hangs down.
    held = arm.position() - scene.origin(name)
    sag = plan.bottom - float(scene.point_cloud(name)[:, 2].min() - scene.origin(name)[2])
    held += UP * np.clip(sag, 0.0, MAX_RAISE)
    for back, tolerance in ((ENTRANCE, 0.008), (ENTRANCE / 2, 0.015), (0.0, 0.006)):
        point = plan.origin - plan.approach * back + held
        arm.move(point, rotation=hand, tolerance=tolerance, speed=0.45, max_steps=50)
    release_tilted(arm, name, hand)
    return True


def carry(arm: Arm, target: Array, hand: Rotation, below: float, name: str) -> None:
    """Move a held object over all obstacles to a point [3], turning the hand on the way.

    below: metres by which the object hangs below the grip point.
    """
    here = arm.position()
    height = max(here[2], target[2], obstacle_height(arm.scene, here, target, name) + below + 0.03)
    up, over = np.array([*here[:2], height]), np.array([*target[:2], height])
    arm.move(up, rotation=arm.rotation(), tolerance=0.03, speed=HELD_SPEED, max_steps=60)
    arm.move(
        over, rotation=hand, tolerance=0.02, angle_tolerance=0.12, speed=HELD_SPEED, max_steps=140
    )
    arm.move(target, rotation=hand, tolerance=0.012, speed=0.8 * HELD_SPEED, max_steps=70)


def release_tilted(arm: Arm, name: str, hand: Rotation) -> None:
    """Open the fingers and draw back along the hand's axis."""
    arm.open_fingers()
    arm.begin_skill("retreat", name)
    back = arm.position() - hand.as_matrix()[:, 2] * APPROACH
    arm.move(back, rotation=hand, tolerance=0.02, angle_tolerance=0.3, speed=0.6, max_steps=40)
    away = back - [*hand.as_matrix()[:2, 2] * 0.08, 0.0] + UP * 0.06
    arm.move(away, rotation=hand, tolerance=0.04, angle_tolerance=0.5, max_steps=30)
