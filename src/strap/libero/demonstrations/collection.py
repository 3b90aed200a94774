"""Collecting scripted demonstrations: several processes, resumable, one file per task.

Demonstration k of a task has a sequence of placement seeds of its own, so what is collected
depends neither on the number of workers nor on interruptions. Physics comes first; only what
succeeded is rendered.
"""

from __future__ import annotations

import json
import resource
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from strap.artifacts import LOCK, remove_leftovers
from strap.errors import StrapError, unknown
from strap.libero.demonstrations.recording import (
    Labels,
    Settings,
    assemble,
    check_settings,
    note_settings,
    parts_folder,
    record,
    recorded_slots,
    write_part,
)
from strap.libero.demonstrations.workers import run_each
from strap.libero.environment import LiberoEnv
from strap.libero.expert.attempts import DEFAULT_NOISE, solve
from strap.libero.rendering.backend import select_backend
from strap.libero.tasks import Task, find_task, list_tasks
from strap.locks import alone

PLACEMENTS = 4  # placements to try for one demonstration before giving it up
DEFAULT_ARM_NOISE = 0.02  # radians; robosuite's own, and that of the benchmark's fixed states
SLOTS_PER_JOB = 10  # a process ends after this many: environments hold on to memory
SEED_STRIDE = 10_000  # placement seeds of one --seed; also the most demonstrations per task


@dataclass(frozen=True)
class Job:
    """Some demonstrations of one task, done in one process."""

    suite: str
    task: int
    slots: tuple[int, ...]
    out: str
    settings: Settings


@dataclass(frozen=True)
class JobReport:
    """What came of a job."""

    recorded: int
    failed_placements: int
    given_up: tuple[int, ...]  # slots without a demonstration
    peak_memory: int  # bytes


@dataclass(frozen=True)
class Collection:
    """What `collect` did."""

    out: Path
    files: tuple[Path, ...]
    recorded: int  # demonstrations made in this call
    kept: int  # demonstrations that were there before
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
    quiet: bool = False,
) -> Collection:
    """Record `demos` demonstrations of each task into `out`, in LIBERO's HDF5 layout.

    Started again after an interruption, or with more demonstrations, it goes on where it was.
    `arm_noise` is how much (radians) the joints vary where a demonstration begins, by default as
    in the benchmark's fixed states: a policy that has always begun in one pose fails from others.
    With `labels="intended"` the actions are those the expert meant, and `noise` moves the arm off
    its way: a policy learns how to come back instead of the noise. Replaying them is then no
    demonstration any more; what was executed is kept beside them.
    """
    if labels not in get_args(Labels):
        raise unknown("labels", labels, get_args(Labels))
    if demos < 1 or workers < 1 or demos > SEED_STRIDE:
        raise StrapError(
            f"demos={demos}, workers={workers}: demos goes from 1 to {SEED_STRIDE}, workers from 1"
        )
    if noise < 0 or noise > 0.3:
        raise StrapError(f"noise {noise}: the expert recovers from 0 to 0.3; try {DEFAULT_NOISE}")
    if not 0 <= arm_noise <= 0.1:
        raise StrapError(
            f"arm noise {arm_noise}: joints may vary by 0 to 0.1 radians; try {DEFAULT_ARM_NOISE}"
        )
    select_backend()  # once, before the workers start
    begin = time.monotonic()
    folder, settings = Path(out), Settings(seed, noise, size, antialias, arm_noise, labels)
    chosen = list_tasks(suite) if tasks is None else [find_task(suite, name) for name in tasks]
    total = demos * len(chosen)
    with alone(folder / LOCK, f"collecting into '{folder}'"):
        remove_leftovers(folder)
        kept = {task.index: _missing(task, folder, settings, demos) for task in chosen}
        left = sum(len(missing) for missing in kept.values())
        reports, files = _run(chosen, kept, folder, settings, workers, total, quiet)
    given_up: dict[str, int] = {}
    for task, report in reports:
        given_up[task.name] = given_up.get(task.name, 0) + len(report.given_up)
    return Collection(
        out=folder,
        files=files,
        recorded=sum(report.recorded for _, report in reports),
        kept=total - left,
        failed_placements=sum(report.failed_placements for _, report in reports),
        given_up={name: count for name, count in given_up.items() if count},
        seconds=time.monotonic() - begin,
        peak_memory=max((report.peak_memory for _, report in reports), default=0),
    )


