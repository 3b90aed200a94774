"""Collect scripted demonstrations in several processes; resumable, one file per task.

Demonstration k of a task has its own sequence of placement seeds, so the result depends neither on
the number of workers nor on interruptions. Attempts only simulate physics; images are rendered
afterwards, and only for successful attempts.
"""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from strap.atomic import remove_leftovers
from strap.errors import StrapError, unknown
from strap.libero.demonstrations.recording import (
    Labels,
    Settings,
    assemble,
    check_settings,
    parts_folder,
    record,
    recorded_slots,
    write_part,
    write_settings,
)
from strap.libero.environment import LiberoEnv
from strap.libero.expert.attempts import DEFAULT_NOISE, solve
from strap.libero.rendering.backend import select_backend
from strap.libero.tasks import Task, select_tasks
from strap.locks import LOCK, exclusive_lock
from strap.progress import Progress, silent
from strap.workers import run_each

PLACEMENTS = 4  # placements to try for one demonstration before it is given up
DEFAULT_ARM_NOISE = 0.02  # radians; robosuite's default, and that of the benchmark's fixed states
SLOTS_PER_JOB = 10  # demonstrations per process, because environments do not free all memory
SEED_STRIDE = 10_000  # placement seeds per --seed and try; also the most demonstrations per task


@dataclass(frozen=True)
class CollectionJob:
    """Several demonstrations of one task to make in one process."""

    task: Task
    slots: tuple[int, ...]
    out: Path
    settings: Settings


@dataclass(frozen=True)
class CollectionReport:
    """The result of one job."""

    recorded: int  # demonstrations, including those of killed earlier processes
    failed_placements: int
    given_up: tuple[int, ...]  # slots without a demonstration
    peak_memory: int  # bytes


@dataclass(frozen=True)
class Collection:
    """The result of `collect`."""

    out: Path
    files: tuple[Path, ...]
    recorded: int  # demonstrations made in this call
    kept: int  # demonstrations that existed already
    failed_placements: int
    given_up: dict[str, int]  # task -> demonstrations that could not be made
    seconds: float
    peak_memory: int  # bytes, of the largest worker

    @property
    def per_minute(self) -> float:
        """Demonstrations made per minute."""
        return 60 * self.recorded / max(self.seconds, 1e-9)


def collect(
    suite: str,
    *,
    demos: int,
    out: str | Path,
    tasks: Iterable[str | int] | None = None,
    workers: int = 2,
    seed: int = 0,
    noise: float = DEFAULT_NOISE,
    arm_noise: float = DEFAULT_ARM_NOISE,
    size: int = 128,
    antialias: bool = False,
    labels: Labels = "executed",
    progress: Progress = silent,
) -> Collection:
    """Record `demos` demonstrations of each task into `out`, in LIBERO's HDF5 layout.

    A call after an interruption, or with more demonstrations, only adds the missing ones.
    `arm_noise` is the standard deviation (radians) of the initial joint angles, by default as in
    the benchmark's fixed states: a policy trained from a single pose fails from others. `noise`
    disturbs the expert's actions. With `labels="intended"`, the recorded actions are those without
    the disturbance, so that a policy learns to recover from the noise instead of imitating it.
    Replaying intended actions does not solve the task; the executed ones are stored next to them.
    `progress` is called with (what, done, total).
    """
    if labels not in get_args(Labels):
        raise unknown("labels", labels, get_args(Labels))
    if demos < 1 or workers < 1 or demos > SEED_STRIDE:
        raise StrapError(
            f"demos={demos}, workers={workers}: demos goes from 1 to {SEED_STRIDE}, workers from 1"
        )
    if noise < 0 or noise > 0.3:
        raise StrapError(
            f"noise is {noise}: the expert can recover from 0 to 0.3; try {DEFAULT_NOISE}"
        )
    if not 0 <= arm_noise <= 0.1:
        raise StrapError(
            f"arm noise is {arm_noise}: it must be 0 to 0.1 radians; try {DEFAULT_ARM_NOISE}"
        )
    select_backend()  # once, before the workers start
    start = time.monotonic()
    folder, settings = Path(out), Settings(seed, noise, size, antialias, arm_noise, labels)
    chosen = select_tasks(suite, tasks)
    total = demos * len(chosen)
    with exclusive_lock(folder / LOCK, f"collecting into '{folder}'"):
        remove_leftovers(folder)
        missing = {task: _prepare_missing(task, folder, settings, demos) for task in chosen}
        kept = total - sum(len(slots) for slots in missing.values())
        jobs = split_jobs(missing, folder, settings, workers)
        reports = _run_jobs(jobs, workers, lambda n: progress("demonstrations", kept + n, total))
        files = [assemble(task, folder, settings) for task in chosen]
    given_up: Counter[str] = Counter()
    for task, report in reports:
        given_up[task.name] += len(report.given_up)
    return Collection(
        out=folder,
        files=tuple(file for file in files if file is not None),
        recorded=sum(report.recorded for _, report in reports),
        kept=kept,
        failed_placements=sum(report.failed_placements for _, report in reports),
        given_up={name: count for name, count in given_up.items() if count},
        seconds=time.monotonic() - start,
        peak_memory=max((report.peak_memory for _, report in reports), default=0),
    )


