"""Plan an experiment: its `strap` commands, their dependencies and their outputs.

WORK/
  frames/ID/                    decoded frames of the datasets
  stores/                       embeddings
  retrievals/TASK/METHOD-kK-ID/ runs of `strap retrieve`, shared by seeds and trainings
  pretrained/ID-seedS/          policies trained on the prior, shared by tasks
  policies/TASK/CELL/           weights, until the cell is evaluated
  cells/TASK/CELL/              episodes.jsonl, matches.parquet, logs; manifest.json last

The log and the lock of a stage, and a JSON file with its command and seconds once it is finished,
are next to the stage's folder; those of trainings and evaluations are in the cell's folder.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from strap.atomic import read_json
from strap.experiments.cells import Cell
from strap.experiments.datafolder import DataFolder
from strap.experiments.description import KnownOptions, Options, folder_name, option_name
from strap.provenance import fingerprint_json

Kind = Literal["cache", "pretrain", "retrieve", "train", "evaluate"]
PROGRAM = (sys.executable, "-m", "strap")


@dataclass(frozen=True, eq=False)
class Stage:
    """One command of the plan."""

    name: str
    kind: Kind
    command: tuple[str, ...]
    record: Path
    """path from whose name those of the log, the lock and the note are derived"""
    output: Path
    """output of the command; a stage without it is not finished"""
    needs: tuple[str, ...] = ()
    """stages that must have succeeded before this one starts"""
    after: tuple[str, ...] = ()
    """stages that must have ended, failed or been skipped before this one starts"""
    cell: Cell | None = None
    superseded_by: Path | None = None
    """a file whose existence means that the stage is no longer needed"""
    stamp: str = ""
    """stamp of the data, if the output cannot be used with a copy of the data"""

    @property
    def note(self) -> Path:
        """The file that marks the stage as finished."""
        return self.record.with_name(f"{self.record.name}.json")

    @property
    def log(self) -> Path:
        """The file with the output of the command."""
        return self.record.with_name(f"{self.record.name}.log")

    @property
    def lock(self) -> Path:
        """The file that the runner of the stage locks."""
        return self.record.with_name(f".{self.record.name}.lock")

    def is_finished(self) -> bool:
        """Return whether the stage is finished or no longer needed."""
        if self.superseded_by is not None and self.superseded_by.is_file():
            return True
        if not self.note.is_file() or not self.output.exists():
            return False
        return not self.stamp or read_json(self.note).get("stamp") == self.stamp


@dataclass(frozen=True)
class Planner:
    """Turns cells into stages."""

    data: DataFolder
    work: Path
    known: KnownOptions
    workers: int = 2
    """environments of one evaluation"""
    program: tuple[str, ...] = PROGRAM
    _stages: dict[str, Stage] = field(default_factory=dict)

    def plan(self, cells: Iterable[Cell]) -> tuple[Stage, ...]:
        """Return the stages that the cells need, in the order in which to start them."""
        for cell in cells:
            train = self._train(cell)
            self._evaluate(cell, train)
        return tuple(self._stages.values())

    def policy(self, cell: Cell) -> Path:
        """Return the folder of a cell's weights."""
        return self.work / "policies" / cell.name

    def _add(self, stage: Stage) -> str:
        self._stages.setdefault(stage.name, stage)
        return stage.name

    def _words(self, command: str, options: Options) -> list[str]:
        return format_options(options, self.known.get(command, ()))

    def _prior(self) -> list[str]:
        return [self.data.locate(name) for name in self.data.prior]

    def _identify(self, value: Any) -> str:
        return fingerprint_json([value, self.data.fingerprints])[:8]

    def _cache(self, cell: Cell) -> str:
        options = cell.experiment.options["cache"]
        out = self.work / "frames" / self._identify(options)
        datasets = [self.data.locate(name) for name in self.data.names]
        words = ["cache", *datasets, "--out", str(out), *self._words("cache", options)]
        name, command = f"frames/{out.name}", self._command(words)
        return self._add(Stage(name, "cache", command, out, out, stamp=self.data.stamp))

    def _frames(self, cell: Cell) -> list[str]:
        return ["--frames", str(self.work / self._cache(cell))]

    def _target(self, cell: Cell) -> list[str]:
        instruction = cell.experiment.tasks[cell.task]
        target = self.data.locate(self.data.target)
        return [target, "--tasks", instruction, "--episodes", cell.demonstrations]

    def _pretrain(self, cell: Cell) -> str:
        """Add a training on the whole prior: its first dataset is the target of the recipe mt."""
        options = cell.pretrain_options
        name = f"pretrained/{self._identify([options, _cache_options(cell)])}-seed{cell.seed}"
        out = self.work / name
        first, *others = self._prior()
        data = [first, "--prior", *others, "--recipe", "mt"] if others else [first, *BC]
        words = ["train", *data, *self._frames(cell), "--seed", str(cell.seed)]
        command = self._command([*words, "--out", str(out), *self._words("train", options)])
        return self._add(Stage(name, "pretrain", command, out, out, (self._cache(cell),)))

    def _retrieve(self, cell: Cell) -> str:
        method, options = cell.method, cell.retrieve_options
        identity = [method.retrieval, cell.top_k, cell.encoder, cell.demonstrations, options]
        identity.append(cell.experiment.tasks[cell.task])
        amount = [] if cell.top_k is None else [f"k{cell.top_k}"]
        label = "-".join([str(method.retrieval), *amount, self._identify(identity)])
        name = f"retrievals/{folder_name(cell.task)}/{label}"
        out = self.work / name
        words = ["retrieve", "--target", self.data.locate(self.data.target)]
        words += ["--target-tasks", cell.experiment.tasks[cell.task]]
        words += ["--target-episodes", cell.demonstrations, "--prior", *self._prior()]
        words += ["--method", str(method.retrieval), "--encoder", str(cell.encoder)]
        words += ["--top-k", str(cell.top_k)] if cell.top_k is not None else []
        words += ["--augmented", "none", "--report", "none"]
        words.append("--overwrite")  # an earlier run of the same data in another folder
        words += ["--stores", str(self.work / "stores"), "--out", str(out)]
        command = self._command([*words, *self._words("retrieve", options)])
        return self._add(
            Stage(
                name=name,
                kind="retrieve",
                command=command,
                record=out,
                output=out,
                after=self._leaders(cell, name),
                cell=cell,
                stamp=self.data.stamp,
            )
        )

    def _leaders(self, cell: Cell, name: str) -> tuple[str, ...]:
        """Return earlier retrievals that embed data or train a representation for this one."""
        retrievals = [(s.name, s.cell) for s in self._stages.values() if s.kind == "retrieve"]
        same_encoder = [(n, c) for n, c in retrievals if c and c.encoder == cell.encoder]
        same_method = [n for n, c in same_encoder if c.method.retrieval == cell.method.retrieval]
        leaders = [*[n for n, _ in same_encoder][:1], *same_method[:1]]
        return tuple(dict.fromkeys(leader for leader in leaders if leader != name))

    def _train(self, cell: Cell) -> str:
        out, needs = self.policy(cell), [self._cache(cell)]
        if cell.method.retrieval is not None:
            needs.append(self._retrieve(cell))
            data = [str(self.work / needs[-1]), "--recipe", "strap"]
        elif cell.method.train == "mt":
            data = [*self._target(cell), "--prior", *self._prior(), "--recipe", "mt"]
        else:
            data = [*self._target(cell), *BC]
        if cell.method.pretrained:
            needs.append(self._pretrain(cell))
            data += ["--init", str(self.work / needs[-1])]
        words = ["train", *data, *self._frames(cell), "--seed", str(cell.seed), "--out", str(out)]
        command = self._command([*words, *self._words("train", cell.train_options)])
        folder = self.work / cell.folder
        return self._add(
            Stage(
                name=f"train {cell.name}",
                kind="train",
                command=command,
                record=folder / "train",
                output=out,
                needs=tuple(needs),
                cell=cell,
                superseded_by=folder / "manifest.json",
            )
        )

    def _evaluate(self, cell: Cell, train: str) -> str:
        experiment, folder = cell.experiment, self.work / cell.folder
        first, stop = experiment.states
        words = ["evaluate", str(self.policy(cell)), "--suite", experiment.suite]
        words += ["--task", experiment.tasks[cell.task], "--episodes", str(stop - first)]
        words += ["--first", str(first)] if first else []
        words += ["--seed", str(cell.seed), "--out", str(folder), "--workers", str(self.workers)]
        words += self._words("evaluate", experiment.options["evaluate"])
        return self._add(
            Stage(
                name=f"evaluate {cell.name}",
                kind="evaluate",
                command=self._command(words),
                record=folder / "evaluate",
                output=folder / "episodes.jsonl",
                needs=(train,),
                cell=cell,
                superseded_by=folder / "manifest.json",
            )
        )

    def _command(self, words: list[str]) -> tuple[str, ...]:
        return (*self.program, *words)


BC = ("--recipe", "bc")


def _cache_options(cell: Cell) -> Options:
    return cell.experiment.options["cache"]


def format_options(options: Options, known: Iterable[str]) -> list[str]:
    """Return options as arguments of a command line.

    A flag has only one form, `--decay` or `--no-videos`, which changes its default; the default
    value adds no argument.

    >>> format_options({"steps": 10, "videos": False, "decay": True}, ["--steps", "--no-videos"])
    ['--steps', '10', '--no-videos']
    """
    words: list[str] = []
    for key, value in options.items():
        if isinstance(value, bool):
            flag = f"--{option_name(key)}" if value else f"--no-{option_name(key)}"
            words += [flag] if flag in known else []
        elif isinstance(value, list):
            words += [f"--{option_name(key)}", *map(str, value)]
        else:
            words += [f"--{option_name(key)}", str(value)]
    return words
