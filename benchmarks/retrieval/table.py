"""Scores of every retrieval method on the ten LIBERO-10 tasks, by skill labels: no rollouts.

    python benchmarks/retrieval/table.py DATA --stores DIR [--out FILE.jsonl]

DATA holds `libero_10` and `libero_90*`. The target of a task is its first five demonstrations. What
a method compares is made where DIR lacks it: an encoder's stores, fused ones, and the features that
`br` and `fr` learn from the prior. FILE gets a line for each retrieval; those that it has already
are not made again. Prints Markdown tables of all that FILE holds: precision of every task at one K,
and the means of all scores at every K.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import strap
from strap.experiments.description import read_experiment
from strap.features import FeatureOptions, PreparedFeatures, RetrievalInput, prepare_features
from strap.features.fusion import fuse_scaled
from strap.features.fusion_weights import WEIGHTED_LANGUAGE, choose_fusion
from strap.retrieval import METHODS, Catalogue, MatchOptions, Method, retrieve_matches
from strap.retrieval.selection import quotas
from strap.scores import LabelledFrames, Labels, read_labels, score
from strap.scores.score_files import ScoreRecord, read_scores, write_scores
from strap.scores.score_tables import ScoreTable
from strap.types import Matches, Segment, Trajectory

TARGET, PRIOR = "libero_10", "libero_90*"
EXPERIMENT = Path(__file__).parents[2] / "runs" / "main_table.toml"
"""which gives the tasks their short names"""
AUTO, AUTO_WITHOUT_LANGUAGE = "auto", "auto-without-language"
"""fused features that are chosen on each task's demonstrations"""
NO_FUSION = "none"


@dataclass(frozen=True)
class Task:
    """A target: some demonstrations of one instruction."""

    name: str
    demonstrations: tuple[Trajectory, ...]


@dataclass(frozen=True)
class Row:
    """A way to retrieve."""

    method: Method
    encoder: str
    """or the features that the method learns, or `none`"""
    fuse: str
    """what is fused with the encoder's features; empty: nothing"""
    segmentation: str

    def identify(self, task: Task, top_k: int) -> dict[str, Any]:
        """Return what identifies a retrieval of this row."""
        return {**self.__dict__, "task": task.name, "top_k": top_k}


@dataclass(frozen=True)
class Found:
    """What a row retrieves for a task."""

    queries: Sequence[Segment]
    matches: Mapping[int, Matches]
    """K -> the matches"""
    fused: str | None = None
    """the features that were chosen, where they were"""