def _run_jobs(
    jobs: Sequence[CollectionJob], workers: int, report_done: Callable[[int], None]
) -> list[tuple[Task, CollectionReport]]:
    """Run all jobs; assemble each task's file when its last job ends."""
    reports: list[tuple[Task, CollectionReport]] = []
    n_waiting, done = Counter(job.task for job in jobs), 0
    for job, report in run_each(run_job, jobs, workers):
        reports.append((job.task, report))
        done += len(job.slots)
        report_done(done)
        n_waiting[job.task] -= 1
        if n_waiting[job.task] == 0:
            assemble(job.task, job.out, job.settings)
    return reports


def run_job(job: CollectionJob) -> CollectionReport:
    """Make the demonstrations of one job in this process."""
    task, settings = job.task, job.settings
    # A killed process might have made some of them.
    slots = sorted(set(job.slots) - recorded_slots(task, job.out))
    if not slots:
        return CollectionReport(len(job.slots), 0, (), 0)
    n_failed, given_up = 0, []
    with LiberoEnv(
        task, size=settings.size, antialias=settings.antialias, arm_noise=settings.arm_noise
    ) as env:
        for slot in slots:
            for failures, seed in enumerate(placement_seeds(settings.seed, slot)):
                solved = solve(env, seed, noise=settings.noise)
                if solved.solved:
                    demo = record(env, solved, slot=slot, failures=failures, labels=settings.labels)
                    write_part(demo, parts_folder(job.out, task))
                    break
                n_failed += 1
            else:
                given_up.append(slot)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return CollectionReport(len(job.slots) - len(given_up), n_failed, tuple(given_up), peak)


def placement_seeds(seed: int, slot: int) -> Iterator[int]:
    """Yield the seeds of the placements to try for demonstration `slot`, in order."""
    for number in range(PLACEMENTS):
        yield (seed * PLACEMENTS + number) * SEED_STRIDE + slot


def _prepare_missing(task: Task, out: Path, settings: Settings, demos: int) -> tuple[int, ...]:
    """Return the slots of a task that have no demonstration yet; write the settings of new ones."""
    check_settings(task, out, settings)
    recorded = recorded_slots(task, out)
    missing = tuple(slot for slot in range(demos) if slot not in recorded)
    if missing:
        write_settings(task, out, settings)
    return missing


def split_jobs(
    missing: Mapping[Task, Sequence[int]], out: Path, settings: Settings, workers: int
) -> list[CollectionJob]:
    """Split the missing slots into jobs, large ones first and smaller ones at the end.

    So no worker waits long for the others at the end. Jobs have at least two slots if possible,
    because starting a process takes as long as making a demonstration.
    """
    jobs = []
    n_remaining = sum(len(slots) for slots in missing.values())
    for task, slots in missing.items():
        while slots:
            size = min(SLOTS_PER_JOB, max(2, -(-n_remaining // workers)))
            jobs.append(CollectionJob(task, tuple(slots[:size]), out, settings))
            n_remaining -= len(slots[:size])
            slots = slots[size:]
    return jobs
