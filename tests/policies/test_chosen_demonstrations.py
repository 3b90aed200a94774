"""Training on some of a dataset's demonstrations."""

from __future__ import annotations

from pathlib import Path

import pytest

import strap
from strap.cli import main
from strap.datasets.selection import Selection
from strap.errors import StrapError
from strap.policies import load_checkpoint
from strap.synthetic import Planted
from strap.training.data import open_training_data


def test_demonstrations_are_chosen_by_task_and_place(planted: Planted) -> None:
    prior = strap.open_dataset(planted.prior)
    text = prior[prior.ids[0]].instruction
    data = open_training_data(planted.prior, selection=Selection((text,), "1:3"))
    same = [own.id for own in prior if own.instruction == text]
    assert [clip.id for clip in data.clips] == same[1:3]
    assert {clip.role for clip in data.clips} == {"target"}
    beside = open_training_data(
        planted.target, prior=[planted.prior], selection=Selection(episodes="1")
    )
    roles = [clip.role for clip in beside.clips]
    assert (roles.count("target"), roles.count("prior")) == (1, len(prior))
    assert beside.clips[0].id == "demo_1"


def test_a_run_has_its_demonstrations(run: Path) -> None:
    with pytest.raises(StrapError, match=r"is a run, which was made for the demonstrations in it"):
        open_training_data(run, selection=Selection(episodes="0"))
    with pytest.raises(StrapError, match="is an augmented dataset, which"):
        open_training_data(run / "augmented.hdf5", selection=Selection(("x",)))


def test_the_command(planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frames = str(tmp_path / "frames")
    words = ["--text-encoder", "words", "--image-size", "32"]
    assert main(["cache", str(planted.target), "--out", frames, *words]) == 0
    command = ["train", str(planted.target), "--out", str(tmp_path / "k"), "--frames", frames]
    command += [*words, "--steps", "1", "--batch", "2", "--device", "cpu"]
    command += ["--history", "2", "--chunk", "2"]
    text = strap.open_dataset(planted.target)["demo_0"].instruction
    assert main([*command, "--tasks", text, "--episodes", "0:1"]) == 0
    assert load_checkpoint(tmp_path / "k").instructions.texts == (text,)
    capsys.readouterr()
    assert main([*command, "--tasks", "juggle"]) == 2
    assert "task 'juggle'" in capsys.readouterr().err
    assert main([*command, "--episodes", "7"]) == 2
    assert "'7' is not among the 2 trajectories" in capsys.readouterr().err


def test_a_run_without_augmented_dataset_needs_its_datasets(
    own_planted: Planted, tmp_path: Path
) -> None:
    call = ["retrieve", "--target", str(own_planted.target), "--prior", str(own_planted.prior)]
    call += ["--method", "random", "--top-k", "4", "--augmented", "none"]
    assert main([*call, "--target-episodes", "1", "--out", str(tmp_path / "run")]) == 0
    data = open_training_data(tmp_path / "run")
    assert [clip.id for clip in data.clips if clip.role == "target"] == ["demo_1"]
    assert len(data.retrieved) == 4
    own_planted.prior.unlink()
    with pytest.raises(StrapError, match="are gone and it holds no augmented dataset"):
        open_training_data(tmp_path / "run")
