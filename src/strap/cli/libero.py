"""`strap libero collect` and `strap libero survey`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import tyro

from strap.cli.options import Json, print_json
from strap.cli.progress import show_progress

NOISE = 0.04


@dataclass(frozen=True)
class Collect:
    """Record demonstrations by a scripted expert, in LIBERO's HDF5 layout, one file per task.

    The objects' placements are sampled from the seed; the benchmark's fixed evaluation states are
    never used. Run the same command again to resume, or with a larger --demos to add
    demonstrations.
    """

    suite: str
    """libero_90, libero_10, libero_spatial, libero_object or libero_goal"""
    out: Path
    """the folder for the files"""
    demos: int = 10
    """demonstrations per task"""
    tasks: tuple[str, ...] = ()
    """only these tasks, by name or number (default: all of the suite)"""
    workers: int = 2
    """number of processes, each with one environment (up to 2.5 GB of memory)"""
    seed: int = 0
    """seed of the placements and the noise"""
    noise: float = NOISE
    """size of the noise added to every action, from 0 to 0.3"""
    labels: Literal["executed", "intended"] = "executed"
    """which actions are recorded: executed: with the noise; intended: as the expert chose them,
    without it, so that with more --noise policies learn to recover from deviations"""
    arm_noise: float = 0.02
    """how much the joints vary at the start of a demonstration, in radians"""
    size: int = 128
    """height and width of both cameras' images"""
    json: Json = False
    """print the outcome as JSON"""

    def run(self) -> int:
        """Collect, then print what was recorded; return 1 if a task lacks demonstrations."""
        from strap.libero import collect

        with show_progress(self.json) as progress:
            done = collect(
                self.suite,
                demos=self.demos,
                out=self.out,
                tasks=self.tasks or None,
                workers=self.workers,
                seed=self.seed,
                noise=self.noise,
                labels=self.labels,
                arm_noise=self.arm_noise,
                size=self.size,
                progress=progress,
            )
        if self.json:
            print_json(
                {
                    "out": str(done.out),
                    "files": [str(file) for file in done.files],
                    "recorded": done.recorded,
                    "kept": done.kept,
                    "failed_placements": done.failed_placements,
                    "given_up": done.given_up,
                    "per_minute": round(done.per_minute, 2),
                    "peak_memory": done.peak_memory,
                }
            )
        else:
            print(
                f"{done.out}: {done.recorded} demonstrations recorded, {done.kept} existed; "
                f"{done.failed_placements} placements failed and were drawn again; "
                f"{done.per_minute:.1f} a minute"
            )
            for task, count in done.given_up.items():
                print(f"given up: {count} of {task}")
        return 1 if done.given_up else 0


@dataclass(frozen=True)
class Survey:
    """Measure how often the expert succeeds on fresh placements of each task, without rendering."""

    out: Path
    """the folder for survey.json and survey.md; an interrupted survey resumes there"""
    suites: tuple[str, ...] = ("libero_90", "libero_10")
    """which suites"""
    attempts: int = 10
    """placements per task"""
    tasks: tuple[str, ...] = ()
    """only these tasks, by name or number"""
    workers: int = 2
    """number of processes"""
    noise: float = NOISE
    """size of the noise added to every action"""
    arm_noise: float = 0.02
    """how much the joints vary at the start of an attempt, in radians"""
    also: tuple[Path, ...] = ()
    """folders of other surveys; tasks measured there are not measured again"""
    json: Json = False
    """print the outcome as JSON"""

    def run(self) -> None:
        """Measure, then print how many tasks the expert solves on at least 80 % of placements."""
        from strap.libero import survey

        with show_progress(self.json) as progress:
            scores = survey(
                self.suites,
                attempts=self.attempts,
                out=self.out,
                tasks=self.tasks or None,
                workers=self.workers,
                noise=self.noise,
                arm_noise=self.arm_noise,
                also=self.also,
                progress=progress,
            )
        rows = {score.name: [score.solved, score.attempts] for score in scores}
        if self.json:
            print_json({"out": str(self.out), "solved": rows})
            return
        good = sum(solved >= 0.8 * attempts for solved, attempts in rows.values())
        print(f"{good} of {len(rows)} tasks solved on at least 80 % of placements → {self.out}")


Command: TypeAlias = (
    Annotated[Collect, tyro.conf.subcommand("collect", prefix_name=False)]
    | Annotated[Survey, tyro.conf.subcommand("survey", prefix_name=False)]
)
