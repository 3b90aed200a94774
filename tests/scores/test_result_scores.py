"""How well scores rank gains: by hand on a small experiment, and the script that scores cells."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from tests.experiments.tables import TEXT, cell_named, read_small, write_cell
from tests.scores.test_score_command import label

import strap
from strap.cli.experiment import EXPERIMENT_COMMANDS, list_options
from strap.errors import StrapError
from strap.experiments.cellfolders import read_results
from strap.experiments.cells import list_cells
from strap.experiments.datafolder import open_data
from strap.experiments.description import read_experiment
from strap.experiments.result_scores import format_score_correlations, scored_gains
from strap.experiments.summary import Summary
from strap.scores import Score
from strap.scores.score_files import ScoreRecord, read_scores
from strap.synthetic import Planted
from strap.types import Match, Matches, Segment

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "retrieval" / "cells.py"
TASKS = TEXT.replace('Book = "put the book on the shelf"', 'Book = "book"\nPot = "pot"')
OUTCOMES = {
    "Mug/BC-seed1": "1000",
    "Mug/BC-seed2": "1100",
    "Book/BC-seed1": "0000",
    "Pot/BC-seed1": "1100",
    "Mug/STRAP-k10-seed1": "0111",
    "Mug/STRAP-k10-seed2": "1100",
    "Book/STRAP-k10-seed1": "1111",
    "Book/STRAP-k10-seed2": "1111",
    "Pot/STRAP-k10-seed1": "1000",
    "Mug/STRAP-k20-seed1": "1111",
}
PRECISIONS = {
    "Mug/STRAP-k10-seed1": 0.4,
    "Mug/STRAP-k10-seed2": 0.6,
    "Book/STRAP-k10-seed1": 0.3,
    "Book/STRAP-k10-seed2": 0.9,
    "Pot/STRAP-k10-seed1": 0.8,
    "Mug/STRAP-k20-seed1": 0.1,
}


@pytest.fixture
def summary(tmp_path: Path) -> Summary:
    experiment = read_small(tmp_path, TASKS)
    for name, outcomes in OUTCOMES.items():
        successes = [letter == "1" for letter in outcomes]
        write_cell(tmp_path / "work", cell_named(experiment, name), successes)
    cells = list_cells(experiment)
    return Summary(experiment, cells, read_results(cells, tmp_path / "work"))


@pytest.fixture
def records() -> list[ScoreRecord]:
    plain = Score(0.5, 0.8, 0.1)
    one = ScoreRecord({}, plain, plain, plain, 100, 10, 5, 2.0)
    return [
        replace(one, retrieval={"cell": name}, precision=Score(value, 1.0, 0.1))
        for name, value in PRECISIONS.items()
    ]


def test_gains_and_scores_are_means_of_what_both_have(
    summary: Summary, records: list[ScoreRecord]
) -> None:
    found = scored_gains(summary, records)
    assert [(gain.column.top_k, gain.task) for gain in found] == [
        (10, "Mug"),
        (10, "Book"),
        (10, "Pot"),
        (20, "Mug"),
    ]
    # Mug: seed 1 has 3 of 4 against 1, seed 2 as many. Book: BC has no second seed.
    assert [gain.gain for gain in found] == [0.25, 1.0, -0.25, 0.75]
    assert [gain.scores["precision"] for gain in found] == [0.5, 0.3, 0.8, 0.1]
    assert found[0].scores["trajectories"] == 5


def test_correlations_of_scores_and_gains(summary: Summary, records: list[ScoreRecord]) -> None:
    _, _, text, _, head, _, *rows = format_score_correlations(summary, records).splitlines()
    assert text.endswith("(3 of STRAP K=10, 1 of STRAP K=20).")
    # K=20 has one task of three, so no column of its own.
    assert head == "| score | STRAP K=10, n = 3 | p | all methods, n = 4 | p |"
    # Precisions .5 .3 .8 rank the gains .25 1 -.25 the other way round; with the fourth, ranks
    # 3 2 4 1 and 2 4 1 3: 1 - 6 * (1 + 4 + 9 + 4) / (4 * 15).
    assert rows[0].startswith("| precision | −1.00 | ")
    assert "| −0.80 | 0.2 |" in rows[0]
    assert rows[2] == "| recall | – | – | – | – |"  # all the same: nothing to rank


def test_equal_gains_rank_alike(tmp_path: Path, records: list[ScoreRecord]) -> None:
    """As floats .3 − .2 and .8 − .7 differ, and so do their ranks."""
    text = TASKS.replace('episodes = "0:4"', 'episodes = "0:10"')
    experiment = read_small(tmp_path, text)
    for name, successes in {
        "Mug/BC-seed1": 2,
        "Mug/STRAP-k10-seed1": 3,
        "Book/BC-seed1": 7,
        "Book/STRAP-k10-seed1": 8,
        "Pot/BC-seed1": 5,
        "Pot/STRAP-k10-seed1": 4,
    }.items():
        outcomes = [number < successes for number in range(10)]
        write_cell(tmp_path / "work", cell_named(experiment, name), outcomes)
    cells = list_cells(experiment)
    summary = Summary(experiment, cells, read_results(cells, tmp_path / "work"))
    assert [gain.gain for gain in scored_gains(summary, records)] == [0.1, 0.1, -0.1]


def test_cells_without_scores_are_left_out(summary: Summary, records: list[ScoreRecord]) -> None:
    found = scored_gains(summary, records[2:])
    assert [(gain.column.top_k, gain.task) for gain in found] == [
        (10, "Book"),
        (10, "Pot"),
        (20, "Mug"),
    ]


@pytest.fixture
def script() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("score_cells", SCRIPT)
    assert spec
    assert spec.loader
    module = sys.modules["score_cells"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["score_cells"]


def kept_cell(
    planted: Planted, folder: Path, query: Segment | None = None, *, method: str = "strap"
) -> list[str]:
    """Write labelled data and a cell with a match; return what the script is told."""
    label(planted)
    data = folder / "data"
    for path, name in ((planted.target, "target"), (planted.prior, "prior")):
        (data / name).mkdir(parents=True)
        path.rename(data / name / path.name)
    target, prior = (strap.open_dataset(data / name) for name in ("target", "prior"))
    first = target[target.ids[0]]
    own = (
        strap.segment([first], method="stops")[0] if method == "strap" else Segment(first.id, 3, 4)
    )
    found = Segment(prior.ids[0], 0, 7)
    match = Match(query or own, found, 1.0, 1, "prior task", "prior")
    text = TEXT.replace("put the mug on the plate", first.instruction)
    text = text.replace('retrieval = "strap"', f'retrieval = "{method}"')
    (folder / "small.toml").write_text(text.replace('"0:5"', '"0:1"'))
    known = {command: list_options(command) for command in EXPERIMENT_COMMANDS}
    experiment = read_experiment(folder / "small.toml", known)
    cell = cell_named(experiment, "Mug/STRAP-k10-seed1")
    fingerprints = open_data(experiment, data).fingerprints
    place = write_cell(folder / "results" / "small", cell, [True] * 4, data=fingerprints)
    Matches((match,)).to_parquet(place / "matches.parquet")
    words = [folder / "small.toml", data, "--results", folder / "results"]
    return [str(word) for word in words]


def test_the_matches_of_kept_cells_are_scored(
    script: ModuleType, own_planted: Planted, tmp_path: Path
) -> None:
    script.main(kept_cell(own_planted, tmp_path))
    (record,) = read_scores(tmp_path / "results" / "scores" / "small.jsonl")
    assert record.retrieval == {"cell": "Mug/STRAP-k10-seed1"}
    assert (record.matches, record.frames) == (1, 7)


def test_single_states_of_demonstrations_are_scored(
    script: ModuleType, own_planted: Planted, tmp_path: Path
) -> None:
    script.main(kept_cell(own_planted, tmp_path, method="d-s"))
    (record,) = read_scores(tmp_path / "results" / "scores" / "small.jsonl")
    assert (record.matches, record.frames) == (1, 7)


@pytest.mark.parametrize("method", ["strap", "d-s"])
@pytest.mark.parametrize("query", [Segment("demo_9", 1, 3), Segment("demo_0", 3, 400)])
def test_matches_of_other_segments_are_refused(
    script: ModuleType, own_planted: Planted, tmp_path: Path, query: Segment, method: str
) -> None:
    words = kept_cell(own_planted, tmp_path, query, method=method)
    with pytest.raises(StrapError, match="is no segment of its demonstrations"):
        script.main(words)
