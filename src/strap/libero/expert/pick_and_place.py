"""Pick an object up and put it down with a hand that points down."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np

from strap.libero.expert.motion import Arm, Failed, Unreachable
from strap.libero.expert.placing import Transfer, plan_transfer, rotate
from strap.libero.expert.scene import UP, Array, Scene
from strap.libero.tasks import Goal

PlanT = TypeVar("PlanT")

OBSTACLE_DISTANCE = 0.12  # metres from the hand's path within which obstacles count
MAX_SLIP = 0.08  # metres by which a held object may shift in the hand
HELD_SPEED = 0.7  # share of the full speed while the hand holds an object
MAX_TRIES = 3
MIN_LIFT = 0.04  # metres by which a grasped object must rise


def transfer(arm: Arm, goal: Goal, *, shared: bool = False) -> None:
    """Move an object to the target of an `in` or `on` goal; shared: other objects go there too."""
    make_plan = partial(
        plan_transfer,
        arm.scene,
        goal.subject,
        str(goal.target),
        inside=goal.predicate == "in",
        shared=shared,
        rng=arm.rng,
    )
    move_to_goal(arm, goal, make_plan, pick, place)


def move_to_goal(
    arm: Arm,
    goal: Goal,
    make_plan: Callable[[], PlanT | None],
    pick: Callable[[Arm, str, PlanT], bool],
    place: Callable[[Arm, str, PlanT], bool],
) -> None:
    """Plan, pick the object up and place it until the goal holds, at most MAX_TRIES times."""
    for _ in range(MAX_TRIES):
        plan = make_plan()
        if plan is None:
            raise Unreachable(f"no grasp of {goal.subject} reaches {goal.target}")
        if pick(arm, goal.subject, plan) and place(arm, goal.subject, plan) and arm.env.holds(goal):
            return
    raise Failed(f"{goal.subject} did not get to {goal.target}")


def pick(arm: Arm, name: str, plan: Transfer) -> bool:
    """Reach, grasp and lift; return whether the object was lifted."""
    grasp = plan.grasp
    start = arm.scene.origin(name)
    arm.begin_skill("reach", name)
    above = grasp.position + [0.0, 0.0, arm.style.hover]
    if not travel(arm, above, yaw=grasp.yaw, clearance=0.03):
        arm.move(arm.position() + [0, 0, 0.15], tolerance=0.03, max_steps=40)
        return False
    arm.move(grasp.position + [0, 0, 0.025], tolerance=0.008, speed=0.6, max_steps=40)
    arm.move(grasp.position, tolerance=0.005, angle_tolerance=0.06, speed=0.4, max_steps=40)
    arm.begin_skill("grasp", name)
    arm.close_fingers()
    arm.begin_skill("carry", name)
    here = arm.position()
    arm.move(here + [0, 0, 0.08], tolerance=0.02, speed=0.7, max_steps=40)
    if arm.scene.origin(name)[2] > start[2] + MIN_LIFT:
        return True
    arm.begin_skill("retreat", name)
    arm.open_fingers()
    arm.move(here + [0, 0, 0.12], tolerance=0.03, max_steps=30)
    return False


def place(arm: Arm, name: str, plan: Transfer) -> bool:
    """Carry an object to its spot and let go; return whether it was held until then."""
    scene = arm.scene
    arm.begin_skill("carry", name)
    hand, origin = arm.position(), scene.origin(name)
    spot = plan.spot.origin + [0, 0, plan.drop]
    below = float(hand[2] - scene.point_cloud(name)[:, 2].min())
    over = spot + rotate(hand - origin, plan.spot.turn)
    over[2] += 0.06
    grip = float(np.linalg.norm(origin - hand))
    yaw = plan.grasp.yaw + plan.spot.turn
    travel(arm, over, yaw=yaw, clearance=below + 0.02, held=name)
    if abs(float(np.linalg.norm(scene.origin(name) - arm.position())) - grip) > MAX_SLIP:
        release(arm, name)
        return False
    arm.begin_skill("place", name)
    # The object might have slipped or turned in the hand: aim again with its current offset.
    final = spot + (arm.position() - scene.origin(name))
    high = np.array([final[0], final[1], max(arm.position()[2], final[2])])
    arm.move(high, tolerance=0.006, speed=0.5, max_steps=25)
    arm.move(final, tolerance=0.006, speed=0.45, max_steps=50)
    release(arm, name)
    return True


def release(arm: Arm, name: str) -> None:
    """Open the fingers and draw back upwards."""
    arm.open_fingers()
    arm.begin_skill("retreat", name)
    arm.move(arm.position() + UP * 0.10, tolerance=0.03, speed=0.8, max_steps=30)


def travel(
    arm: Arm, target: Array, *, yaw: float, clearance: float, held: str | None = None
) -> bool:
    """Move to a point over all obstacles on the way; return whether the hand arrived.

    clearance: smallest height of the grip point above the obstacles.
    """
    here, speed = arm.position(), 1.0 if held is None else HELD_SPEED
    height = max(here[2], target[2], obstacle_height(arm.scene, here, target, held) + clearance)
    if height > here[2] + 0.01:
        arm.move(np.array([here[0], here[1], height]), tolerance=0.03, speed=speed, max_steps=60)
    sway = arm.rng.uniform(-arm.style.sway, arm.style.sway, 3) * [1, 1, 0.5]
    over = np.array([target[0], target[1], max(height, target[2])])
    arm.move(over + sway, yaw=yaw, tolerance=0.03, angle_tolerance=0.25, speed=speed, max_steps=120)
    arm.move(over, tolerance=0.015, angle_tolerance=0.10, speed=speed, max_steps=50)
    if height > target[2] + 0.01:
        arm.move(target, tolerance=0.012, speed=0.8 * speed, max_steps=60)
    return bool(np.linalg.norm(arm.position() - target) < 0.05)


def obstacle_height(scene: Scene, start: Array, end: Array, held: str | None) -> float:
    """Return the height of the tallest obstacle along the straight line between two points."""
    points = scene.obstacles(without=[held] if held else [])
    line = end[:2] - start[:2]
    along = np.clip((points[:, :2] - start[:2]) @ line / max(float(line @ line), 1e-9), 0, 1)
    distances = np.linalg.norm(points[:, :2] - start[:2] - along[:, None] * line, axis=1)
    near = points[distances < OBSTACLE_DISTANCE]
    return float(near[:, 2].max()) if len(near) else -np.inf
