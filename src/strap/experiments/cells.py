"""Cells: one task × method × K × encoder × demonstrations × seed each, and its identity."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from strap.errors import StrapError, unknown
from strap.experiments.description import Experiment, Method, folder_name

OF_THE_TARGET = {
    "alpha": ("mt", "strap"),
    "finetune_steps": ("mt", "strap"),
    "match_weights": ("strap",),
}
"""Options of `strap train` that weigh the target against the rest, and whose trainings have one."""


@dataclass(frozen=True)
class Column:
    """What a column of the table stands for: cells that differ in task and repetition alone."""

    method: str
    top_k: int | None
    encoder: str | None


@dataclass(frozen=True, eq=False)
class Cell:
    """One policy to train and to evaluate."""

    experiment: Experiment
    task: str
    method: Method
    top_k: int | None
    encoder: str | None
    demonstrations: str
    seed: int

    @property
    def column(self) -> Column:
        """The column of the table that the cell belongs to."""
        return Column(self.method.name, self.top_k, self.encoder)

    @property
    def repetition(self) -> tuple[str, int]:
        """What cells of one task and column differ in."""
        return self.demonstrations, self.seed

    @property
    def name(self) -> str:
        """Task and folder: `Mug-Mug/STRAP-k100-seed42`."""
        parts = [folder_name(self.method.name)]
        parts += [f"k{self.top_k}"] if self.top_k is not None else []
        if self.encoder not in (None, self.experiment.encoder):
            parts.append(folder_name(str(self.encoder)))
        if self.demonstrations != self.experiment.demonstrations[0]:
            parts.append(f"demonstrations{folder_name(self.demonstrations)}")
        return f"{folder_name(self.task)}/{'-'.join(parts)}-seed{self.seed}"

    @property
    def folder(self) -> PurePosixPath:
        """Where the cell lies below the work folder or a kept one."""
        return PurePosixPath("cells") / self.name

    @property
    def train_options(self) -> dict[str, Any]:
        """The options of `strap train` for this cell: its own, and those of all that it can use."""
        train = self.method.train
        shared = {
            key: value
            for key, value in self.experiment.options["train"].items()
            if train in OF_THE_TARGET.get(key, (train,))
        }
        return {**shared, **self.method.train_options}

    @property
    def pretrain_options(self) -> dict[str, Any]:
        """The options of the training on the prior that a cell may begin with."""
        options = {**self.train_options, **self.experiment.options["pretrain"]}
        return {key: value for key, value in options.items() if key not in OF_THE_TARGET}

    @property
    def retrieve_options(self) -> dict[str, Any]:
        """The options of `strap retrieve` for this cell."""
        return {**self.experiment.options["retrieve"], **self.method.retrieve_options}

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that decides the cell's result, besides the data."""
        first, stop = self.experiment.states
        identity: dict[str, Any] = {
            "suite": self.experiment.suite,
            "task": self.task,
            "instruction": self.experiment.tasks[self.task],
            "target": self.experiment.target,
            "demonstrations": self.demonstrations,
            "method": self.method.name,
            "train": self.method.train,
            "seed": self.seed,
            "cache_options": dict(self.experiment.options["cache"]),
            "train_options": self.train_options,
            "evaluate_options": {
                "episodes": f"{first}:{stop}",
                **self.experiment.options["evaluate"],
            },
        }
        if self.method.pretrained:
            identity["pretrain_options"] = self.pretrain_options
        if self.method.retrieval is not None:
            identity["retrieval"] = self.method.retrieval
            identity["top_k"] = self.top_k
            identity["encoder"] = self.encoder
            identity["retrieve_options"] = self.retrieve_options
        return identity


def list_cells(
    experiment: Experiment,
    *,
    tasks: Collection[str] = (),
    methods: Collection[str] = (),
    seeds: Collection[int] = (),
) -> tuple[Cell, ...]:
    """Return the experiment's cells, those of one repetition before those of the next.

    Args:
        experiment: what the file says.
        tasks: only these, by short name; empty for all, as below.
        methods: only these, by name.
        seeds: only these.
    """
    _check_chosen("task", tasks, list(experiment.tasks))
    _check_chosen("method", methods, [method.name for method in experiment.methods])
    every = {str(seed): None for method in experiment.methods for seed in method.seeds}
    _check_chosen("seed", [str(seed) for seed in seeds], list(every))
    cells = [
        Cell(experiment, task, method, top_k, encoder, demonstrations, seed)
        for task in experiment.tasks
        for method in experiment.methods
        for top_k in method.top_k or (None,)
        for encoder in method.encoders or (None,)
        for demonstrations in experiment.demonstrations
        for seed in method.seeds
        if (not tasks or task in tasks)
        and (not methods or method.name in methods)
        and (not seeds or seed in seeds)
    ]
    if not cells:
        raise StrapError("the tasks, methods and seeds chosen have no cell in common: choose more")
    names = [cell.name for cell in cells]
    if len(set(names)) != len(names):
        double = next(name for name in names if names.count(name) > 1)
        raise StrapError(f"two cells would be called '{double}': rename a task or a method")
    return tuple(sorted(cells, key=_turn))


def _turn(cell: Cell) -> tuple[int, int]:
    """Return how many repetitions of the cell's column come before it."""
    demonstrations = cell.experiment.demonstrations.index(cell.demonstrations)
    return cell.method.seeds.index(cell.seed), demonstrations


def _check_chosen(kind: str, chosen: Collection[str], known: Sequence[str]) -> None:
    for name in chosen:
        if name not in known:
            raise unknown(kind, name, known)


def describe_difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """Return the first entry in which two identities differ, in words; "" where in none.

    >>> describe_difference({"train": {"steps": 5}}, {"train": {"steps": 6}})
    'train.steps is 5 here and 6 there'
    """
    for key in dict.fromkeys((*first, *second)):
        one, two = first.get(key), second.get(key)
        if one == two:
            continue
        if isinstance(one, dict) and isinstance(two, dict):
            return f"{key}.{describe_difference(one, two)}"
        return f"{key} is {_shown(one)} here and {_shown(two)} there"
    return ""


def _shown(value: Any) -> str:
    return "not given" if value is None else repr(value)
