"""`strap experiment`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro

from strap.cli import cache, parse, retrieve, train
from strap.cli.help import options_of
from strap.errors import StrapError

EXPERIMENT_COMMANDS = ("cache", "retrieve", "train", "evaluate")
"""The commands whose options an experiment's file can set."""


@dataclass(frozen=True)
class Command:
    """Run a table of tasks × methods × K × encoders × seeds, and report it.

    Every stage is a `strap` command in its own process. A finished stage is never repeated: if the
    command is interrupted, run it again to resume. Several such commands can work in one folder.
    docs/experiments.md describes the file.
    """

    EXAMPLES: ClassVar = (
        "strap experiment runs/main_table.toml --data DATA --out work --list",
        "strap experiment runs/main_table.toml --data DATA --out work --trainings 3",
        "strap experiment runs/main_table.toml --out work --report",
    )
    file: Annotated[Path, tyro.conf.Positional]
    """the experiment's TOML file"""
    out: Path
    """the work folder; with --report also a folder that --keep filled"""
    data: Path | None = None
    """the folder of the datasets (default: the folder of FILE)"""
    tasks: tuple[str, ...] = ()
    """only these tasks, by short name (default: all)"""
    methods: tuple[str, ...] = ()
    """only these methods, by name (default: all)"""
    seeds: tuple[int, ...] = ()
    """only these seeds (default: all)"""
    trainings: int = 1
    """how many trainings run at the same time; on one GPU use three or four"""
    evaluations: int = 1
    """how many evaluations run at the same time, in addition to the trainings"""
    evaluate_last: bool = False
    """start evaluations only when all trainings are finished, which is faster if they share a
    GPU"""
    retrievals: int = 1
    """how many retrievals run at the same time, in addition to trainings and evaluations"""
    workers: int = 2
    """environments of each evaluation, each a process of up to 2.5 GB"""
    keep: Path | None = None
    """a folder to which each finished cell is copied: records, matches and manifest, no weights"""
    kept: Path | None = None
    """a folder that --keep filled; its cells count as finished"""
    checkpoints: bool = False
    """keep the weights of evaluated policies"""
    minutes: float | None = None
    """after this many minutes, start only evaluations of policies that are trained or in training;
    running commands are not stopped"""
    stages: tuple[Literal["cache", "retrieve", "pretrain", "train", "evaluate"], ...] = ()
    """run only these stages, for example cache and retrieve on a machine without a GPU (default:
    all)"""
    mps: bool = True
    """do not share the GPU through CUDA's Multi-Process Service (default: shared if the service is
    available)"""
    list: bool = False
    """print the cells and the remaining commands, and run nothing"""
    report: bool = False
    """write tables and figures of the finished cells, and run nothing"""
    report_out: Path | None = None
    """the folder for the report (default: OUT/report)"""

    def run(self) -> int:
        """Run, list or report."""
        from strap.experiments.cells import list_cells
        from strap.experiments.description import read_experiment

        known = {name: list_options(name) for name in EXPERIMENT_COMMANDS}
        experiment = read_experiment(self.file, known)
        cells = list_cells(experiment, tasks=self.tasks, methods=self.methods, seeds=self.seeds)
        work = self.out.expanduser().resolve()
        if self.report:
            from strap.experiments.reporting import write_report

            for path in write_report(experiment, cells, work, self.report_out or work / "report"):
                print(path)
            return 0
        from strap.experiments.datafolder import open_data
        from strap.experiments.plan import Planner
        from strap.experiments.runner import format_plan

        data = open_data(experiment, self.data or self.file.parent, must_exist=not self.list)
        planner = Planner(data, work, known, workers=self.workers)
        _require_values(replace(planner, _stages={}).plan(cells), planner.program)
        if self.list:
            print(format_plan(cells, planner, self.kept, self.stages))
            return 0
        return self._run(cells, planner)

    def _run(self, cells: Any, planner: Any) -> int:
        from strap.experiments.runner import RunSettings, run_cells

        settings = RunSettings(
            trainings=self.trainings,
            evaluations=self.evaluations,
            evaluate_last=self.evaluate_last,
            retrievals=self.retrievals,
            keep=self.keep,
            kept=self.kept,
            checkpoints=self.checkpoints,
            share_gpu=self.mps,
            seconds=None if self.minutes is None else 60 * self.minutes,
            stages=self.stages,
        )
        outcome = run_cells(cells, planner, settings, _tell)
        if outcome.postponed:
            print(f"{len(outcome.postponed)} stages are left for another run")
        if outcome.failed:
            print(
                f"{len(outcome.failed)} stages failed and {len(outcome.blocked)} wait for them: "
                "fix the errors in their logs, then run the same command again"
            )
            return 1
        return 0


def _require_values(stages: Iterable[Any], program: Sequence[str]) -> None:
    """Raise if a command would reject its options, which otherwise shows only when it runs.

    One command of each kind and options is checked; tasks and seeds make no difference.
    """
    seen = set()
    frames: cache.Command | None = None
    for stage in stages:
        name, *words = stage.command[len(program) :]
        kind = (stage.kind, stage.cell and stage.cell.column)
        if kind in seen:
            continue
        seen.add(kind)
        try:
            command = parse(import_module(f"strap.cli.{name}").Command, name, words)
            if isinstance(command, cache.Command):
                frames = command  # the plan has a single one, before all trainings
            elif isinstance(command, train.Command):
                if frames is not None:
                    _require_same_images(command, frames)
                command.network()
                command.training(command.vision or "resnet", has_matches=False)
            elif isinstance(command, retrieve.Command):
                command.options().resolved()
        except StrapError as error:
            whose = f" of method {stage.cell.method.name}" if stage.cell else ""
            raise StrapError(f"[{stage.kind}]{whose}: {error}") from error
        except SystemExit as error:
            raise StrapError(
                f"`strap {name}` does not take these options of [{stage.kind}], see above: correct "
                "the experiment's file"
            ) from error


def _require_same_images(training: train.Command, frames: cache.Command) -> None:
    """Raise if a training wants other images than those that are decoded for all trainings."""
    for name in ("vision", "image_size"):
        wanted, decoded = getattr(training, name), getattr(frames, name)
        if wanted not in (None, decoded):
            raise StrapError(
                f"{name} is {wanted!r}, but the frames of all trainings are decoded with "
                f"{decoded!r}: write [cache] {name} = {json.dumps(wanted)}, or leave {name} out "
                "here"
            )


def _tell(line: str) -> None:
    print(line, flush=True)


def list_options(name: str) -> dict[str, bool]:
    """Return the options of a `strap` command, and whether each is a flag."""
    command = import_module(f"strap.cli.{name}").Command
    return {o.word: not o.values for o in options_of(command) if not o.is_positional}
