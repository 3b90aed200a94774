"""Scores of every retrieval method on the ten LIBERO-10 tasks, by skill labels: no rollouts.

    PYTHONPATH=src python benchmarks/retrieval/table.py DATA --stores DIR [DIR …] [--json FILE]

DATA holds `libero_10` and `libero_90*`, DIR a finished store of each under the same name; each DIR
is an encoder, called by its folder where there are several. The target of a task is its first five
demonstrations. Prints two Markdown tables: precision of every task at one K, and the mean of all
scores at every K.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import mean
from typing import Any

import strap
from strap.atomic import write_json
from strap.experiments.description import read_experiment
from strap.retrieval import MatchOptions, retrieve_matches
from strap.retrieval.methods import METHODS
from strap.retrieval.options import Method
from strap.retrieval.selection import quotas
from strap.scores import LabelledFrames, Labels, Scores, read_labels, score
from strap.types import Matches, Segment, Trajectory

TARGET, PRIOR = "libero_10", "libero_90*"
EXPERIMENT = Path(__file__).parents[2] / "runs" / "main_table.toml"
"""which gives the tasks their short names"""


@dataclass(frozen=True)
class Task:
    """A target: some demonstrations of one instruction."""

    name: str
    demonstrations: tuple[Trajectory, ...]


@dataclass(frozen=True)
class Found:
    """What a row retrieves for a task."""

    queries: Sequence[Segment]
    matches: Mapping[int, Matches]
    """K -> the matches"""


@dataclass(frozen=True)
class Row:
    """A way to retrieve, and how it is called in the tables."""

    method: str
    encoder: str
    segmentation: str
    find: Callable[[Task, Sequence[int]], Found]
    """(task, every K) -> what is retrieved"""


@dataclass(frozen=True)
class Cell:
    """The scores of one row, task and K."""

    row: Row
    task: str
    top_k: int
    scores: Scores

    def to_json(self) -> dict[str, Any]:
        """Everything by name."""
        row = {name: getattr(self.row, name) for name in ("method", "encoder", "segmentation")}
        return {**row, "task": self.task, "top_k": self.top_k, **self.scores.to_json()}


def open_tasks(dataset: strap.Dataset, demonstrations: int) -> list[Task]:
    """Return the tasks of a dataset, each with its first demonstrations; known ones in order."""
    short = {task: name for name, task in read_experiment(EXPERIMENT).tasks.items()}
    found: dict[str, list[Trajectory]] = {task: [] for task in short}
    for trajectory in dataset:
        found.setdefault(trajectory.instruction, []).append(trajectory)
    return [Task(short.get(t, t), tuple(own[:demonstrations])) for t, own in found.items() if own]


def make_rows(
    target: strap.EmbeddingStore,
    priors: Sequence[strap.EmbeddingStore],
    methods: Sequence[Method],
    segmentations: Sequence[str],
    name: str,
) -> Iterator[Row]:
    """Yield every method, those that cut the target once for each segmentation."""

    def find(method: Method, segmentation: Any) -> Callable[[Task, Sequence[int]], Found]:
        traits = METHODS[method]

        def retrieve(task: Task, top_ks: Sequence[int]) -> Found:
            queries = strap.segment(task.demonstrations, method=segmentation)

            def keep(top_k: int) -> Matches:
                options = MatchOptions(
                    top_k=top_k, method=method, steps=traits.steps, metric=traits.metric
                )
                return retrieve_matches(queries, target, priors, options).matches

            if method not in NARROWED:
                return Found(queries, {k: keep(k) for k in top_ks})
            largest = keep(max(top_ks))
            return Found(queries, {k: NARROWED[method](largest, k) for k in top_ks})

        return retrieve

    for method in methods:
        features = METHODS[method].features
        encoder = name if features == "encoder" else features
        for cut in ("full",) if METHODS[method].has_whole_queries else segmentations:
            yield Row(method, encoder, cut, find(method, cut))


def narrow(matches: Matches, top_k: int) -> Matches:
    """Return what would have been retrieved with a smaller K: a prefix of each query's matches."""
    groups = [tuple(own) for _, own in groupby(matches, key=lambda match: match.query)]
    counts = quotas([[match.cost for match in own] for own in groups], top_k)
    kept = (m for own, count in zip(groups, counts, strict=True) for m in own[:count])
    return Matches(tuple(kept))


def cheapest(matches: Matches, top_k: int) -> Matches:
    """Return the first matches of those that are in the order of their costs."""
    return matches[:top_k]


NARROWED = {"strap": narrow, "d-t": narrow, "d-s": cheapest}
"""methods for which one search at the greatest K does, and how a smaller K is taken from it"""


