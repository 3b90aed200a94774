"""Rolling a policy out: several environments at once, one batch of observations at a time."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

import numpy as np
import torch

from strap.errors import StrapError
from strap.evaluation.simulators import Maker, Seen, Worker
from strap.policies.acting import Observation, Policy
from strap.processors import processors
from strap.progress import Progress, silent
from strap.types import Array

RETRIES = 2
"""How often a crashed episode is begun again."""
SILENCE = 600.0
"""Seconds without an answer after which environments are given up."""


@dataclass(frozen=True)
class Episode:
    """One finished rollout."""

    state: int
    seed: int
    steps: int
    success: bool
    goals: Mapping[str, int | None]
    """sub-goal -> the step at which it first held"""
    final: Mapping[str, bool]
    """sub-goal -> whether it held at the end"""
    seconds: float
    frames: Array = field(repr=False, compare=False)
    """uint8 [t h w 3], the cameras side by side; empty where no video is wanted"""

    @property
    def partial(self) -> float:
        """The share of sub-goals reached."""
        reached = [step is not None for step in self.goals.values()]
        return sum(reached) / len(reached) if reached else float(self.success)


@dataclass(eq=False)
class _Running:
    """An episode under way on a worker."""

    worker: Worker
    state: int
    began: float
    steps: int = -1
    goals: dict[str, int | None] = field(default_factory=dict)
    frames: list[Array] = field(default_factory=list)


def roll_out(
    policy: Policy,
    instruction: str,
    states: Sequence[int],
    maker: Maker,
    arguments: tuple[Any, ...],
    finished: Callable[[Episode], None],
    *,
    horizon: int = 520,
    workers: int = 2,
    seed: int = 0,
    videos: bool = True,
    progress: Progress = silent,
) -> None:
    """Run an episode from each state; `finished` is called as each ends.

    A crashed environment is replaced and its episode begun again, twice at most; the others go on.
    """
    rollout = _Rollout(policy, instruction, horizon, seed, videos)
    left, crashes = deque(states), Counter[int]()
    running: dict[int, _Running] = {}
    lost: dict[int, str] = {}
    done = 0
    for slot in range(min(workers, len(left))):
        running[slot] = rollout.begin(slot, Worker(maker, arguments), left.popleft())
    threads = torch.get_num_threads()
    # What the environments use is not the policy's: threads that wait for each other and are kept
    # from running by an environment cost many times what they gain.
    torch.set_num_threads(max(1, min(threads, processors() - len(running))))
    try:
        while running:
            ready = _ready(running)
            waiting: dict[int, Seen] = {}
            for slot in ready:
                own = running[slot]
                answer = own.worker.receive()
                if isinstance(answer, str):
                    crashes[own.state] += 1
                    if crashes[own.state] > RETRIES:
                        lost[own.state] = answer
                    else:
                        left.appendleft(own.state)
                    own.worker.close()
                    del running[slot]
                    if left:
                        fresh = Worker(maker, arguments)
                        running[slot] = rollout.begin(slot, fresh, left.popleft())
                    continue
                episode = rollout.note(own, answer)
                if episode is None:
                    waiting[slot] = answer
                    continue
                finished(episode)
                done += 1
                progress("episodes", done, len(states))
                if left:
                    running[slot] = rollout.begin(slot, own.worker, left.popleft())
                else:
                    own.worker.close()
                    del running[slot]
            rollout.act(running, waiting)
    finally:
        torch.set_num_threads(threads)
        for own in running.values():
            own.worker.close()
    if lost:
        state, reason = next(iter(lost.items()))
        raise StrapError(
            f"the environment failed {RETRIES + 1} times on initial state {state}: {reason}; "
            f"{done} finished episodes are kept, run the same command again to try the rest"
        )


def _ready(running: Mapping[int, _Running]) -> list[int]:
    connections = {own.worker.connection: slot for slot, own in running.items()}
    ready = wait(list(connections), timeout=SILENCE)
    if not ready:
        raise StrapError(
            f"no environment has answered for {SILENCE:.0f} s: use fewer --workers; finished "
            "episodes are kept"
        )
    return sorted(connections[one] for one in ready)  # type: ignore[index]


@dataclass(frozen=True, eq=False)
class _Rollout:
    policy: Policy
    instruction: str
    horizon: int
    seed: int
    videos: bool

    def begin(self, slot: int, worker: Worker, state: int) -> _Running:
        self.policy.reset(slot, seed=self._seed(state))
        worker.begin(state)
        return _Running(worker, state, time.perf_counter())

    def note(self, own: _Running, seen: Seen) -> Episode | None:
        """Take in what was seen; the episode where it has ended."""
        own.steps += 1
        for goal, holds in seen.goals.items():
            if own.goals.setdefault(goal, None) is None and holds:
                own.goals[goal] = own.steps
        if self.videos:
            views = list(seen.images.values())
            own.frames.append(np.concatenate(views, axis=1))
        # A task that is solved before the first action counts once something was done.
        if not (seen.solved and own.steps) and own.steps < self.horizon:
            return None
        return Episode(
            own.state,
            self._seed(own.state),
            own.steps,
            seen.solved,
            dict(own.goals),
            dict(seen.goals),
            round(time.perf_counter() - own.began, 2),
            np.stack(own.frames) if own.frames else np.zeros((0, 1, 1, 3), np.uint8),
        )

    def act(self, running: Mapping[int, _Running], waiting: Mapping[int, Seen]) -> None:
        if not waiting:
            return
        observations = {
            slot: Observation(seen.images, seen.proprioception, self.instruction)
            for slot, seen in waiting.items()
        }
        for slot, action in self.policy.act_many(observations).items():
            running[slot].worker.step(action)

    def _seed(self, state: int) -> int:
        return self.seed * 100_000 + state
