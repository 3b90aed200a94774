"""Run rollouts of a policy in several environments at once, with batched observations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from strap.cpus import count_cpus
from strap.errors import StrapError
from strap.evaluation.records import rollout_seed
from strap.evaluation.simulators import HORIZON, RETRIES, Maker, SimulatorPool, TimeStep
from strap.policies.acting import Policy
from strap.policies.inputs import Observation
from strap.progress import Progress, silent
from strap.types import Array


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
    """uint8 [t h w 3], the cameras side by side; empty without videos"""

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
    """Run an episode from each initial state; call `finished` with each episode when it ends.

    A crashed environment is replaced and its episode repeated, at most twice. An episode whose
    environment raises a StrapError is not repeated. The other episodes continue.
    """
    done = 0
    with (
        SimulatorPool(maker, arguments, states, workers) as pool,
        _spare_cpus(min(workers, len(states))),
    ):
        total = horizon * len(states)

        def report(running_steps: int) -> None:
            # A finished episode counts as `horizon` steps, even if it ended early.
            progress("simulated steps", min(total, horizon * done + running_steps), total)

        rollout = _Rollout(policy, instruction, horizon, seed, videos, pool, report)
        for done, episode in enumerate(rollout.run(), start=1):
            finished(episode)
            progress("episodes", done, len(states))
    for state, error in pool.lost.items():
        if isinstance(error, StrapError):
            raise StrapError(
                f"initial state {state}: {error} ({done} finished episodes are kept)"
            ) from error
        raise StrapError(
            f"the environment failed {RETRIES + 1} times on initial state {state}: {error}; "
            f"{done} finished episodes are kept, run the same command again to try the rest"
        ) from error


@contextmanager
def _spare_cpus(environments: int) -> Iterator[None]:
    """Limit torch's threads to the CPUs that the environments do not use.

    Threads of one operation wait for each other: if an environment delays one of them, they are
    many times slower than fewer threads.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, min(threads, count_cpus() - environments)))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(eq=False)
class _RunningEpisode:
    """The state of an episode before its end."""

    state: int
    start_time: float
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
    pool: SimulatorPool
    report: Callable[[int], None]
    """called with the number of steps of the running episodes"""
    running: dict[int, _RunningEpisode] = field(default_factory=dict)
    """slot -> its episode"""

    def run(self) -> Iterator[Episode]:
        """Yield each episode when it ends."""
        self._begin()
        while self.pool.n_unfinished:
            observations: dict[int, TimeStep] = {}
            for slot, seen in self.pool.receive().items():
                episode = self._update(self.running[slot], seen)
                if episode is None:
                    observations[slot] = seen
                    continue
                self.pool.finish(slot)
                del self.running[slot]
                yield episode
            self._begin()
            self.report(sum(max(episode.steps, 0) for episode in self.running.values()))
            self._act(observations)

    def _begin(self) -> None:
        for slot, state in self.pool.begin().items():
            self.policy.reset(slot, seed=rollout_seed(self.seed, state))
            self.running[slot] = _RunningEpisode(state, time.perf_counter())

    def _update(self, episode: _RunningEpisode, seen: TimeStep) -> Episode | None:
        """Add an observation to an episode; return the episode if it has ended."""
        episode.steps += 1
        for goal, holds in seen.goals.items():
            if episode.goals.setdefault(goal, None) is None and holds:
                episode.goals[goal] = episode.steps
        if self.videos:
            episode.frames.append(np.concatenate(list(seen.images.values()), axis=1))
        # A task that is solved at the start only counts after the first action.
        if not (seen.solved and episode.steps) and episode.steps < self.horizon:
            return None
        return Episode(
            episode.state,
            rollout_seed(self.seed, episode.state),
            episode.steps,
            seen.solved,
            dict(episode.goals),
            dict(seen.goals),
            round(time.perf_counter() - episode.start_time, 2),
            np.stack(episode.frames) if episode.frames else np.zeros((0, 1, 1, 3), np.uint8),
        )

    def _act(self, observations: Mapping[int, TimeStep]) -> None:
        if not observations:
            return
        selected = {slot: self._select(seen) for slot, seen in observations.items()}
        for slot, action in self.policy.act_many(selected).items():
            self.pool.step(slot, action)

    def _select(self, seen: TimeStep) -> Observation:
        """Return the policy's observation: it might not use all cameras."""
        cameras = self.policy.interface.cameras
        images = {name: image for name, image in seen.images.items() if name in cameras}
        return Observation(images, seen.proprioception, self.instruction)