@dataclass(frozen=True)
class Bench:
    """The datasets and where their features are kept."""

    target: strap.Dataset
    priors: Sequence[strap.Dataset]
    stores: Path
    device: str = "auto"
    learning_steps: int | None = None
    prepared: dict[tuple[str, ...], PreparedFeatures] = field(default_factory=dict)
    """the features that were used last"""

    @cached_property
    def target_labels(self) -> Labels:
        """The skill labels of the target."""
        return read_labels(self.target)

    @cached_property
    def prior_labels(self) -> LabelledFrames:
        """The skill labels of all priors."""
        return LabelledFrames.of({dataset.name: read_labels(dataset) for dataset in self.priors})

    def find(self, row: Row, task: Task, top_ks: Sequence[int]) -> Found:
        """Retrieve for a task, with each K."""
        traits, cut = METHODS[row.method], row.segmentation
        FeatureOptions(fuse=(AUTO,) if row.fuse.startswith(AUTO) else ()).require_judgeable(
            row.method, cut, traits.metric
        )
        queries = strap.segment(task.demonstrations, method=cut)  # type: ignore[arg-type]
        target, priors, fused = self._features(row, queries)

        def keep(top_k: int) -> Matches:
            options = MatchOptions(
                top_k=top_k, method=row.method, steps=traits.steps, metric=traits.metric
            )
            return retrieve_matches(queries, target, priors, options).matches

        if row.method not in NARROWED:
            return Found(queries, {k: keep(k) for k in top_ks}, fused)
        largest = keep(max(top_ks))
        return Found(queries, {k: NARROWED[row.method](largest, k) for k in top_ks}, fused)

    def _features(
        self, row: Row, queries: Sequence[Segment]
    ) -> tuple[Catalogue, list[Catalogue], str | None]:
        """Return target and priors with the features that a row compares."""
        if not row.fuse.startswith(AUTO):
            prepared = self._prepare(row.method, row.encoder, tuple(row.fuse.split()))
            return prepared.target, prepared.priors, None
        prepared, datasets = self._prepare(row.method, row.encoder, ()), [self.target, *self.priors]
        catalogues = [prepared.target, *prepared.priors]
        stores = [catalogue.store for catalogue in catalogues if catalogue.store]
        choice = choose_fusion(stores, datasets, queries, METHODS[row.method].steps)
        chosen = choice.features
        if row.fuse == AUTO_WITHOUT_LANGUAGE:
            chosen = tuple(feature for feature in chosen if feature.name != WEIGHTED_LANGUAGE.name)
        if chosen:
            stores = fuse_scaled(stores, datasets, chosen, choice.ratios, self.stores)
            catalogues = [
                Catalogue.of_store(store, dataset.ids, dataset.name)
                for store, dataset in zip(stores, datasets, strict=True)
            ]
        return catalogues[0], catalogues[1:], " ".join(map(str, chosen))

    def _prepare(self, method: Method, encoder: str, fuse: tuple[str, ...]) -> PreparedFeatures:
        key = (METHODS[method].features, encoder, *fuse)
        if key not in self.prepared:
            self.prepared.clear()
            named = encoder if METHODS[method].features == "encoder" else ""
            self.prepared[key] = prepare_features(
                RetrievalInput(self.target),
                [RetrievalInput(dataset) for dataset in self.priors],
                method,
                FeatureOptions(encoder=named, fuse=fuse, learning_steps=self.learning_steps),
                self.stores,
                queries=(),
                steps=METHODS[method].steps,
                device=self.device,
                progress=show_progress,
            )
        return self.prepared[key]


def narrow(matches: Matches, top_k: int) -> Matches:
    """Return what would have been retrieved with a smaller K: a prefix of each query's matches."""
    groups = [tuple(own) for _, own in groupby(matches, key=lambda match: match.query)]
    counts = quotas([[match.cost for match in own] for own in groups], top_k)
    kept = (m for own, count in zip(groups, counts, strict=True) for m in own[:count])
    return Matches(tuple(kept))


def cheapest(matches: Matches, top_k: int) -> Matches:
    """Return the first matches of those that are in the order of their costs."""
    return matches[:top_k]


NARROWED: Mapping[str, Callable[[Matches, int], Matches]] = {
    "strap": narrow,
    "d-t": narrow,
    "d-s": cheapest,
    "br": cheapest,
    "fr": cheapest,
}
"""methods for which one search at the greatest K does, and how a smaller K is taken from it"""


def open_tasks(dataset: strap.Dataset, demonstrations: int) -> list[Task]:
    """Return the tasks of a dataset, each with its first demonstrations; known ones in order."""
    short = {task: name for name, task in read_experiment(EXPERIMENT).tasks.items()}
    found: dict[str, list[Trajectory]] = {task: [] for task in short}
    for trajectory in dataset:
        found.setdefault(trajectory.instruction, []).append(trajectory)
    return [Task(short.get(t, t), tuple(own[:demonstrations])) for t, own in found.items() if own]


