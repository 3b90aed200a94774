"""Scores of the matches that an experiment's kept cells hold, by skill labels.

    python benchmarks/retrieval/cells.py runs/main_table.toml DATA

DATA holds the datasets of the experiment. Reads `runs/results/NAME` and writes a line for each cell
with matches to `runs/results/scores/NAME.jsonl`, from which `runs/results_page.py` computes how
well each score ranks the gains over BC.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import strap
from strap.cli.experiment import EXPERIMENT_COMMANDS, list_options
from strap.datasets.selection import Selection
from strap.errors import StrapError
from strap.experiments.cellfolders import CellResult, read_results
from strap.experiments.cells import Cell, describe_difference, list_cells
from strap.experiments.datafolder import open_data
from strap.experiments.description import Experiment, read_experiment
from strap.retrieval import METHODS
from strap.scores import LabelledFrames, read_labels, score
from strap.scores.score_files import ScoreRecord, write_scores
from strap.segments import Segmentation, cut_dataset, with_default_epsilon
from strap.types import Matches, Segment

RESULTS = Path(__file__).resolve().parents[2] / "runs" / "results"


def score_cells(
    experiment: Experiment, results: Sequence[CellResult], data: Path
) -> list[ScoreRecord]:
    """Score the matches of every cell that has some."""
    folder = open_data(experiment, data)
    target = strap.open_dataset(folder.path / folder.target)
    priors = {name: read_labels(strap.open_dataset(folder.path / name)) for name in folder.prior}
    frames, target_labels = LabelledFrames.of(priors), read_labels(target)
    records = []
    for result in results:
        if result.matches is None:
            continue
        if difference := describe_difference(result.manifest["data"], folder.fingerprints):
            raise StrapError(f"'{result.path}' was made from other data: {difference}")
        matches = Matches.from_parquet(result.matches)
        queries = cut_queries(result.cell, target)
        searched = {match.query for match in matches}
        if strange := {query for query in searched if not is_among(query, queries, result.cell)}:
            raise StrapError(
                f"'{result.matches}': {min(strange, key=str)} is no segment of its demonstrations"
            )
        found = score(matches, target_labels, frames, queries=queries)
        records.append(ScoreRecord.of({"cell": result.cell.name}, found))
    return records


def cut_queries(cell: Cell, target: strap.Dataset) -> Sequence[Segment]:
    """Return the segments that a cell searched for."""
    selection = Selection((cell.experiment.tasks[cell.task],), cell.demonstrations)
    demonstrations = selection.apply(target)
    cutting = with_default_epsilon(segmentation_of(cell), demonstrations)
    return cut_dataset(demonstrations, cutting).segments


def is_among(query: Segment, queries: Sequence[Segment], cell: Cell) -> bool:
    """Return whether a query is one of the cell's; a single state lies within a demonstration."""
    if query in queries or not METHODS[cell.method.retrieval or "strap"].has_whole_queries:
        return query in queries
    return any(
        query.trajectory_id == whole.trajectory_id
        and whole.start <= query.start
        and query.stop <= whole.stop
        for whole in queries
    )


def segmentation_of(cell: Cell) -> Segmentation:
    """Return how a cell's demonstrations are cut."""
    if METHODS[cell.method.retrieval or "strap"].has_whole_queries:
        return Segmentation(method="full")
    options: Mapping[str, Any] = cell.retrieve_options
    known = {field.name for field in fields(Segmentation)} - {"method"}
    chosen = {name: value for name, value in options.items() if name in known}
    return Segmentation(method=options.get("segmentation", "stops"), **chosen)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiment", type=Path, help="such as runs/main_table.toml")
    parser.add_argument("data", type=Path, help="the folder of its datasets")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the kept results")
    options = parser.parse_args(words)
    known = {command: list_options(command) for command in EXPERIMENT_COMMANDS}
    experiment = read_experiment(options.experiment, known)
    name = options.experiment.stem
    results = read_results(list_cells(experiment), options.results / name)
    records = score_cells(experiment, results, options.data)
    write_scores(options.results / "scores" / f"{name}.jsonl", records)
    for record in records:
        print(f"{record.retrieval['cell']}: precision {record.precision.value:.3f}")


if __name__ == "__main__":
    main()
