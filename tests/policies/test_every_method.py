"""Every retrieval method from the datasets to a rollout, at the smallest size."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from tests.policies.toy import make

from strap.cli import main
from strap.evaluation import EvaluationSettings
from strap.evaluation.results import run_episodes
from strap.policies import load_policy
from strap.representations import RepresentationSettings
from strap.retrieval import METHODS
from strap.runs import POLICY, open_run
from strap.synthetic import Planted, make_planted

SMALL = ["--vision", "frozen", "--text-encoder", "words", "--image-size", "32", "--batch", "2"]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    """Two demonstrations and four prior trajectories of 20 frames."""
    return make_planted(
        tmp_path_factory.mktemp("small"), demos=2, sub_tasks=1, prior=4, length=20, size=64
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_policy_is_trained_on_what_a_method_retrieves_and_acts(
    small: Planted, tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks = {"latent": 6, "hidden": (10, 12), "features": 8, "keypoints": 4}
    settings = partial(RepresentationSettings, batch=2, image_size=64, **networks)
    monkeypatch.setattr("strap.representations.RepresentationSettings", settings)
    run = tmp_path / "run"
    call = ["--target", str(small.target), "--prior", str(small.prior), "--method", method]
    call += ["--encoder", "pixels"]
    call += ["--text-encoder", "words"] if method == "language" else []
    call += ["--learning-steps", "1"] if method in ("br", "fr") else []
    assert main(["retrieve", *call, "--top-k", "4", "--out", str(run)]) == 0
    assert len(open_run(run).matches) == 4
    assert main(["train", str(run), *SMALL, "--steps", "1", "--device", "cpu"]) == 0
    policy = load_policy(run / POLICY, device="cpu")
    toy = tmp_path / "toy"
    toy.mkdir()
    one = EvaluationSettings(episodes=1, horizon=3, workers=1, videos=False)
    identity = {"checkpoint": method, "suite": "toy", "task": "reach", "horizon": 3}
    done = run_episodes(policy, "reach", one, make, (str(toy),), tmp_path / "out", identity)
    assert [row["steps"] for row in done.records] == [3]
