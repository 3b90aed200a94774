from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import h5py
import pytest

from strap.choices import change_choices
from strap.cli import main
from strap.pipeline import RetrievalOptions, run_retrieval
from strap.runs import open_run
from strap.scores import score_run
from strap.segments import Segmentation
from strap.synthetic import Planted, make_planted

SKILLS = ("reach", "grasp", "carry")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs on data whose planted copies have the labels of what they are copies of."""
    folder = tmp_path_factory.mktemp("labelled")
    planted = make_planted(folder)
    label(planted)
    paths = [folder / "stops", folder / "window"]
    for path, method in zip(paths, ("stops", "window"), strict=True):
        options = RetrievalOptions("pixels", 6, segmentation=Segmentation(method=method))
        run_retrieval(planted.target, [planted.prior], path, options, stores=folder / "stores")
    return paths


def label(planted: Planted) -> None:
    for path in (planted.target, planted.prior):
        with h5py.File(path, "a") as file:
            for name, demo in file["data"].items():
                skills = ["wander"] * len(demo["actions"])
                if path == planted.target:
                    skills = [f"{SKILLS[i // 30]} {name}" for i in range(len(skills))]
                for plant in planted.plants if path == planted.prior else ():
                    if plant.segment.trajectory_id == name:
                        skill = f"{SKILLS[plant.query.start // 30]} {plant.query.trajectory_id}"
                        span = slice(plant.segment.start, plant.segment.stop)
                        skills[span] = [skill] * len(plant.segment)
                demo.create_dataset("skills/skill", data=skills, dtype=h5py.string_dtype())
                things = ["disc_1"] * len(skills)
                demo.create_dataset("skills/object", data=things, dtype=h5py.string_dtype())


def test_planted_matches_score_well(runs: list[Path]) -> None:
    stops = score_run(open_run(runs[0]))
    assert stops.precision.value > 0.8 > 3 * stops.precision.random
    assert stops.border_error.value < 3 < stops.border_error.random
    assert 0.3 < stops.recall.value <= stops.recall.best
    assert stops.matches == 6


def test_a_row_for_every_run(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", *map(str, runs)]) == 0
    heads, names, *rows = capsys.readouterr().out.splitlines()
    assert heads.split() == ["precision", "recall", "border", "error", "retrieved"]
    for group, column in (("precision", "found"), ("retrieved", "frames")):
        assert names[heads.index(group) :].startswith(column)
    own = [row.split() for row in rows]
    assert [row[:5] for row in own] == [
        ["stops", "strap", "pixels", "stops", "6"],
        ["window", "strap", "pixels", "window", "6"],
    ]
    assert {len(row) for row in own} == {len(names.replace("cut by", "cut").split())}
    scores = score_run(open_run(runs[0]))
    assert own[0][5:8] == [
        f"{v:.3f}" for v in (scores.precision.value, scores.precision.best, scores.precision.random)
    ]


def test_scores_as_json(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", str(runs[1]), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["runs"]
    assert row["segmentation"] == "window"
    assert row["precision"]["value"] <= row["precision"]["best"]
    assert sum(row["tasks"].values()) == row["matches"]


def test_data_without_labels(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = RetrievalOptions("pixels", 6)
    run_retrieval(planted.target, [planted.prior], tmp_path / "run", options)
    assert main(["score", str(tmp_path / "run")]) == 2
    shown = capsys.readouterr().err
    assert "has no skill labels" in shown
    assert "strap libero collect" in shown
    assert main(["score"]) == 2
    assert "no run to score" in capsys.readouterr().err


def test_what_was_rejected_is_not_scored(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = open_run(shutil.copytree(runs[0], tmp_path / "run"))
    change_choices(run.path, run.matches, {"reject": [0, 1]})
    assert score_run(run).tasks == Counter(match.instruction for match in run.matches[2:])
    assert score_run(run, choices="ignore").matches == 6
    assert main(["score", str(run.path)]) == 0
    assert "run: choices: 4 of 6 matches kept (strap view)" in capsys.readouterr().out
    assert main(["score", str(run.path), "--choices", "ignore"]) == 0
    assert "choices" not in capsys.readouterr().out


def test_a_prior_without_the_skills_has_no_precision(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, skill in ((planted.target, "pour"), (planted.prior, "wander")):
        with h5py.File(path, "a") as file:
            for demo in file["data"].values():
                for name, value in (("skill", skill), ("object", "disc_1")):
                    values = [value] * len(demo["actions"])
                    demo.create_dataset(f"skills/{name}", data=values, dtype=h5py.string_dtype())
    run_retrieval(planted.target, [planted.prior], tmp_path / "run", RetrievalOptions("pixels", 6))
    assert main(["score", str(tmp_path / "run")]) == 0
    _, _, row, note = capsys.readouterr().out.splitlines()
    assert row.split()[5:11] == ["–"] * 6
    assert note.startswith("run: the prior has no frames with the target's skills")
