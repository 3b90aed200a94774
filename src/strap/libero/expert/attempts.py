"""Attempt a task: put its goals in order and reach one after the other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from strap.libero.environment import LiberoEnv
from strap.libero.expert.articulation import operate
from strap.libero.expert.motion import Arm, Failed, Frame, Solved, Style, Unreachable
from strap.libero.expert.pick_and_place import transfer
from strap.libero.expert.scene import Scene
from strap.libero.expert.tilted_pick_and_place import needs_tilt, transfer_tilted
from strap.libero.tasks import Goal

DEFAULT_NOISE = 0.04
STEPS_PER_GOAL = 330
FINAL_WAIT = 25


@dataclass(frozen=True)
class Attempt:
    """One try at a task from one placement."""

    seed: int
    variation: int  # 0 for the first plan from this placement, 1 for the second, …
    frames: tuple[Frame, ...]
    failure: str  # the reason of a failure; empty if the task was solved

    @property
    def solved(self) -> bool:
        """Whether the task was solved and stayed solved."""
        return not self.failure


def solve(env: LiberoEnv, seed: int, *, noise: float = DEFAULT_NOISE, tries: int = 3) -> Attempt:
    """Return the first attempt that solves the seed's placement, or else the last attempt."""
    for variation in range(tries):
        last = attempt(env, seed, noise=noise, variation=variation)
        if last.solved:
            break
    return last


def attempt(
    env: LiberoEnv, seed: int, *, noise: float = DEFAULT_NOISE, variation: int = 0
) -> Attempt:
    """Try the task once on the placement of a seed; simulate only physics.

    variation: with another number, plans and motions from the same placement differ.
    """
    env.sample(seed)
    # Continue from the flattened state alone, so that a replay from the first state is exact.
    env.restore(env.state())
    rng = np.random.default_rng([seed, variation])
    goals = order_goals(env.task.goals)
    speed, hover = float(rng.uniform(0.75, 1.0)), float(rng.uniform(0.06, 0.10))
    style = Style(speed=speed, noise=noise, hover=hover)
    arm = Arm(Scene(env), rng, style, max_steps=STEPS_PER_GOAL * max(1, len(goals)))
    try:
        for goal in (*goals, *goals):  # a later goal might undo an earlier one
            if not env.holds(goal):
                _reach_goal(arm, goal)
        arm.begin_skill("retreat", goals[-1].subject)
        arm.pause(FINAL_WAIT)
        missing = [goal for goal in goals if not env.holds(goal)]
        failure = f"undone: {missing}" if missing else "not stable"
    except Solved:
        failure = ""
    except Failed as error:
        failure = str(error)
    return Attempt(seed, variation, tuple(arm.frames), failure)


def order_goals(goals: tuple[Goal, ...]) -> tuple[Goal, ...]:
    """Return the goals in an order in which none obstructs another."""
    filled = {goal.target for goal in goals if goal.predicate == "in"}
    moved = {goal.subject for goal in goals if goal.target}

    def rank(goal: Goal) -> tuple[int, int]:
        if goal.predicate in ("turnon", "turnoff"):
            return (0, 0)
        if goal.predicate == "close":
            is_filled = any(target and target.startswith(goal.subject) for target in filled)
            return (4, 0) if is_filled else (1, 0)
        if goal.predicate == "open":
            return (2, 0)
        return (3, 1 if goal.target in moved else 0)

    return tuple(sorted(goals, key=rank))


def _reach_goal(arm: Arm, goal: Goal) -> None:
    """Make one goal hold."""
    if goal.predicate not in ("in", "on"):
        operate(arm, goal)
    elif needs_tilt(arm.scene, goal):
        transfer_tilted(arm, goal)
    else:
        others = [other for other in arm.env.task.goals if other != goal]
        try:
            transfer(arm, goal, shared=any(other.target == goal.target for other in others))
        except Unreachable:
            transfer_tilted(arm, goal)
