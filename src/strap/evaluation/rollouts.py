"""Rolling a policy out: several environments at once, one batch of observations at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from strap.errors import StrapError
from strap.evaluation.records import rollout_seed
from strap.evaluation.simulators import HORIZON, Maker, TimeStep, serve_simulator
from strap.policies.acting import Policy
from strap.policies.inputs import Observation
from strap.processors import processors
from strap.progress import Progress, silent
from strap.types import Array
from strap.workers import Assignment, Supervisor, Worker, WorkerError

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


def roll_out(
    policy: Policy,
    instruction: str,
    states: Sequence[int],
    maker: Maker,
    arguments: tuple[Any, ...],
    finished: Callable[[Episode], None],
    *,
    horizon: int = HORIZON,
    workers: int = 2,
    seed: int = 0,
    videos: bool = True,
    progress: Progress = silent,
) -> None:
    """Run an episode from each state; `finished` is called as each ends.

    A crashed environment is replaced and its episode begun again, twice at most; the others go on.
    """
    start = partial(Worker, serve_simulator, maker, arguments)
    done = 0
    with (
        Supervisor(start, states, workers=workers, attempts=RETRIES + 1) as supervisor,
        _leave_processors(min(workers, len(states))),
    ):
        total = horizon * len(states)

        def tell(steps_under_way: int) -> None:
            # An episode that ends early has its steps behind it all the same.
            progress("simulated steps", min(total, horizon * done + steps_under_way), total)

        rollout = _Rollout(policy, instruction, horizon, seed, videos, supervisor, tell)
        for done, episode in enumerate(rollout.run(), start=1):
            finished(episode)
            progress("episodes", done, len(states))
    for state, error in rollout.lost.items():
        raise StrapError(
            f"the environment failed {RETRIES + 1} times on initial state {state}: {error}; "
            f"{done} finished episodes are kept, run the same command again to try the rest"
        ) from error


@contextmanager
def _leave_processors(environments: int) -> Iterator[None]:
    """Give the policy the processors that the environments do not use.

    Threads that wait for each other and are kept from running by an environment cost many times
    what they gain.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, min(threads, processors() - environments)))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(eq=False)
class _EpisodeUnderWay:
    """What is known of an episode before its end."""

    state: int
    began: float
    steps: int = -1
    goals: dict[str, int | None] = field(default_factory=dict)
    frames: list[Array] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class _Rollout:
    policy: Policy
    instruction: str
    horizon: int
    seed: int
    videos: bool
    supervisor: Supervisor[int]
    tell: Callable[[int], None]
    """called with the steps of the episodes under way"""
    under_way: dict[int, _EpisodeUnderWay] = field(default_factory=dict)
    """slot -> its episode"""
    lost: dict[int, Exception] = field(default_factory=dict)
    """initial state -> why its environment failed the last time"""

    def run(self) -> Iterator[Episode]:
        """Yield the episodes as they end."""
        self._begin()
        while self.supervisor.n_unfinished:
            assignments = self._wait()
            shown: dict[Worker, tuple[int, TimeStep]] = {}
            for assignment in assignments:
                seen = self._receive(assignment)
                if seen is None:
                    continue
                episode = self._note(self.under_way[assignment.slot], seen)
                if episode is None:
                    shown[assignment.worker] = assignment.slot, seen
                    continue
                self.supervisor.finish(assignment, keep_worker=True)
                del self.under_way[assignment.slot]
                yield episode
            self._begin()
            self.tell(sum(max(episode.steps, 0) for episode in self.under_way.values()))
            self._act(shown)

    def _begin(self) -> None:
        for assignment in self.supervisor.assign():
            slot, state = assignment.slot, assignment.job
            self.policy.reset(slot, seed=rollout_seed(self.seed, state))
            self.under_way[slot] = _EpisodeUnderWay(state, time.perf_counter())
            assignment.worker.send(("begin", state))

    def _wait(self) -> list[Assignment[int]]:
        ready = self.supervisor.wait(SILENCE)
        if not ready:
            raise StrapError(
                f"no environment has answered for {SILENCE:.0f} s: use fewer --workers; finished "
                "episodes are kept"
            )
        return ready

    def _receive(self, assignment: Assignment[int]) -> TimeStep | None:
        """Return what an environment shows; None where it failed, to be begun again."""
        try:
            seen: TimeStep = assignment.worker.receive()
        except (WorkerError, StrapError) as error:
            if not self.supervisor.retry(assignment):
                self.lost[assignment.job] = error
            return None
        return seen

    def _note(self, episode: _EpisodeUnderWay, seen: TimeStep) -> Episode | None:
        """Take in what was seen; return the episode where it has ended."""
        episode.steps += 1
        for goal, holds in seen.goals.items():
            if episode.goals.setdefault(goal, None) is None and holds:
                episode.goals[goal] = episode.steps
        if self.videos:
            episode.frames.append(np.concatenate(list(seen.images.values()), axis=1))
        # A task that is solved before the first action counts once something was done.
        if not (seen.solved and episode.steps) and episode.steps < self.horizon:
            return None
        return Episode(
            episode.state,
            rollout_seed(self.seed, episode.state),
            episode.steps,
            seen.solved,
            dict(episode.goals),
            dict(seen.goals),
            round(time.perf_counter() - episode.began, 2),
            np.stack(episode.frames) if episode.frames else np.zeros((0, 1, 1, 3), np.uint8),
        )

    def _act(self, shown: Mapping[Worker, tuple[int, TimeStep]]) -> None:
        if not shown:
            return
        observations = {slot: self._select(seen) for slot, seen in shown.values()}
        actions = self.policy.act_many(observations)
        for worker, (slot, _) in shown.items():
            worker.send(("step", actions[slot]))

    def _select(self, seen: TimeStep) -> Observation:
        """Return what the policy looks at: it may have been trained with some of the cameras."""
        cameras = self.policy.interface.cameras
        images = {name: image for name, image in seen.images.items() if name in cameras}
        return Observation(images, seen.proprioception, self.instruction)
