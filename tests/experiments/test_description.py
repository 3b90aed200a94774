"""Reading an experiment's file: what it says, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.experiments.tables import KNOWN, TEXT, read_small

from strap.errors import StrapError
from strap.experiments.cells import list_cells
from strap.experiments.description import read_experiment

RUNS = Path(__file__).parents[2] / "runs"


def test_a_file_is_read(tmp_path: Path) -> None:
    own = read_small(tmp_path)
    assert own.states == (0, 4)
    assert own.options["evaluate"] == {"videos": False}
    assert [method.seeds for method in own.methods] == [(1, 2), (1,), (1, 2)]
    assert own.methods[2].top_k == (10, 20)
    assert own.methods[2].encoders == ("pixels",)
    assert own.methods[0].top_k == ()
    assert own.methods[0].encoders == ()
    assert own.compare == ("BC", "STRAP")
    assert own.paper == {"BC": {"Mug": 50}}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("seeds = [1]\n", "sedes = [1]\n", "unknown key 'sedes': did you mean 'seeds'"),
        ("seeds = [1]\n", 'seeds = ["1"]\n', r"seeds is \['1'\]: give whole numbers"),
        ("seeds = [1]\n", "seeds = [1, 1]\n", "give each value once"),
        ("top_k = [10", "topk = [10", "unknown key of a method 'topk': did you mean 'top_k'"),
        ("top_k = [10", "top_k = [0", r"top_k is \[0, 20\]"),
        ("top_k = [10, 20]", 'top_k = "all"', "top_k is 'all': give a whole number above 0"),
        ('train = "ft"', 'train = "fd"', "unknown train of method FT 'fd': did you mean 'ft'"),
        ('retrieval = "strap"', 'retrieval = "dt"', "did you mean 'd-t'"),
        ('train = "ft"', 'train = "strap"', "needs a retrieval"),
        ('train = "ft"', 'train = "ft"\ntop_k = 3', "FT retrieves nothing: remove its top_k"),
        ('train = "ft"', 'train = "bc"\npretrained = true', "only train = 'strap' can set it"),
        ('retrieval = "strap"', 'retrieval = "strap"\npretrained = 1', "is 1: give true or false"),
        ("steps = 10", "stpes = 10", "unknown option of strap train 'stpes': did you mean 'steps'"),
        ("steps = 10", "qkv_bias = true", "'qkv_bias' is true, but --qkv-bias of strap train"),
        ("steps = 10", "seed = 10", "'seed' of .train. is set by the runner"),
        ("steps = 10", "steps = {a = 1}", "give a text, number or list"),
        ('"0:4"', '"4:0"', "episodes is '4:0'"),
        ("Mug = 50", "Mugg = 50", "unknown task of .paper.BC. 'Mugg': did you mean 'Mug'"),
        ("Mug = 50", "Mug = 150", "give a rate in per cent"),
        ("[paper.BC]", "[paper.BCC]", "unknown method of .paper. 'BCC': did you mean 'BC'"),
        ('name = "FT"', 'name = "BC"', "methods 'BC' and 'BC' would share their folders"),
        ('name = "small"\n', "", "'name' is missing: give a text"),
        ('encoder = "pixels"', "encoder = 3", "'encoder' is 3"),
        ('prior = ["prior*"]', "prior = []", r"'prior' is \[\]"),
        ('seeds = [1]\n', 'seeds = [1]\ncompare = ["STRIP"]\n', "did you mean 'STRAP'"),
        ("[tasks]", "tasks = [", "cannot read .* as TOML"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in TEXT
    with pytest.raises(StrapError, match=words):
        read_small(tmp_path, TEXT.replace(old, new, 1))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StrapError, match=r"no such file: '.*nothing.toml'"):
        read_experiment(tmp_path / "nothing.toml", KNOWN)


def test_cells_are_all_combinations_first_repetitions_first(tmp_path: Path) -> None:
    cells = list_cells(read_small(tmp_path))
    names = [cell.name for cell in cells]
    assert names[:4] == [
        "Mug/BC-seed1",
        "Mug/FT-seed1",
        "Mug/STRAP-k10-seed1",
        "Mug/STRAP-k20-seed1",
    ]
    assert len(names) == len(set(names)) == 2 * (2 + 1 + 2 * 2)
    seeds = [cell.seed for cell in cells]
    assert seeds == sorted(seeds)


def test_encoders_and_demonstrations_multiply_and_name_cells(tmp_path: Path) -> None:
    text = TEXT.replace('"0:5"', '["0:5", "3:8"]')
    text = text.replace("top_k = [10, 20]", 'top_k = 10\nencoder = ["pixels", "a/b"]')
    names = [c.name for c in list_cells(read_small(tmp_path, text), tasks=["Mug"], seeds=[2])]
    assert set(names) == {
        "Mug/BC-seed2",
        "Mug/BC-demonstrations3-8-seed2",
        "Mug/STRAP-k10-seed2",
        "Mug/STRAP-k10-demonstrations3-8-seed2",
        "Mug/STRAP-k10-a-b-seed2",
        "Mug/STRAP-k10-a-b-demonstrations3-8-seed2",
    }


def test_a_choice_that_is_not_there_is_refused(tmp_path: Path) -> None:
    own = read_small(tmp_path)
    with pytest.raises(StrapError, match="unknown task 'Bok': did you mean 'Book'"):
        list_cells(own, tasks=["Bok"])
    with pytest.raises(StrapError, match="unknown method 'STRAPP'"):
        list_cells(own, methods=["STRAPP"])
    with pytest.raises(StrapError, match="unknown seed '7'"):
        list_cells(own, seeds=[7])
    with pytest.raises(StrapError, match="no cell in common"):
        list_cells(own, methods=["FT"], seeds=[2])


@pytest.mark.parametrize("file", sorted(RUNS.glob("*.toml")), ids=lambda path: path.stem)
def test_our_experiments_are_read(file: Path) -> None:
    cells = list_cells(read_experiment(file))
    assert len({cell.name for cell in cells}) == len(cells)


def test_the_main_table_has_all_rows() -> None:
    own = read_experiment(RUNS / "main_table.toml")
    rows = [method.name for method in own.methods]
    assert rows[:9] == ["BC", "FT", "MT", "BR", "FR", "D-S", "D-T", "random", "language"]
    assert "STRAP" in rows
    assert len(own.tasks) == 10
    means = {name: sum(rates.values()) / 10 for name, rates in own.paper.items()}
    published = {"BC": 37.9, "FT": 51.7, "MT": 37.7, "BR": 33.4, "FR": 33.1, "D-S": 28.4}
    assert means == pytest.approx({**published, "D-T": 41.4, "STRAP": 45.6}, abs=0.06)
