"""A cell whose files cannot be its own, or cannot have been written, is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.experiments.tables import TEXT, cell_named, read_small, write_cell

from strap.errors import StrapError
from strap.experiments.cellfolders import CellResult, read_cell
from strap.experiments.cells import Cell


@pytest.fixture
def cell(tmp_path: Path) -> Cell:
    return cell_named(read_small(tmp_path), "Mug/BC-seed2")


def rows_of(seed: int) -> list[dict[str, Any]]:
    """Episodes as an evaluation of that seed records them."""
    return [
        {"state": state, "seed": 100_000 * seed + state, "success": state < 2, "partial": 0.5}
        for state in range(4)
    ]


def read(folder: Path, cell: Cell, rows: list[Any] | None = None, **about: Any) -> CellResult:
    """Write a cell with other episodes or a description, and read it."""
    place = write_cell(folder, cell, [True] * 4)
    text = "".join(json.dumps(row) + "\n" for row in rows_of(cell.seed) if rows is None)
    text += "".join(json.dumps(row) + "\n" for row in rows or ())
    (place / "episodes.jsonl").write_text(text)
    (place / "evaluation.json").write_text(json.dumps(about))
    result = read_cell(folder, cell)
    assert result is not None
    return result


ABOUT = {
    "suite": "libero_10",
    "task": "KITCHEN_SCENE5_put_the_mug_on_the_plate",
    "seed": 2,
    "horizon": 520,
}


def test_a_sound_cell_is_read(cell: Cell, tmp_path: Path) -> None:
    result = read(tmp_path / "work", cell, **ABOUT)
    assert result.successes == {0: True, 1: True, 2: False, 3: False}
    assert result.partial == 0.5


def test_patterns_of_datasets_are_those_of_the_folder(tmp_path: Path) -> None:
    text = TEXT.replace('["prior*"]', '["./**/pri*"]')
    cell = cell_named(read_small(tmp_path / "a", text), "Mug/BC-seed2")
    assert read(tmp_path / "work", cell, **ABOUT) is not None


@pytest.mark.parametrize("prior", ['["else*"]', '["prior*", "more"]'])
def test_a_cell_of_other_datasets_is_refused(tmp_path: Path, prior: str) -> None:
    cell = cell_named(read_small(tmp_path / "a"), "Mug/BC-seed2")
    read(tmp_path / "work", cell, **ABOUT)
    text = TEXT.replace('["prior*"]', prior)
    other = cell_named(read_small(tmp_path / "b", text), "Mug/BC-seed2")
    with pytest.raises(StrapError, match="was made from the datasets target, prior, but"):
        read_cell(tmp_path / "work", other)


def test_episodes_of_another_seed_are_refused(cell: Cell, tmp_path: Path) -> None:
    message = r"BC-seed2/episodes\.jsonl' is damaged, line 1: seed is 100000, but .* has 200000"
    with pytest.raises(StrapError, match=message):
        read(tmp_path / "work", cell, rows_of(1), **ABOUT)


def test_episodes_that_cannot_be_are_refused(cell: Cell, tmp_path: Path) -> None:
    rows: list[Any] = rows_of(2)
    for number, row in enumerate(
        (5, {**rows[0], "success": "false"}, {"state": 0, "seed": 200000})
    ):
        with pytest.raises(StrapError, match=r"episodes\.jsonl' is damaged, line 5"):
            read(tmp_path / str(number), cell, [*rows, row], **ABOUT)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"suite": "libero_90"}, "suite is 'libero_90' here and 'libero_10' there"),
        ({"task": "open_the_drawer"}, "task is 'open_the_drawer' here and 'put the mug on the"),
        ({"seed": 1}, "seed is 1 here and 2 there"),
    ],
)
def test_the_evaluation_of_another_cell_is_refused(
    cell: Cell, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    found = rf"evaluation\.json' is of another cell than 'Mug/BC-seed2': {message}.*; restore"
    with pytest.raises(StrapError, match=found):
        read(tmp_path / "work", cell, **{**ABOUT, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seconds": {"train": "x"}}, r"seconds\.train is 'x', not a number from 0 on"),
        ({"seconds": {"train": float("nan")}}, r"seconds\.train is nan, not a number from 0 on"),
        ({"seconds": "x"}, "seconds is 'x', not an object"),
        ({"versions": []}, r"versions is \[\], not an object"),
    ],
)
def test_a_manifest_whose_costs_cannot_be_is_refused(
    cell: Cell, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    write_cell(tmp_path / "work", cell, [True] * 4, **changes)
    with pytest.raises(
        StrapError, match=rf"manifest\.json': {message}: restore it from a copy, or"
    ):
        read_cell(tmp_path / "work", cell)
