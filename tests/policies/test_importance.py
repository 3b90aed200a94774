"""Match weights by importance: p_target / p_prior of a match's frames, against a slow twin."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from strap.cli import main
from strap.errors import StrapError
from strap.pipeline import RetrievalOptions, run_retrieval
from strap.runs import open_run
from strap.store import open_store
from strap.synthetic import Planted
from strap.training.importance import LIMIT, fit_density_ratio, weigh_by_importance


def naive_loss(
    target: np.ndarray,
    prior: np.ndarray,
    coefficients: np.ndarray,
    intercept: float,
    penalty: float,
) -> float:
    """The mean of both kinds' mean log losses, and the penalty, frame by frame."""
    mean = prior.mean(axis=0)
    spread = math.sqrt(sum(math.dist(row, mean) ** 2 for row in prior) / len(prior))

    def logit(row: np.ndarray) -> float:
        return float(coefficients @ (row - mean)) + intercept

    ours = sum(math.log1p(math.exp(-logit(row))) for row in target) / len(target)
    theirs = sum(math.log1p(math.exp(logit(row))) for row in prior) / len(prior)
    return (ours + theirs) / 2 + penalty / 2 * float(((coefficients * spread) ** 2).sum())


def test_the_regression_minimises_its_loss() -> None:
    rng = np.random.default_rng(0)
    target, prior = rng.standard_normal((30, 3)) * 5 + [3, 0, 0], rng.standard_normal((50, 3)) * 5
    ratio = fit_density_ratio(target, prior, 0.01)
    fitted = np.append(ratio.coefficients, ratio.intercept)
    least = naive_loss(target, prior, fitted[:-1], fitted[-1], 0.01)
    for place in range(4):
        for step in (-0.01, 0.01):
            other = fitted + step * np.eye(4)[place]
            assert naive_loss(target, prior, other[:-1], other[-1], 0.01) > least


def test_the_odds_are_the_ratio_of_densities() -> None:
    rng = np.random.default_rng(0)
    # N(1, 1) over N(0, 1) is exp(x − 1/2), however many frames there are of each.
    target, prior = rng.standard_normal((4_000, 1)) + 1, rng.standard_normal((20_000, 1))
    ratio = fit_density_ratio(target, prior, 0.0)
    x = np.array([[-1.0], [0.5], [1.5]])
    assert ratio.of(x) == pytest.approx(np.exp(x[:, 0] - 0.5), rel=0.1)
    assert ratio.of(np.array([[-50.0], [50.0]])) == pytest.approx([1 / LIMIT, LIMIT])


@pytest.fixture(scope="module")
def wide(planted: Planted, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose matches are the six plants and as many that are like nothing."""
    folder = tmp_path_factory.mktemp("wide")
    options = RetrievalOptions(encoder="pixels", top_k=12)
    run_retrieval(planted.target, [planted.prior], folder / "run", options, stores=folder / "s")
    return folder / "run"


def test_matches_weigh_the_mean_of_their_frames(wide: Path, planted: Planted) -> None:
    run = open_run(wide)
    weights = weigh_by_importance(run)
    assert np.mean(weights) == pytest.approx(1)
    target, prior = (open_store(path) for path in run.manifest["stores"].values())
    every = np.concatenate([prior[key] for key in prior.ids])  # fewer than are sampled
    ratio = fit_density_ratio(np.concatenate([target[key] for key in target.ids]), every)
    means = []
    for match in run.matches:
        frames = prior[match.segment.trajectory_id]
        rows = [frames[t : t + 1] for t in range(match.segment.start, match.segment.stop)]
        means.append(sum(float(ratio.of(row)[0]) for row in rows) / len(rows))
    assert weights == pytest.approx([m * len(means) / sum(means) for m in means], rel=1e-3)
    is_plant = np.array([match.rank == 1 for match in run.matches])
    assert np.array(weights)[is_plant].mean() > np.array(weights)[~is_plant].mean()
    assert weigh_by_importance(run) == weights


def test_what_has_no_features_is_told(wide: Path) -> None:
    run = open_run(wide)
    for stores in ({}, None, {run.manifest["arguments"]["target"]: 3}):
        bare = replace(run, manifest={**run.manifest, "stores": stores})
        with pytest.raises(StrapError, match="compares no stored features"):
            weigh_by_importance(bare)


def test_importance_from_the_command_line(
    run: Path, planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--vision", "frozen", "--text-encoder", "words", "--image-size", "32", "--steps", "1"]
    words += ["--batch", "2", "--device", "cpu", "--cache", str(tmp_path / "c")]
    words += ["--match-weights", "importance"]
    assert main(["train", str(run), "--out", str(tmp_path / "a"), *words]) == 0
    strap = ["--out", str(tmp_path / "b"), "--recipe", "strap"]
    assert main(["train", str(planted.target), *strap, *words]) == 2
    assert "is not a run: --match-weights importance needs" in capsys.readouterr().err
    weights = weigh_by_importance(open_run(run))
    (tmp_path / "w.json").write_text(json.dumps(weights))
    words[-1] = str(tmp_path / "w.json")  # the same training: it has finished
    assert main(["train", str(run), "--out", str(tmp_path / "a"), *words]) == 0
