"""Options of a training that nothing could be made of are errors that name them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from strap.cli import main
from strap.errors import StrapError
from strap.synthetic import Planted
from strap.training import FrameCache, TrainingSettings
from strap.training.cache_builder import CacheOptions
from strap.training.phases import plan_phases
from strap.training.windows import read_weights, training_windows

WORDS = ["--text-encoder", "words", "--image-size", "32", "--batch", "2", "--device", "cpu"]
WORDS += ["--history", "2", "--chunk", "2", "--steps", "3"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            "[1, 1, Infinity, 1, 1, 1]",
            r"match weight 2 \(counted from 0\) is inf: give 0 to 1e\+12",
        ),
        ("[1, NaN, 1, 1, 1, 1]", "match weight 1 .* is nan"),
        ("[1e308, 1e308, 1e308, 1, 1, 1]", r"match weight 0 .* is 1e\+308"),
        (f"[1, 1, 1, 1, 1, 1{'0' * 400}]", "match weight 5 .* is 10000"),
        ("[1, 1, 1, 1, 1, -1]", "match weight 5 .* is -1"),
        ("[1, 1, 1, 1, 1, true]", "match weights are a JSON list of numbers"),
        ("[0, 0, 0, 0, 0, 0.0]", r"gives every match the weight 0, so .* choose --recipe bc"),
    ],
)
def test_weights_that_nothing_can_be_drawn_by(tmp_path: Path, given: str, told: str) -> None:
    (tmp_path / "w.json").write_text(given)
    with pytest.raises(StrapError, match=told):
        read_weights(tmp_path / "w.json")


def test_weights_are_checked_where_they_are_used(cache: FrameCache) -> None:
    for weight in (np.inf, 1e308, np.nan, -1.0):
        with pytest.raises(StrapError, match="match weight 5 "):
            training_windows(cache, "strap", match_weights=[1.0] * 5 + [weight])


def test_matches_of_no_weight_leave_their_share_to_nobody(cache: FrameCache) -> None:
    windows = training_windows(cache, "strap", match_weights=[0.0] * 6)
    settings = TrainingSettings(recipe="strap", steps=2, alpha=0.75)
    with pytest.raises(StrapError, match=r"every match weighs 0, but alpha is 0\.75: 0\.25 of eac"):
        plan_phases(cache, windows, settings)
    assert windows.probabilities()[windows.is_target].sum() == pytest.approx(1)


@pytest.mark.parametrize("weight", [1e-320, 1e-44, 1e12])
def test_the_target_s_share_holds_with_extreme_weights(cache: FrameCache, weight: float) -> None:
    windows = training_windows(cache, "strap", match_weights=[weight] * 6)
    likely = windows.probabilities(0.3)
    assert np.isfinite(likely).all()
    assert likely[windows.is_target].sum() == pytest.approx(0.3)
    assert likely[~windows.is_target].sum() == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--prior", "PRIOR"], "--prior is given, but the recipe bc does not use it: leave it out"),
        (["--match-weights", "cost"], "not use it: leave it out, or choose --recipe strap"),
        (
            ["--alpha", "0.5"],
            "alpha is 0.5: the recipe bc does not use it; leave it out, or choose",
        ),
        (["--pretrain-steps", "2"], "not use it; leave it out, or choose the recipe ft"),
        (["--seed", "-1"], "seed is -1: it must be 0 to 9223372036854775807"),
        (["--seed", "9" * 23], f"seed is {'9' * 23}: it must be"),
        (["--image-size", "0"], "image_size is 0: it must be 1 to 8192 pixels"),
        (["--image-size", "100000"], "image_size is 100000: it must be"),
        (["--warmup", "-3"], "warmup is -3: it must be at least 0"),
        (["--min-std", "inf"], "min_std is inf: it must be a number, 0 to"),
        (["--learning-rate", "inf"], "learning_rate is inf: it must be above 0 and finite"),
        (["--weight-decay", "inf"], "weight_decay is inf: it must be at least 0 and finite"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_options_that_a_training_on_demonstrations_refuses(
    planted: Planted,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    told: str,
) -> None:
    """Before a frame is decoded."""
    words = [str(planted.prior) if word == "PRIOR" else word for word in words]
    out, frames = tmp_path / "k", tmp_path / "frames"
    command = ["train", str(planted.target), *WORDS, "--out", str(out), "--cache", str(frames)]
    assert main([*command, *words]) == 2
    assert told in capsys.readouterr().err
    assert not out.exists()
    assert not frames.exists()


def test_fine_tuning_has_no_share_of_the_target() -> None:
    with pytest.raises(StrapError, match=r"alpha is 0\.5: the recipe ft does not use it"):
        TrainingSettings(recipe="ft", alpha=0.5)
    for recipe in ("mt", "strap"):
        with pytest.raises(StrapError, match=r"pretrain_steps is 2: the recipe .* the recipe ft"):
            TrainingSettings(recipe=recipe, steps=4, pretrain_steps=2)


def test_weights_are_of_matches(cache: FrameCache) -> None:
    for recipe in ("bc", "ft", "mt"):
        with pytest.raises(StrapError, match=f"the recipe {recipe} does not train on matches"):
            training_windows(cache, recipe, match_weights=[1.0] * 6)


def test_a_frame_cache_has_been_read_already(
    cache: FrameCache, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", str(cache.path), "--out", str(tmp_path / "p"), "--orientation", "upright"]
    assert main(words) == 2
    assert "these have no effect: options of how datasets are read" in capsys.readouterr().err


def test_sizes_of_images() -> None:
    assert CacheOptions(image_size=8192).image_size == 8192
    with pytest.raises(StrapError, match="image_size is 8193: it must be 1 to 8192 pixels"):
        CacheOptions(image_size=8193)