def list_rows(
    methods: Sequence[Method],
    encoders: Sequence[str],
    fuse: Sequence[str],
    segmentations: Sequence[str],
) -> Iterator[Row]:
    """Yield every method; with each encoder, fusion and segmentation where it has one."""
    for method in methods:
        traits = METHODS[method]
        by_encoder = traits.features == "encoder"
        for encoder in encoders if by_encoder else (traits.features,):
            for named in fuse if by_encoder else (NO_FUSION,):
                features = "" if named == NO_FUSION else " ".join(sorted(named.split(",")))
                for cut in ("full",) if traits.has_whole_queries else segmentations:
                    yield Row(method, encoder, features, cut)


def measure(bench: Bench, row: Row, task: Task, top_ks: Sequence[int]) -> list[ScoreRecord]:
    """Retrieve and score; nothing where no query fits into any prior trajectory."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fewer matches than K: the tables say how many
        try:
            found = bench.find(row, task, top_ks)
        except strap.StrapError as error:
            print(f"{' '.join(row.__dict__.values())}, {task.name}: {error}", file=sys.stderr)
            return []
    chosen = {} if found.fused is None else {"fused": found.fused}
    return [
        ScoreRecord.of(
            {**row.identify(task, k), **chosen},
            score(matches, bench.target_labels, bench.prior_labels, queries=found.queries),
        )
        for k, matches in found.matches.items()
    ]


def show_progress(what: str, done: int, total: int) -> None:
    """Print a line now and then."""
    if done == total or done % max(total // 10, 1) == 0:
        print(f"{what}: {done} of {total}", file=sys.stderr)


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="the folder of libero_10 and libero_90*")
    parser.add_argument("--stores", type=Path, required=True, help="where features are kept")
    parser.add_argument("--demonstrations", type=int, default=5, help="of each task")
    methods = ["strap", "d-t", "d-s", "random", "language"]
    parser.add_argument("--methods", nargs="+", default=methods, choices=list(METHODS))
    parser.add_argument("--encoders", nargs="+", default=["efficientnet-lite0@128"])
    parser.add_argument(
        "--fuse",
        nargs="+",
        default=[NO_FUSION],
        help="for each set of rows: none, features such as gripper=0.5,language=0.5, auto, or "
        "auto-without-language",
    )
    parser.add_argument("--segmentations", nargs="+", default=["stops", "window", "full"])
    parser.add_argument("--top-k", type=int, nargs="+", default=[50, 100, 200, 500])
    parser.add_argument("--precision-at", type=int, default=100, help="K of the first table")
    parser.add_argument("--learning-steps", type=int, help="br, fr: of the features they learn")
    parser.add_argument("--device", default="auto", help="where networks run: auto, cpu, cuda")
    parser.add_argument("--out", type=Path, help="a line for each retrieval; go on where it ends")
    options = parser.parse_args(words)
    if options.precision_at not in options.top_k:
        parser.error(f"--precision-at {options.precision_at} is not among --top-k")
    return options


def main(words: Sequence[str] | None = None) -> None:
    options = parse(words)
    begin = time.perf_counter()
    bench = Bench(
        strap.open_dataset(options.data / TARGET),
        [strap.open_dataset(path) for path in sorted(options.data.glob(PRIOR))],
        options.stores,
        options.device,
        options.learning_steps,
    )
    tasks = open_tasks(bench.target, options.demonstrations)
    records = read_scores(options.out) if options.out else []
    for row in list_rows(options.methods, options.encoders, options.fuse, options.segmentations):
        for task in tasks:
            there = [record.retrieval for record in records]
            missing = [
                k
                for k in sorted(options.top_k)
                if not any(row.identify(task, k).items() <= done.items() for done in there)
            ]
            if missing:
                records += measure(bench, row, task, missing)
                if options.out:
                    write_scores(options.out, records)
        seconds = time.perf_counter() - begin
        print(f"{' '.join(row.__dict__.values())}: {seconds:.0f} s", file=sys.stderr)
    table = ScoreTable(records)
    print(table.format_precision(options.precision_at))
    for is_fused in (False, True):
        print("", table.format_all(sorted(options.top_k), is_fused=is_fused), sep="\n")


if __name__ == "__main__":
    main()
