"""Picking up and putting down."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from strap.libero.expert.motion import Arm, Failed, Unreachable
from strap.libero.expert.placing import Transfer, plan_transfer, rotate
from strap.libero.expert.scene import Scene
from strap.libero.tasks import Goal

Array = NDArray[np.float64]
PlanT = TypeVar("PlanT")

CORRIDOR = 0.12  # metres either side of the way within which obstacles count
SLIPPED = 0.08  # metres by which a held object may shift in the hand
HELD_SPEED = 0.7  # of the full speed, when something could be dropped
TRIES = 3
LIFTED = 0.04  # metres by which a grasped object must have risen


def transfer(arm: Arm, goal: Goal, *, shared: bool = False) -> None:
    """Take an object to where an `in` or `on` goal wants it; shared: with others beside it."""
    if goal.target is None:
        raise Failed(f"goal {goal} has no target")
    planned = partial(
        plan_transfer,
        arm.scene,
        goal.subject,
        goal.target,
        inside=goal.predicate == "in",
        shared=shared,
        rng=arm.rng,
    )
    move_to_goal(arm, goal, planned, pick, place)


def move_to_goal(
    arm: Arm,
    goal: Goal,
    planned: Callable[[], PlanT | None],
    take: Callable[[Arm, str, PlanT], bool],
    bring: Callable[[Arm, str, PlanT], bool],
) -> None:
    """Plan, take the object and bring it there, three times at most, until the goal holds."""
    for _ in range(TRIES):
        plan = planned()
        if plan is None:
            raise Unreachable(f"no grasp of {goal.subject} reaches {goal.target}")
        if not take(arm, goal.subject, plan):
            continue
        if bring(arm, goal.subject, plan) and arm.env.holds(goal):
            return
    raise Failed(f"{goal.subject} did not get to {goal.target}")


def pick(arm: Arm, name: str, plan: Transfer) -> bool:
    """Reach, grasp and lift; whether the object came along."""
    grasp, style = plan.grasp, arm.style
    start = arm.scene.origin(name)
    arm.begin("reach", name)
    above = grasp.position + [0.0, 0.0, style.hover]
    if not travel(arm, above, yaw=grasp.yaw, clearance=0.03):
        arm.move(arm.position() + [0, 0, 0.15], tolerance=0.03, max_steps=40)
        return False
    arm.move(grasp.position + [0, 0, 0.025], tolerance=0.008, speed=0.6, max_steps=40)
    arm.move(grasp.position, tolerance=0.005, angle_tolerance=0.06, speed=0.4, max_steps=40)
    arm.begin("grasp", name)
    arm.close_fingers()
    arm.begin("carry", name)
    here = arm.position()
    arm.move(here + [0, 0, 0.08], tolerance=0.02, speed=0.7, max_steps=40)
    if arm.scene.origin(name)[2] > start[2] + LIFTED:
        return True
    arm.begin("retreat", name)
    arm.open_fingers()
    arm.move(here + [0, 0, 0.12], tolerance=0.03, max_steps=30)
    return False


def place(arm: Arm, name: str, plan: Transfer) -> bool:
    """Carry a held object to its spot, let go and draw back; whether it was held all the way."""
    scene = arm.scene
    arm.begin("carry", name)
    hand, origin = arm.position(), scene.origin(name)
    spot = plan.spot.origin + [0, 0, plan.drop]
    below = float(hand[2] - scene.cloud(name)[:, 2].min())
    over = spot + rotate(hand - origin, plan.spot.turn)
    over[2] += 0.06
    grip = float(np.linalg.norm(origin - hand))
    travel(arm, over, yaw=plan.yaw, clearance=below + 0.02, held=name)
    if abs(float(np.linalg.norm(scene.origin(name) - arm.position())) - grip) > SLIPPED:
        release(arm, name)
        return False
    arm.begin("place", name)
    # The object may have slipped or turned in the hand: aim anew with the offset it has now.
    final = spot + (arm.position() - scene.origin(name))
    high = np.array([final[0], final[1], max(arm.position()[2], final[2])])
    arm.move(high, tolerance=0.006, speed=0.5, max_steps=25)
    arm.move(final, tolerance=0.006, speed=0.45, max_steps=50)
    release(arm, name)
    return True


def release(arm: Arm, name: str) -> None:
    """Open the fingers and draw back upwards."""
    arm.open_fingers()
    arm.begin("retreat", name)
    arm.move(arm.position() + [0, 0, 0.10], tolerance=0.03, speed=0.8, max_steps=30)


def travel(
    arm: Arm, target: Array, *, yaw: float, clearance: float, held: str | None = None
) -> bool:
    """Go to a point over everything that stands in the way; whether it got there.

    clearance: how far above the obstacles the grip point must stay.
    """
    here, speed = arm.position(), 1.0 if held is None else HELD_SPEED
    height = max(here[2], target[2], tallest(arm.scene, here, target, held) + clearance)
    if height > here[2] + 0.01:
        arm.move(np.array([here[0], here[1], height]), tolerance=0.03, speed=speed, max_steps=60)
    sway = arm.rng.uniform(-arm.style.sway, arm.style.sway, 3) * [1, 1, 0.5]
    over = np.array([target[0], target[1], max(height, target[2])])
    arm.move(over + sway, yaw=yaw, tolerance=0.03, angle_tolerance=0.25, speed=speed, max_steps=120)
    arm.move(over, tolerance=0.015, angle_tolerance=0.10, speed=speed, max_steps=50)
    if height > target[2] + 0.01:
        arm.move(target, tolerance=0.012, speed=0.8 * speed, max_steps=60)
    return bool(np.linalg.norm(arm.position() - target) < 0.05)


def tallest(scene: Scene, start: Array, end: Array, held: str | None) -> float:
    """The height of the tallest obstacle along the straight way between two points."""
    points = scene.obstacles(without=[held] if held else [])
    way = end[:2] - start[:2]
    along = np.clip((points[:, :2] - start[:2]) @ way / max(float(way @ way), 1e-9), 0, 1)
    off = np.linalg.norm(points[:, :2] - start[:2] - along[:, None] * way, axis=1)
    near = points[off < CORRIDOR]
    return float(near[:, 2].max()) if len(near) else -np.inf
