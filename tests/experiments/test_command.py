"""`strap experiment` on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.experiments.tables import TEXT, cell_named, write_cell, write_experiment

from strap.cli import main
from strap.cli.experiment import EXPERIMENT_COMMANDS, list_options
from strap.experiments.description import read_experiment

RUNS = Path(__file__).parents[2] / "runs"


@pytest.mark.parametrize("file", sorted(RUNS.glob("*.toml")), ids=lambda path: path.stem)
def test_our_experiments_know_the_commands(file: Path) -> None:
    known = {name: list_options(name) for name in EXPERIMENT_COMMANDS}
    assert read_experiment(file, known).methods


def test_cells_and_commands_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_experiment(tmp_path)
    words = ["experiment", str(file), "--out", str(tmp_path / "work"), "--list"]
    assert main([*words, "--tasks", "Mug", "--methods", "BC", "STRAP", "--seeds", "2"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("3 cells, 0 of them finished\n  Mug/BC-seed2\n")
    assert "--recipe strap --frames WORK/frames/" in told
    assert not (tmp_path / "work").exists()


def test_options_are_those_of_the_real_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_experiment(tmp_path, TEXT.replace("decay = true", "dekay = true"))
    assert main(["experiment", str(file), "--out", str(tmp_path / "work"), "--list"]) == 2
    assert "unknown option of strap train 'dekay': did you mean 'decay'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("right", "wrong", "command"),
    [
        ("steps = 10", 'steps = "many"', "train"),
        ('episodes = "0:4"', 'episodes = "0:4"\nacting = "smaple"', "evaluate"),
        ("videos = false", 'videos = "no"', "evaluate"),
        ("steps = 10", "steps = 10\nwarmup = -1", "[train] of method BC: warmup is -1"),
        ('retrieval = "strap"', 'retrieval = "d-t"\nretrieve_options = { seed = 7 }', "seed is 7"),
        ("seeds = [1, 2]", "train_options = { alpha = 0.5 }", "[train] of method BC: alpha is 0.5"),
    ],
)
def test_wrong_values_are_told_before_anything_runs(
    tmp_path: Path, right: str, wrong: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert right in TEXT
    file = write_experiment(tmp_path, TEXT.replace(right, wrong, 1))
    words = ["experiment", str(file), "--out", str(tmp_path / "work")]
    assert main([*words, "--list"]) == 2
    assert command in capsys.readouterr().err
    assert main(words) == 2
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("cache", "train", "told"),
    [
        ("", 'vision = "frozen"', 'write [cache] vision = "frozen"'),
        ('vision = "frozen"', 'vision = "resnet"', 'write [cache] vision = "resnet"'),
        ("", "image_size = 64", "write [cache] image_size = 64"),
        ("image_size = 32", "image_size = 64", "are decoded with 32: write [cache] image_size"),
        ("", "image_size = 128", ""),
        ('vision = "frozen"', 'vision = "frozen"', ""),
        ('vision = "frozen"\nimage_size = 64', "", ""),
    ],
)
def test_frames_are_those_that_trainings_want(
    tmp_path: Path, cache: str, train: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise every training would fail, after everything was decoded."""
    text = TEXT.replace("[train]\n", f"[cache]\n{cache}\n\n[train]\n{train}\n")
    words = ["experiment", str(write_experiment(tmp_path, text)), "--out", str(tmp_path / "work")]
    assert main([*words, "--list"]) == (2 if told else 0)
    assert told in capsys.readouterr().err


def test_a_report_needs_no_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_experiment(tmp_path)
    experiment = read_experiment(file)
    write_cell(tmp_path / "kept", cell_named(experiment, "Mug/BC-seed1"), [True] * 4)
    words = ["experiment", str(file), "--data", str(tmp_path / "nowhere"), "--report"]
    assert main([*words, "--out", str(tmp_path / "kept")]) == 0
    assert str(tmp_path / "kept" / "report" / "results.md") in capsys.readouterr().out
    assert (
        "| Mug | 4 / 4 (51 to 100 %) |" in (tmp_path / "kept" / "report" / "results.md").read_text()
    )


def test_a_failure_is_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_experiment(tmp_path)  # its datasets are none
    words = ["experiment", str(file), "--out", str(tmp_path / "work"), "--no-mps"]
    assert main([*words, "--tasks", "Mug", "--methods", "BC", "--seeds", "1"]) == 1
    told = capsys.readouterr().out
    assert "FAILED cache frames/" in told
    assert "1 stages failed and 2 wait for them" in told
