"""The cells of an experiment: each is one task × method × K × encoder × demonstrations × seed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from strap.errors import StrapError, unknown
from strap.experiments.description import Experiment, Method, folder_name

TARGET_OPTIONS = {
    "alpha": ("mt", "strap"),
    "finetune_steps": ("mt", "strap"),
    "match_weights": ("strap",),
}
"""option of `strap train` that weighs the target against other data -> recipes with other data"""


@dataclass(frozen=True)
class Column:
    """A column of the table: cells that differ only in task and repetition."""

    method: str
    top_k: int | None
    encoder: str | None


@dataclass(frozen=True, eq=False)
class Cell:
    """One policy to train and evaluate."""

    experiment: Experiment
    task: str
    method: Method
    top_k: int | None
    encoder: str | None
    demonstrations: str
    seed: int

    @property
    def column(self) -> Column:
        """The cell's column of the table."""
        return Column(self.method.name, self.top_k, self.encoder)

    @property
    def repetition(self) -> tuple[str, int]:
        """The demonstrations and seed, in which cells of one task and column differ."""
        return self.demonstrations, self.seed

    @property
    def name(self) -> str:
        """The cell's task and folder: `Mug-Mug/STRAP-k100-seed42`."""
        parts = [folder_name(self.method.name)]
        parts += [f"k{self.top_k}"] if self.top_k is not None else []
        if self.encoder not in (None, self.experiment.encoder):
            parts.append(folder_name(str(self.encoder)))
        if self.demonstrations != self.experiment.demonstrations[0]:
            parts.append(f"demonstrations{folder_name(self.demonstrations)}")
        return f"{folder_name(self.task)}/{'-'.join(parts)}-seed{self.seed}"

    @property
    def folder(self) -> PurePosixPath:
        """The cell's folder, relative to the work folder or to a folder of kept cells."""
        return PurePosixPath("cells") / self.name

    @property
    def train_options(self) -> dict[str, Any]:
        """The options of `strap train` for this cell: the shared ones it can use, and its own."""
        train = self.method.train
        shared = {
            key: value
            for key, value in self.experiment.options["train"].items()
            if train in TARGET_OPTIONS.get(key, (train,))
        }
        return {**shared, **self.method.train_options}

    @property
    def pretrain_options(self) -> dict[str, Any]:
        """The options of the training on the prior, for a pretrained cell."""
        options = {**self.train_options, **self.experiment.options["pretrain"]}
        return {key: value for key, value in options.items() if key not in TARGET_OPTIONS}

    @property
    def retrieve_options(self) -> dict[str, Any]:
        """The options of `strap retrieve` for this cell."""
        return {**self.experiment.options["retrieve"], **self.method.retrieve_options}

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that determines the cell's result, except the data."""
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
    """Return the experiment's cells, ordered by repetition.

    Args:
        experiment: the content of the experiment's file.
        tasks: short names of the tasks to include; empty for all.
        methods: names of the methods to include; empty for all.
        seeds: seeds to include; empty for all.
    """
    _check_chosen("task", tasks, list(experiment.tasks))
    _check_chosen("method", methods, [method.name for method in experiment.methods])
    known_seeds = {str(seed): None for method in experiment.methods for seed in method.seeds}
    _check_chosen("seed", [str(seed) for seed in seeds], list(known_seeds))
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
    return tuple(sorted(cells, key=_repetition_number))


def _repetition_number(cell: Cell) -> tuple[int, int]:
    """Return the position of the cell's seed and demonstrations, by which cells are sorted."""
    demonstrations = cell.experiment.demonstrations.index(cell.demonstrations)
    return cell.method.seeds.index(cell.seed), demonstrations


def _check_chosen(kind: str, chosen: Collection[str], known: Sequence[str]) -> None:
    for name in chosen:
        if name not in known:
            raise unknown(kind, name, known)


def describe_difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """Describe the first entry in which two identities differ; return "" if they are equal.

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
