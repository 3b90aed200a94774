"""Scores on disk, and the tables that are made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strap.errors import StrapError
from strap.scores import Score, Scores
from strap.scores.score_files import ScoreRecord, read_scores, write_scores
from strap.scores.score_tables import ScoreTable

TASKS = ("Mug-Mug", "Soup-Sauce")


def record(precision: float = 0.5, **retrieval: Any) -> ScoreRecord:
    said = {
        "method": "strap",
        "encoder": "pixels",
        "fuse": "",
        "segmentation": "stops",
        "task": "Mug-Mug",
        "top_k": 100,
    }
    scores = Scores(
        precision=Score(precision, 0.8, 0.03125),
        recall=Score(1 / 3, 0.9, 0.01),
        border_error=Score(7.5, 0.0, 13.0),
        frames=1234,
        matches=100,
        trajectories=17,
        effective_tasks=3.4,
        tasks={"put the mug down": 100},
    )
    return ScoreRecord.of({**said, **retrieval}, scores)


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    records = [record(), record(0.25, task="Soup-Sauce", fused="gripper=0.5")]
    write_scores(tmp_path / "scores.jsonl", records)
    assert read_scores(tmp_path / "scores.jsonl") == records
    assert records[0].recall.value == 0.3333
    assert records[0].to_json()["precision"] == [0.5, 0.8, 0.0312]
    assert read_scores(tmp_path / "none.jsonl") == []


@pytest.mark.parametrize("line", ["{", "[]", '{"precision": [1, 1, 0]}'])
def test_a_damaged_line_is_told(tmp_path: Path, line: str) -> None:
    write_scores(tmp_path / "scores.jsonl", [record()])
    with (tmp_path / "scores.jsonl").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(StrapError, match=r"line 2 of '.*' is not a record of scores"):
        read_scores(tmp_path / "scores.jsonl")


def test_share_of_the_best() -> None:
    assert record(0.4).share_of_best == pytest.approx(0.5)


def test_precision_of_every_task() -> None:
    both = [record(p, task=task) for p, task in zip((0.5, 0.25), TASKS, strict=True)]
    table = ScoreTable([*both, record(0.75, method="d-t", segmentation="full")])
    head, _, strap, whole = cells(table.format_precision(100))
    assert head == ["method", "encoder", "fused", "cut by", *TASKS, "mean", "best", "random"]
    assert strap[4:] == [".50 / .80", ".25 / .80", ".375", ".800", ".031"]
    # The mean of one task could not be compared with that of two.
    assert whole[4:] == [".75 / .80", "none", "1 of 2 tasks", "–", "–"]


def test_rows_stand_by_method_and_what_is_fused_apart() -> None:
    fused = [record(task=task, fuse="gripper") for task in TASKS]
    plain = [record(task=task, top_k=k) for task in TASKS for k in (100, 200)]
    table = ScoreTable([*(record(task=t, method="random") for t in TASKS), *fused, *plain])
    assert [row[:3] for row in table.rows] == [
        ("strap", "pixels", ""),
        ("strap", "pixels", "gripper"),
        ("random", "pixels", ""),
    ]
    shown = cells(table.format_all([100, 200], is_fused=False))[2:]
    assert [(row[0], row[4]) for row in shown] == [
        ("strap", "100"),
        ("strap", "200"),
        ("random", "100"),
    ]
    (line,) = cells(table.format_all([100, 200], is_fused=True))[2:]
    assert line[2:] == (
        ["gripper", "stops", "100", "100", "1,234", ".500", ".800", ".031", ".333", ".900", ".010"]
        + ["7.5", "13.0", "17", "3.4"]
    )
