"""Reaching in with a leaning hand: into a microwave, under a shelf, beside an open drawer."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from strap.libero.expert.insertion import is_covered, is_too_tall, plan_insertion, plan_lowering
from strap.libero.expert.motion import Arm
from strap.libero.expert.pick_and_place import (
    HELD_SPEED,
    LIFTED,
    SLIPPED,
    move_to_goal,
    tallest,
    travel,
)
from strap.libero.expert.scene import Scene
from strap.libero.expert.tilted_transfer import Reach
from strap.libero.tasks import Goal

Array = NDArray[np.float64]

UP = np.array([0.0, 0.0, 1.0])
BEFORE = 0.17  # metres before its place from which on an object moves straight in
MOST_RAISED = 0.03  # metres by which an object is brought in higher when it hangs askew
DRAWN_BACK = 0.2  # metres by which a hand draws back as it lifts an object, if it were level
APPROACH = 0.09  # metres along the hand over which it nears and leaves an object


def needs_leaning(scene: Scene, goal: Goal) -> bool:
    """Whether a goal asks for a place under a cover, or one too low for the object upright."""
    if goal.predicate != "in" or goal.target is None:
        return False
    return is_covered(scene, scene.region(goal.target)) or is_too_tall(
        scene, goal.subject, goal.target
    )


def reach_in(arm: Arm, goal: Goal) -> None:
    """Do with a leaning hand what `transfer` does with one that points down."""
    move_to_goal(arm, goal, partial(_plan, arm, goal), take, bring_in)


def _plan(arm: Arm, goal: Goal) -> Reach | None:
    name, target = goal.subject, str(goal.target)
    if is_covered(arm.scene, arm.scene.region(target)):
        return plan_insertion(arm.scene, name, target, rng=arm.rng)
    return plan_lowering(arm.scene, name, target, inside=goal.predicate == "in", rng=arm.rng)


def take(arm: Arm, name: str, plan: Reach) -> bool:
    """Grasp with a leaning hand and lift; whether the object came along."""
    ahead, start = plan.hand.as_matrix()[:, 2], arm.scene.origin(name)
    ready = plan.position - ahead * APPROACH
    arm.begin("reach", name)
    travel(arm, ready + UP * 0.08, yaw=0.0, clearance=0.05)
    arm.move(ready, rotation=plan.hand, tolerance=0.012, angle_tolerance=0.08, max_steps=90)
    arm.move(plan.position, rotation=plan.hand, tolerance=0.006, speed=0.5, max_steps=60)
    arm.begin("grasp", name)
    arm.close_fingers()
    arm.begin("carry", name)
    here = arm.position()
    lift = UP * 0.08
    if plan.way[2] < 0:  # out from under what kept an upright hand away
        lift = lift - ahead * [1, 1, 0] * DRAWN_BACK
    arm.move(here + lift, rotation=plan.hand, tolerance=0.02, speed=0.6, max_steps=40)
    if arm.scene.origin(name)[2] > start[2] + LIFTED:
        return True
    let_go(arm, name, plan.hand)
    return False


def bring_in(arm: Arm, name: str, plan: Reach) -> bool:
    """Carry to the entrance, turn, move straight in and let go; whether it was held all the way."""
    scene, hand = arm.scene, plan.turning * plan.hand
    held = arm.position() - scene.origin(name)
    below = float(arm.position()[2] - scene.cloud(name)[:, 2].min())
    entrance = plan.origin - plan.way * BEFORE
    carry(arm, entrance + plan.turning.apply(held), hand, below, name)
    slipped = np.linalg.norm(arm.position() - scene.origin(name)) - np.linalg.norm(held)
    if abs(float(slipped)) > SLIPPED:
        let_go(arm, name, hand)
        return False
    arm.begin("place", name)
    # The object may have slipped or turned in the hand: aim anew with the offset it has now, and
    # higher where a side of it hangs down.
    held = arm.position() - scene.origin(name)
    hangs = plan.bottom - float(scene.cloud(name)[:, 2].min() - scene.origin(name)[2])
    held += UP * np.clip(hangs, 0.0, MOST_RAISED)
    for back, tolerance in ((BEFORE, 0.008), (BEFORE / 2, 0.015), (0.0, 0.006)):
        point = plan.origin - plan.way * back + held
        arm.move(point, rotation=hand, tolerance=tolerance, speed=0.45, max_steps=50)
    let_go(arm, name, hand)
    return True


def carry(arm: Arm, target: Array, hand: Rotation, below: float, name: str) -> None:
    """Go over everything that stands in the way, turning the hand on the way."""
    here, present = arm.position(), Rotation.from_matrix(arm.scene.hand()[1])
    height = max(here[2], target[2], tallest(arm.scene, here, target, name) + below + 0.03)
    up, over = np.array([*here[:2], height]), np.array([*target[:2], height])
    arm.move(up, rotation=present, tolerance=0.03, speed=HELD_SPEED, max_steps=60)
    arm.move(
        over, rotation=hand, tolerance=0.02, angle_tolerance=0.12, speed=HELD_SPEED, max_steps=140
    )
    arm.move(target, rotation=hand, tolerance=0.012, speed=0.8 * HELD_SPEED, max_steps=70)


def let_go(arm: Arm, name: str, hand: Rotation) -> None:
    """Open the fingers and draw back the way the hand points."""
    arm.open_fingers()
    arm.begin("retreat", name)
    back = arm.position() - hand.as_matrix()[:, 2] * APPROACH
    arm.move(back, rotation=hand, tolerance=0.02, angle_tolerance=0.3, speed=0.6, max_steps=40)
    away = back - [*hand.as_matrix()[:2, 2] * 0.08, 0.0] + UP * 0.06
    arm.move(away, rotation=hand, tolerance=0.04, angle_tolerance=0.5, max_steps=30)
