"""The scripted expert: from a task's goal predicates to a labelled demonstration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from strap.libero.environment import LiberoEnv
from strap.libero.expert.drawers import operate
from strap.libero.expert.motion import Arm, Failed, Frame, Solved, Style, Unreachable
from strap.libero.expert.pick_and_place import transfer
from strap.libero.expert.scene import Scene
from strap.libero.expert.tilted_pick_and_place import needs_leaning, reach_in
from strap.libero.tasks import Goal

DEFAULT_NOISE = 0.04
STEPS_PER_GOAL = 330
FINAL_WAIT = 25


@dataclass(frozen=True)
class Attempt:
    """One try at a task from one placement."""

    seed: int
    solved: bool
    reason: str  # why it failed; empty when solved
    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class Outcome:
    """What came of a placement: the solved attempt, or the last of the failed ones."""

    attempt: Attempt
    tries: int


def solve(env: LiberoEnv, seed: int, *, noise: float = DEFAULT_NOISE, tries: int = 3) -> Outcome:
    """Solve the fresh placement of a seed, planning anew from its start where a try fails."""
    for variation in range(tries):
        found = attempt(env, seed, noise=noise, variation=variation)
        if found.solved:
            break
    return Outcome(found, variation + 1)


def attempt(
    env: LiberoEnv, seed: int, *, noise: float = DEFAULT_NOISE, variation: int = 0
) -> Attempt:
    """Try the task on the fresh placement of a seed; physics only.

    variation: another way of doing the same placement, for when the first did not work out.
    """
    env.sample(seed)
    # Continuing from the flattened state alone makes the attempt repeatable from its first state.
    env.restore(env.state())
    rng = np.random.default_rng([seed, variation])
    goals = plan(env)
    arm = Arm(
        Scene(env), rng, Style.draw(rng, noise), max_steps=STEPS_PER_GOAL * max(1, len(goals))
    )
    try:
        for goal in (*goals, *goals):  # a later goal may have undone an earlier one
            if not env.holds(goal):
                _achieve(arm, goal)
        arm.begin("retreat", goals[-1].subject)
        arm.pause(FINAL_WAIT)
        missing = [goal for goal in goals if not env.holds(goal)]
        reason = f"undone: {missing}" if missing else "not stable"
    except Solved:
        return Attempt(seed, True, "", tuple(arm.frames))
    except Failed as failure:
        reason = str(failure)
    return Attempt(seed, False, reason, tuple(arm.frames))


def plan(env: LiberoEnv) -> tuple[Goal, ...]:
    """The goals in an order in which none stands in the way of another."""
    goals = env.task.goals
    filled = {goal.target for goal in goals if goal.predicate == "in"}
    moved = {goal.subject for goal in goals if goal.target}

    def rank(goal: Goal) -> tuple[int, int]:
        if goal.predicate in ("turnon", "turnoff"):
            return (0, 0)
        if goal.predicate == "close":
            contains = goal.subject in filled or any(
                target and target.startswith(goal.subject) for target in filled
            )
            return (4, 0) if contains else (1, 0)
        if goal.predicate == "open":
            return (2, 0)
        return (3, 1 if goal.target in moved else 0)

    return tuple(sorted(goals, key=rank))


def _achieve(arm: Arm, goal: Goal) -> None:
    if goal.predicate in ("in", "on"):
        if needs_leaning(arm.scene, goal):
            reach_in(arm, goal)
            return
        others = [other for other in arm.env.task.goals if other != goal]
        try:
            transfer(arm, goal, shared=any(other.target == goal.target for other in others))
        except Unreachable:
            reach_in(arm, goal)
    else:
        operate(arm, goal)
