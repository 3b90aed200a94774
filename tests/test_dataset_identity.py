"""A match names its dataset by its path; nothing else stands for that dataset."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.stores import write_dataset

import strap
from strap.cli import main
from strap.errors import StrapError
from strap.figures.retrieval import write_figures
from strap.runs import open_run
from strap.synthetic import Planted, make_planted
from strap.training.data import open_training_data
from strap.types import Match, Matches, Segment

SAMPLE = Path(__file__).parent.parent / "samples" / "libero-mini"


@pytest.fixture(scope="module")
def sample_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The matches of README's own `strap retrieve`."""
    out = tmp_path_factory.mktemp("readme") / "my-run"
    words = ["--target", str(SAMPLE / "target/mug-mug"), "--prior", str(SAMPLE / "prior")]
    words += ["--encoder", "pixels", "--top-k", "20", "--stores", str(out.parent / "stores")]
    words += ["--report", "none", "--augmented", "none"]
    assert main(["retrieve", *words, "--out", str(out)]) == 0
    return out


@pytest.mark.slow  # the sample is retrieved from
def test_weights_of_the_readmes_run_leave_the_target_at_one(
    sample_run: Path, tmp_path: Path
) -> None:
    """Target and prior both have an `episode_000003`; the prior's matches are not the target's."""
    assert main(["export", str(sample_run), "--as", "weights", "--out", str(tmp_path)]) == 0
    target = np.array(pq.read_table(tmp_path / "target.parquet")["weight"])
    prior = np.array(pq.read_table(tmp_path / "prior-0-prior.parquet")["weight"])
    assert set(target) == {1.0}
    matches = open_run(sample_run).matches
    assert prior.sum() == sum(len(match.segment) for match in matches)


def two_priors(folder: Path) -> tuple[Planted, Path]:
    """Planted datasets, and a second prior with the same ids and nothing that matches."""
    planted = make_planted(folder)
    return planted, write_dataset(folder / "other.hdf5")


def test_a_prior_without_matches_gets_no_weight(tmp_path: Path) -> None:
    planted, other = two_priors(tmp_path / "data")
    run = tmp_path / "run"
    words = ["--target", str(planted.target), "--prior", str(planted.prior), str(planted.target)]
    words += ["--shared", "all", "--encoder", "pixels", "--top-k", "4", "--out", str(run)]
    assert main(["retrieve", *words]) == 0
    matches = open_run(run).matches
    assert {match.dataset for match in matches} == {str(planted.prior)}
    table = strap.exports.frame_weights(strap.open_dataset(other), matches)
    assert set(np.array(table["weight"])) == {0.0}


def test_a_prior_that_is_the_target_has_one_file_of_weights(tmp_path: Path) -> None:
    planted = make_planted(tmp_path / "data")
    run, out = tmp_path / "run", tmp_path / "weights"
    words = ["--target", str(planted.target), "--prior", str(planted.target)]
    assert main(["retrieve", *words, "--encoder", "pixels", "--top-k", "3", "--out", str(run)]) == 0
    assert main(["export", str(run), "--as", "weights", "--out", str(out)]) == 0
    assert [file.name for file in out.iterdir()] == ["target.parquet"]
    weights = np.array(pq.read_table(out / "target.parquet")["weight"])
    frames = sum(t.length for t in strap.open_dataset(planted.target))
    assert weights.sum() == frames + sum(len(m.segment) for m in open_run(run).matches)


def one_match(dataset: str) -> Matches:
    return Matches((Match(Segment("demo_0", 0, 30), Segment("demo_0", 3, 9), 0.0, 1, "", dataset),))


def test_augment_takes_no_other_dataset_for_the_one_named(planted: Planted, tmp_path: Path) -> None:
    target, prior = strap.open_dataset(planted.target), strap.open_dataset(planted.prior)
    with pytest.raises(
        StrapError, match=r"there are matches in '/gone', which is not among .* moved"
    ):
        strap.augment(target, prior, one_match("/gone"), tmp_path / "a.hdf5")


def test_matches_of_a_moved_dataset(planted: Planted, tmp_path: Path) -> None:
    moved = shutil.copy(planted.prior, tmp_path / "moved.hdf5")
    target, prior = strap.open_dataset(planted.target), strap.open_dataset(moved)
    matches = one_match(str(planted.prior))
    with pytest.raises(StrapError, match=r"use matches\.moved"):
        strap.augment(target, prior, matches, tmp_path / "a.hdf5")
    found = matches.moved(planted.prior, moved)
    assert len(strap.open_dataset(strap.augment(target, prior, found, tmp_path / "a.hdf5"))) == 3
    with pytest.raises(StrapError, match="unknown dataset of the matches '/nowhere'"):
        matches.moved("/nowhere", moved)


@pytest.mark.slow  # the sample is retrieved from
def test_figures_take_no_other_dataset_for_the_one_named(sample_run: Path, tmp_path: Path) -> None:
    run = open_run(sample_run)
    target = strap.open_dataset(SAMPLE / "target/mug-mug")
    with pytest.raises(StrapError, match="which is not among the datasets given"):
        write_figures(tmp_path, run, target, [target])


def test_training_takes_no_other_dataset_for_the_one_named(tmp_path: Path) -> None:
    planted = make_planted(tmp_path / "data")
    run = tmp_path / "run"
    words = ["--target", str(planted.target), "--prior", str(planted.prior)]
    assert main(["retrieve", *words, "--encoder", "pixels", "--top-k", "3", "--out", str(run)]) == 0
    assert open_training_data(run).retrieved
    one_match("/gone").to_parquet(run / "matches.parquet")
    with pytest.raises(StrapError, match="there are matches in '/gone', which is not among"):
        open_training_data(run)
    planted.prior.touch()
    with pytest.raises(StrapError, match="has changed since"):
        open_training_data(run)