def measure(
    row: Row, task: Task, top_ks: Sequence[int], target: Labels, prior: LabelledFrames
) -> list[Cell]:
    """Retrieve and score; nothing where no query fits into any prior trajectory."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fewer matches than K: the tables say how many
        try:
            found = row.find(task, top_ks)
        except strap.StrapError as error:
            print(f"{row.method}, {row.segmentation}, {task.name}: {error}", file=sys.stderr)
            return []
    return [
        Cell(row, task.name, k, score(matches, target, prior, queries=found.queries))
        for k, matches in found.matches.items()
    ]


def precision_table(cells: Sequence[Cell], tasks: Sequence[Task], top_k: int) -> str:
    """Precision of every task, found / best, and the means of found, best and random."""
    lines = [
        ["method", "encoder", "cut by", *(task.name for task in tasks), "mean", "best", "random"]
    ]
    for row in dict.fromkeys(cell.row for cell in cells):
        own = {c.task: c.scores.precision for c in cells if c.row == row and c.top_k == top_k}
        each = [
            f"{_share(own[task.name].value)} / {_share(own[task.name].best)}"
            if task.name in own
            else "none"
            for task in tasks
        ]
        means = [mean(getattr(p, part) for p in own.values()) for part in PARTS]
        described = [row.method, row.encoder, row.segmentation]
        lines.append([*described, *each, *(f"{value:.3f}" for value in means)])
    return markdown(lines)


PARTS = ("value", "best", "random")


def mean_table(cells: Sequence[Cell]) -> str:
    """All scores at every K, means of the tasks that have a match."""
    lines = [
        ["method", "encoder", "cut by", "K", "tasks with a match", "matches", "frames"]
        + ["precision (best, random)", "recall (best, random)", "border error (random)"]
        + ["trajectories", "tasks", "effective tasks"]
    ]
    for row, top_k in dict.fromkeys((cell.row, cell.top_k) for cell in cells):
        own = [cell.scores for cell in cells if (cell.row, cell.top_k) == (row, top_k)]
        shares = [
            "{:.3f} ({:.3f}, {:.3f})".format(
                *(mean(getattr(getattr(s, name), part) for s in own) for part in PARTS)
            )
            for name in ("precision", "recall")
        ]
        border = "{:.1f} ({:.1f})".format(
            *(mean(getattr(s.border_error, part) for s in own) for part in ("value", "random"))
        )
        lines.append(
            [row.method, row.encoder, row.segmentation, str(top_k), str(len(own))]
            + [f"{mean(getattr(s, name) for s in own):.0f}" for name in ("matches", "frames")]
            + [*shares, border, f"{mean(s.trajectories for s in own):.0f}"]
            + [f"{mean(len(s.tasks) for s in own):.1f}"]
            + [f"{mean(s.effective_tasks for s in own):.1f}"]
        )
    return markdown(lines)


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells as a Markdown table, the first its head."""
    texts = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([texts[0], "|" + "---|" * len(lines[0]), *texts[1:]])


def _share(value: float) -> str:
    return f"{value:.2f}".removeprefix("0")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="the folder of libero_10 and libero_90*")
    parser.add_argument("--stores", type=Path, nargs="+", required=True, help="one per encoder")
    parser.add_argument("--demonstrations", type=int, default=5, help="of each task")
    methods = ["strap", "d-t", "d-s", "random", "language"]
    parser.add_argument("--methods", nargs="+", default=methods, choices=methods)
    parser.add_argument("--segmentations", nargs="+", default=["stops", "window", "full"])
    parser.add_argument("--top-k", type=int, nargs="+", default=[50, 100, 200, 500])
    parser.add_argument("--precision-at", type=int, default=100, help="K of the first table")
    parser.add_argument("--json", type=Path, help="also write every score of every task there")
    options = parser.parse_args(words)
    if options.precision_at not in options.top_k:
        parser.error(f"--precision-at {options.precision_at} is not among --top-k")
    begin = time.perf_counter()
    target = strap.open_dataset(options.data / TARGET)
    names = sorted(path.name for path in options.data.glob(PRIOR))
    priors = [strap.open_dataset(options.data / name) for name in names]
    prior_labels = LabelledFrames.of({dataset.name: read_labels(dataset) for dataset in priors})
    target_labels = read_labels(target)
    tasks = open_tasks(target, options.demonstrations)
    rows: list[Row] = []
    for folder in options.stores:
        own, *others = (strap.open_store(folder / name) for name in (TARGET, *names))
        name = folder.name if len(options.stores) > 1 else str(own.config.encoder["name"])
        rows += make_rows(own, others, options.methods, options.segmentations, name)
    cells = []
    for row in rows:
        for task in tasks:
            cells += measure(row, task, sorted(options.top_k), target_labels, prior_labels)
        seconds = time.perf_counter() - begin
        print(f"{row.method}, {row.encoder}, {row.segmentation}: {seconds:.0f} s", file=sys.stderr)
    print(precision_table(cells, tasks, options.precision_at), "", mean_table(cells), sep="\n")
    if options.json:
        write_json(options.json, {"cells": [cell.to_json() for cell in cells]})


if __name__ == "__main__":
    main()