def run_job(job: Job) -> JobReport:
    """Make the demonstrations of one job in this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    task = find_task(job.suite, job.task)
    folder = parts_folder(Path(job.out), task)
    recorded, failed, given_up = 0, 0, []
    settings = job.settings
    there = recorded_slots(task, Path(job.out))  # by this job, if its first process was killed
    with LiberoEnv(
        task, size=settings.size, antialias=settings.antialias, arm_noise=settings.arm_noise
    ) as env:
        for slot in sorted(set(job.slots) - there):
            failures = 0
            for seed in placement_seeds(settings.seed, slot):
                outcome = solve(env, seed, noise=settings.noise)
                if outcome.attempt.solved:
                    demo = record(
                        env, outcome.attempt, slot=slot, failures=failures, labels=settings.labels
                    )
                    write_part(demo, folder)
                    recorded += 1
                    break
                failures += 1
            else:
                given_up.append(slot)
            failed += failures
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return JobReport(recorded, failed, tuple(given_up), peak)


def placement_seeds(seed: int, slot: int) -> Iterator[int]:
    """The placements to try for demonstration `slot`, in order."""
    for number in range(PLACEMENTS):
        yield (seed * PLACEMENTS + number) * SEED_STRIDE + slot


def _missing(task: Task, out: Path, settings: Settings, demos: int) -> tuple[int, ...]:
    check_settings(task, out, settings)
    there = recorded_slots(task, out)
    missing = tuple(slot for slot in range(demos) if slot not in there)
    if missing:
        note_settings(task, out, settings)
    return missing


def _jobs(
    tasks: Sequence[Task],
    missing: dict[int, tuple[int, ...]],
    out: Path,
    settings: Settings,
    workers: int,
) -> list[tuple[Task, Job]]:
    """Large jobs first, smaller ones at the end, so that no worker waits long for the others.

    Not too small: a process takes as long to begin as a demonstration takes to make.
    """
    jobs = []
    left = sum(len(missing[task.index]) for task in tasks)
    for task in tasks:
        slots = missing[task.index]
        while slots:
            size = min(SLOTS_PER_JOB, max(2, -(-left // workers)))
            own, slots = slots[:size], slots[size:]
            left -= len(own)
            jobs.append((task, Job(task.suite, task.index, own, str(out), settings)))
    return jobs


def _run(
    tasks: Sequence[Task],
    missing: dict[int, tuple[int, ...]],
    out: Path,
    settings: Settings,
    workers: int,
    total: int,
    quiet: bool,
) -> tuple[list[tuple[Task, JobReport]], tuple[Path, ...]]:
    """Run all jobs, assembling each task as its last one ends."""
    reports: list[tuple[Task, JobReport]] = []
    files = []
    waiting = {task.index: 0 for task in tasks}
    jobs = _jobs(tasks, missing, out, settings, workers)
    for task, _ in jobs:
        waiting[task.index] += 1
    with _progress(quiet) as progress:
        bar = progress.add_task("demonstrations", total=total)
        progress.advance(bar, total - sum(len(job.slots) for _, job in jobs))
        by_index = {task.index: task for task in tasks}
        for job, report in run_each(run_job, [job for _, job in jobs], workers):
            task = by_index[job.task]
            reports.append((task, report))
            waiting[task.index] -= 1
            progress.advance(bar, report.recorded + len(report.given_up))
            if waiting[task.index] == 0:
                assemble(task, out, settings)
        for task in tasks:
            file = assemble(task, out, settings)
            if file is not None:
                files.append(file)
    return reports, tuple(files)


def _progress(quiet: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        disable=quiet,
    )


def describe(collection: Collection) -> str:
    """A summary in a few lines."""
    lines = [
        f"{collection.recorded} demonstrations recorded, {collection.kept} kept, "
        f"{collection.failed_placements} placements failed, "
        f"{collection.per_minute:.1f} a minute, "
        f"largest worker {collection.peak_memory / 1e9:.2f} GB"
    ]
    if collection.given_up:
        lines.append(f"given up: {json.dumps(collection.given_up)}")
    return "\n".join(lines)
