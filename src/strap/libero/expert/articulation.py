"""Open, close or turn the drawer, door or knob of a goal."""

from __future__ import annotations

import numpy as np

from strap.libero.expert.doors import close_door, open_door
from strap.libero.expert.drawers import close_drawer, open_drawer
from strap.libero.expert.motion import Arm, Failed, wrap_yaw
from strap.libero.expert.pick_and_place import travel
from strap.libero.expert.scene import UP
from strap.libero.tasks import Goal


def operate(arm: Arm, goal: Goal) -> None:
    """Open, close or turn the subject of a goal."""
    joint = arm.scene.joint(goal.subject)
    if goal.predicate in ("turnon", "turnoff"):
        turn_knob(arm, goal)
    elif joint.slides:
        (open_drawer if goal.predicate == "open" else close_drawer)(arm, goal)
    else:
        (open_door if goal.predicate == "open" else close_door)(arm, goal)
    if not arm.env.holds(goal):
        raise Failed(f"{goal.subject} did not {goal.predicate}")


def turn_knob(arm: Arm, goal: Goal) -> None:
    """Grasp a knob by its bar and turn it."""
    joint = arm.scene.joint(goal.subject)
    top = max(float(high[2]) for _, high in arm.scene.boxes(joint.body))
    start = wrap_yaw(joint.position)
    centre = np.array([joint.anchor[0], joint.anchor[1], top - 0.015])
    arm.begin_skill("reach", joint.fixture)
    travel(arm, centre + UP * 0.10, yaw=start, clearance=0.04)
    arm.move(centre, tolerance=0.006, angle_tolerance=0.06, speed=0.5, max_steps=60)
    arm.begin_skill("grasp", joint.fixture)
    arm.close_fingers()
    arm.begin_skill("turn", joint.fixture)
    held = arm.position()
    sense = 1.0 if goal.predicate == "turnon" else -1.0
    stop = 1.3 if sense > 0 else abs(joint.position) + 0.4
    for angle in np.arange(0.1, stop, 0.1) * sense:
        arm.move(held, yaw=start + angle, tolerance=0.02, angle_tolerance=0.05, max_steps=6)
        if arm.env.holds(goal):
            break
    arm.pause(3)
    arm.begin_skill("retreat", joint.fixture)
    arm.open_fingers()
    arm.move(arm.position() + UP * 0.12, tolerance=0.03, max_steps=40)
    arm.move(arm.position(), yaw=0.0, tolerance=0.03, max_steps=20)
