"""The report against numbers counted by hand, and what it refuses to mix."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from tests.experiments.tables import TEXT, cell_named, read_small, write_cell

from strap.errors import StrapError
from strap.evaluation.statistics import Comparison
from strap.experiments.cellfolders import copy_cell, read_results
from strap.experiments.cells import list_cells
from strap.experiments.description import Experiment
from strap.experiments.reporting import write_report
from strap.experiments.result_tables import format_count
from strap.experiments.summary import Paired, SuccessCount, Summary
from strap.types import Match, Matches, Segment

OUTCOMES = {
    "Mug/BC-seed1": "1000",
    "Mug/BC-seed2": "1100",
    "Book/BC-seed1": "0000",
    "Mug/FT-seed1": "1110",
    "Mug/STRAP-k10-seed1": "0111",
    "Mug/STRAP-k10-seed2": "1101",
    "Book/STRAP-k10-seed1": "1111",
    "Mug/STRAP-k20-seed1": "1111",
    "Book/STRAP-k20-seed1": "1010",
}
"""successes by initial state; the other cells are missing"""


def fill(folder: Path, experiment: Experiment) -> Path:
    for name, outcomes in OUTCOMES.items():
        cell = cell_named(experiment, name)
        place = write_cell(folder, cell, [letter == "1" for letter in outcomes])
        if cell.method.retrieval is not None:
            query, found = Segment("demo_0", 0, 5), Segment("demo_1", 0, 7)
            rows = [Match(query, found, 1.0, i + 1, f"prior task {i}", "prior") for i in range(6)]
            Matches(tuple(rows)).to_parquet(place / "matches.parquet")
    return folder


def summarise(folder: Path, text: str = TEXT) -> Summary:
    experiment = read_small(folder, text)
    cells = list_cells(experiment)
    return Summary(experiment, cells, read_results(cells, fill(folder / "work", experiment)))


def test_scores_are_counted(tmp_path: Path) -> None:
    own = summarise(tmp_path)
    assert [own.label(column) for column in own.columns] == ["BC", "FT", "STRAP K=10", "STRAP K=20"]
    bc, ft, strap, strap_20 = own.columns
    assert own.count(bc, "Mug") == SuccessCount(3, 8, 2, 2)
    assert own.count(bc, "Book") == SuccessCount(0, 4, 1, 2)
    assert own.count(ft, "Book") == SuccessCount(0, 0, 0, 1)
    assert own.mean(bc) == pytest.approx((3 / 8 + 0) / 2)
    assert own.mean(strap) == pytest.approx((6 / 8 + 1) / 2)
    assert own.mean(strap_20) == pytest.approx((1 + 2 / 4) / 2)
    assert own.mean(ft) is None  # it lacks a task
    assert len(own.missing) == 14 - len(OUTCOMES)


def test_rollouts_are_paired_by_task_state_and_seed(tmp_path: Path) -> None:
    own = summarise(tmp_path)
    bc, ft, strap, _ = own.columns
    paired = own.compare(strap, bc)
    # Mug, seed 1: 0111 and 1000; seed 2: 1101 and 1100; Book, seed 1: 1111 and 0000.
    counts = paired.comparison
    assert (counts.both, counts.first_only, counts.second_only, counts.neither) == (2, 8, 1, 1)
    assert counts.p_value == pytest.approx(2 * (1 + 9) / 2**9)
    assert paired.difference == pytest.approx(7 / 12)
    assert paired.worst_task == ("Mug", pytest.approx(3 / 8))
    assert own.compare(ft, bc).pairs == 4  # FT has one seed and one task
    assert own.references == [bc, strap]
    labels = [(own.label(p.column), own.label(p.reference)) for p in own.comparisons()]
    assert labels.count(("STRAP K=10", "BC")) == 1
    assert ("BC", "STRAP K=10") not in labels


@pytest.mark.parametrize(
    ("signs", "p_value"), [("++++++", 2 / 2**6), ("+++++-", 14 / 2**6), ("+++++", None)]
)
def test_signs_of_tasks_are_flipped(tmp_path: Path, signs: str, p_value: float | None) -> None:
    """All differences are alike, so only a sum of as many signs or more is as large."""
    own = summarise(tmp_path)
    up, down = Comparison(2, 2, 0, 0, 0.5), Comparison(2, 0, 2, 0, 0.5)
    by_task = {f"task {i}": up if sign == "+" else down for i, sign in enumerate(signs)}
    paired = Paired(own.columns[1], own.columns[0], up, by_task)
    assert paired.p_over_tasks == (p_value and pytest.approx(p_value))


def test_the_report_shows_the_numbers(tmp_path: Path) -> None:
    experiment = read_small(tmp_path)
    work = fill(tmp_path / "work", experiment)
    files = write_report(experiment, list_cells(experiment), work, tmp_path / "report")
    assert {file.name for file in files} == {
        *("results.md", "results.csv", "comparisons.csv", "results.tex", "success.png"),
        *("k-sweep.png", "matches-STRAP-K-10.png", "matches-STRAP-K-20.png"),
    }
    assert all(file.stat().st_size for file in files)
    page = (tmp_path / "report" / "results.md").read_text()
    assert "| method | Mug | Book | **mean** |" in page  # more methods than tasks
    assert "| BC | 3 / 8 (14 to 69 %) | 0 / 4 (0 to 49 %) | **18.8 %** (9 to 53 %) |" in page
    assert "| FT | 3 / 4 (30 to 95 %) | missing | 1 of 2 tasks |" in page
    assert "| Mug | 37.5 / 50 |" in page
    assert "| STRAP K=10 | BC | 12 | +58.3 | 8 | 1 | 0.039 | – | Mug +38 |" in page
    assert "5 of 14 cells:\n\n" in page
    assert "- FT-seed1: Book\n" in page
    assert "A training took 10 s, an evaluation took 5 s on average" in page
    with (tmp_path / "report" / "results.csv").open() as stream:
        rows = {(r["task"], r["method"], r["top_k"]): r for r in csv.DictReader(stream)}
    assert rows["Mug", "BC", ""]["successes"] == "3"
    assert rows["Mug", "BC", ""]["paper"] == "50"
    assert rows["Book", "FT", ""]["rate"] == ""
    latex = (tmp_path / "report" / "results.tex").read_text()
    assert "BC & $37.5\\,[14, 69]$ & $0.0\\,[0, 49]$ & 18.8 \\\\" in latex
    assert "FT & $75.0\\,[30, 95]$ & -- & -- \\\\" in latex


def test_a_kept_folder_gives_the_same_report(tmp_path: Path) -> None:
    experiment = read_small(tmp_path)
    cells = list_cells(experiment)
    work, kept = fill(tmp_path / "work", experiment), tmp_path / "kept"
    assert sum(copy_cell(cell, work, kept) for cell in cells) == len(OUTCOMES)
    assert sum(copy_cell(cell, work, kept) for cell in cells) == 0
    for folder in (work, kept):
        write_report(experiment, cells, folder, folder / "report")
    for name in ("results.md", "results.csv", "comparisons.csv", "results.tex"):
        assert (work / "report" / name).read_text() == (kept / "report" / name).read_text()


def test_cells_that_were_made_otherwise_are_not_mixed(tmp_path: Path) -> None:
    experiment = read_small(tmp_path)
    cells = list_cells(experiment)
    work = fill(tmp_path / "work", experiment)
    cell = cell_named(experiment, "Book/STRAP-k20-seed2")
    write_cell(work, cell, [True] * 4, data={"target": "a", "prior": "other"})
    with pytest.raises(StrapError, match="different data: prior is 'b' here and 'other' there"):
        write_report(experiment, cells, work, tmp_path / "report")
    cell = cell_named(experiment, "Mug/STRAP-k20-seed2")
    other = {**cell.identity, "retrieve_options": {"cameras": "wrist"}}
    write_cell(work, cell, [True] * 4, identity=other)
    with pytest.raises(
        StrapError, match=r"retrieve_options\.cameras is 'wrist' here and not given"
    ):
        write_report(experiment, cells, work, tmp_path / "report")


def test_an_empty_folder_has_no_report(tmp_path: Path) -> None:
    experiment = read_small(tmp_path)
    with pytest.raises(StrapError, match="holds no finished cell of 'small'"):
        write_report(experiment, list_cells(experiment), tmp_path / "w", tmp_path / "r")


def test_published_rates_may_be_those_of_one_k(tmp_path: Path) -> None:
    own = summarise(tmp_path, TEXT + '[paper."STRAP K=20"]\nBook = 70\n')
    assert own.experiment.published("STRAP", 20) == {"Book": 70}
    assert own.experiment.published("STRAP", 10) == {}
    assert own.experiment.published("BC", None) == {"Mug": 50}


def test_a_score_in_words() -> None:
    assert format_count(SuccessCount(10, 20, 1, 1)) == "10 / 20 (30 to 70 %)"
    assert format_count(SuccessCount(0, 0, 0, 2)) == "missing"
    assert format_count(SuccessCount(0, 0, 0, 0)) == "–"
