"""Phases of a training, weights of matches, and beginning with another checkpoint."""

from __future__ import annotations

import json
import math
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from strap.cli import main
from strap.errors import StrapError
from strap.policies import PolicySettings, load_checkpoint
from strap.policies.checkpoints import read_tensors
from strap.training import FrameCache, TrainingSettings, train
from strap.training.batches import Sampler
from strap.training.cache import RetrievedSpan
from strap.training.cache_builder import build_cache
from strap.training.data import open_training_data
from strap.training.phases import (
    Phases,
    count_target_draws,
    plan_phases,
    warn_of_few_target_draws,
)
from strap.training.resume import identify_training, require_same_training
from strap.training.windows import Windows, training_windows, weigh_by_cost

from .conftest import OPTIONS

SMALL = PolicySettings(layers=1, width=32, heads=2, keypoints=4, features=8, vision="frozen")
QUICK = TrainingSettings(recipe="bc", steps=3, batch=2, warmup=2, learning_rate=1e-3)


@pytest.mark.parametrize("recipe", ["mt", "strap"])
def test_the_last_steps_are_on_the_target_alone(frozen: FrameCache, recipe: str) -> None:
    settings = TrainingSettings(recipe=recipe, steps=20, finetune_steps=5, warmup=4, alpha=0.3)
    windows = training_windows(frozen, recipe)
    phases, table = plan_phases(frozen, windows, settings)
    assert [first for first, _ in phases] == [0, 15]
    sampler = Sampler(phases, 64, 1, 1, 0)
    drawn = [table.is_target[sampler.draw(step)[:, 0]] for step in range(20)]
    assert 0.2 < np.mean(drawn[:15]) < 0.4
    assert np.all(drawn[15:])
    rates = [settings.rate(step) / settings.learning_rate for step in range(20)]
    assert rates[:5] == rates[15:] == pytest.approx([0.25, 0.5, 0.75, 1, 1])
    assert rates[4:15] == [1] * 11


@pytest.mark.parametrize(
    "settings",
    [
        TrainingSettings(recipe="bc", steps=20),
        TrainingSettings(recipe="mt", steps=20, alpha=0.3, finetune_steps=5),
        TrainingSettings(recipe="ft", steps=20, pretrain_steps=12),
    ],
)
def test_draws_of_the_target_are_counted(frozen: FrameCache, settings: TrainingSettings) -> None:
    settings = replace(settings, batch=64)
    phases, table = plan_phases(frozen, training_windows(frozen, settings.recipe), settings)
    sampler = Sampler(phases, settings.batch, 1, 1, 0)
    drawn = sum(table.is_target[sampler.draw(step)[:, 0]].sum() for step in range(20))
    expected = drawn / table.is_target.sum()
    assert count_target_draws(phases, table, settings) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        (TrainingSettings(recipe="mt", alpha=0.01), "--finetune-steps N or --alpha"),
        (TrainingSettings(recipe="strap", alpha=0.01), "fewer matches"),
        (TrainingSettings(recipe="ft", pretrain_steps=999), "fewer --pretrain-steps"),
        (TrainingSettings(recipe="strap", alpha=0.01, finetune_steps=500), None),
        (TrainingSettings(recipe="strap"), None),
        (TrainingSettings(recipe="bc"), None),
    ],
)
def test_few_draws_of_the_target_are_told(
    frozen: FrameCache, settings: TrainingSettings, remedy: str | None
) -> None:
    settings = replace(settings, steps=1000)
    phases, table = plan_phases(frozen, training_windows(frozen, settings.recipe), settings)
    told = warned_of(phases, table, settings)
    if remedy is None:
        assert not told
    else:
        (message,) = told
        assert re.match(
            r"each frame of the target is drawn \d\.\d times on average in 1,000", message
        )
        assert remedy in message


def test_few_steps_are_not_blamed_on_other_data(frozen: FrameCache) -> None:
    settings = TrainingSettings(recipe="mt", steps=4, batch=2)
    phases, table = plan_phases(frozen, training_windows(frozen, "mt"), settings)
    assert not warned_of(phases, table, settings)


def warned_of(phases: Phases, table: Windows, settings: TrainingSettings) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_few_target_draws(phases, table, settings)
    return [str(warning.message) for warning in caught]


def test_settings_that_have_no_second_phase_say_so() -> None:
    with pytest.raises(StrapError, match="finetune_steps is 5: the recipe bc does not use it"):
        TrainingSettings(recipe="bc", finetune_steps=5)
    with pytest.raises(StrapError, match="finetune_steps is 9: it must be above 0 and below the 9"):
        TrainingSettings(recipe="mt", steps=9, finetune_steps=9)


def test_a_training_of_two_phases_has_a_length_of_its_own(
    frozen: FrameCache, tmp_path: Path
) -> None:
    """With more steps the second phase would begin later: that is another training."""
    settings = replace(QUICK, recipe="mt", finetune_steps=1)
    train(frozen, tmp_path, policy=SMALL, training=settings, device="cpu", quiet=True)
    with pytest.raises(StrapError, match="holds a training with other settings"):
        train(frozen, tmp_path, policy=SMALL, training=replace(settings, steps=5), quiet=True)


def match(cost: float, query: str = "demo_0", start: int = 0, stop: int = 10) -> RetrievedSpan:
    return RetrievedSpan(0, 0, 10, cost, query, start, stop)


def test_matches_weigh_by_their_cost_per_frame_within_their_query() -> None:
    # c: 1, 2, 4 | 5, 5.5 | 7; c − c_min: 0, 1, 3 | 0, 0.5 | 0; spreads: 2 and 0.5; s = 1.25
    found = [match(10), match(20), match(40)]
    found += [match(100, start=20, stop=40), match(110, start=20, stop=40)]
    found += [match(70, "demo_1")]
    expected = [math.exp(-excess / 1.25) for excess in (0, 1, 3, 0, 0.5, 0)]
    assert weigh_by_cost(found) == pytest.approx(expected)
    order = [5, 1, 3, 0, 4, 2]
    assert weigh_by_cost([found[i] for i in order]) == pytest.approx([expected[i] for i in order])
    assert weigh_by_cost([match(3), match(3), match(9, "demo_1")]) == [1, 1, 1]
    assert weigh_by_cost([]) == []


def test_weights_by_cost_decide_what_is_drawn(run: Path, tmp_path: Path) -> None:
    cache = build_cache(open_training_data(run), tmp_path / "c", replace(OPTIONS, vision="frozen"))
    one_query = (replace(found, query_start=0, query_stop=20) for found in cache.retrieved)
    cache = replace(cache, retrieved=tuple(one_query))
    weights = weigh_by_cost(cache.retrieved)
    assert max(weights) == 1 > min(weights)
    settings = replace(QUICK, recipe="strap")
    for name, given in (("cost", "cost"), ("list", weights), ("none", None)):
        out = tmp_path / name
        train(cache, out, policy=SMALL, training=settings, match_weights=given, quiet=True)
    cost, listed, none = (
        read_tensors(tmp_path / name / "policy.safetensors") for name in ("cost", "list", "none")
    )
    assert all(torch.equal(cost[name], listed[name]) for name in cost)
    assert any(not torch.equal(cost[name], none[name]) for name in cost)


@pytest.fixture(scope="module")
def begun(frozen: FrameCache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy trained on the prior and the target."""
    out = tmp_path_factory.mktemp("begun")
    settings = replace(QUICK, recipe="mt")
    train(frozen, out, policy=SMALL, training=settings, device="cpu", quiet=True)
    return out


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"batch": 3, "seed": 9}, "; changed: batch 2 → 3, seed {seed} → 9"),
        ({"decay": True}, "; changed: decay False → True"),
    ],
)
def test_settings_that_differ_are_named(
    frozen: FrameCache, tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    plain = replace(QUICK, batch=2)
    train(frozen, tmp_path, policy=SMALL, training=plain, device="cpu", quiet=True)
    other = replace(plain, **changes)
    with pytest.raises(StrapError) as caught:
        train(frozen, tmp_path, policy=SMALL, training=other, device="cpu", quiet=True)
    assert str(caught.value).endswith(told.format(seed=plain.seed))


def test_steps_that_cannot_be_raised_are_named(frozen: FrameCache) -> None:
    for own, why in (({"decay": True}, "the learning rate decays"), ({}, "its phases depend")):
        recipe = "bc" if own else "ft"
        short, long = (
            identify_training(frozen, SMALL, replace(QUICK, recipe=recipe, steps=steps, **own))
            for steps in (40, 80)
        )
        with pytest.raises(StrapError, match=rf"steps 40 → 80 \({why}.*--steps can't be raised"):
            require_same_training(Path("k"), short, long)
        older = {name: short[name] for name in ("settings", "data")}
        with pytest.raises(StrapError, match=r"\(it has other settings\)$"):
            require_same_training(Path("k"), older, long)
        require_same_training(Path("k"), {**older, "shown": "["}, short)


def test_a_training_begins_with_another_s_weights(
    frozen: FrameCache, begun: Path, tmp_path: Path
) -> None:
    nothing = replace(QUICK, steps=1, learning_rate=1e-12, weight_decay=0.0)
    train(frozen, tmp_path, policy=SMALL, training=nothing, init=begun, device="cpu", quiet=True)
    ours, theirs = (load_checkpoint(path).policy.state_dict() for path in (tmp_path, begun))
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-8)
    assert torch.equal(ours["observation.state_mean"], theirs["observation.state_mean"])
    about = load_checkpoint(tmp_path).about["init"]
    assert (about["path"], about["step"]) == (begun.resolve().as_posix(), 3)
    with pytest.raises(StrapError, match="holds a training with other settings"):
        train(frozen, tmp_path, policy=SMALL, training=nothing, device="cpu", quiet=True)


def test_another_checkpoint_is_another_training(
    frozen: FrameCache, begun: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    train(frozen, other, policy=SMALL, training=QUICK, device="cpu", quiet=True)
    out = tmp_path / "out"
    train(frozen, out, policy=SMALL, training=QUICK, init=begun, device="cpu", quiet=True)
    with pytest.raises(StrapError, match="holds a training with other settings"):
        train(frozen, out, policy=SMALL, training=QUICK, init=other, device="cpu", quiet=True)


def test_what_does_not_fit_a_checkpoint_is_named(
    frozen: FrameCache, run: Path, begun: Path, tmp_path: Path
) -> None:
    def begin(cache: FrameCache, settings: PolicySettings, init: Path = begun) -> None:
        train(cache, tmp_path / "k", policy=settings, training=QUICK, init=init, quiet=True)

    with pytest.raises(
        StrapError, match="this training has width 64, not 32 as in that checkpoint"
    ):
        begin(frozen, replace(SMALL, width=64))
    data = open_training_data(run)
    options = replace(OPTIONS, vision="frozen", proprioception=("ee_pos",))
    with pytest.raises(StrapError, match=r"has proprioception ee_pos \(3\), not ee_"):
        begin(build_cache(data, tmp_path / "c", options), SMALL)
    other = build_cache(data, tmp_path / "d", replace(OPTIONS, vision="frozen"))
    with pytest.raises(StrapError, match="projected differently"):
        begin(other, SMALL)
    with pytest.raises(StrapError, match="is not a checkpoint"):
        begin(frozen, SMALL, tmp_path / "nowhere")
    with pytest.raises(StrapError, match="--init and --imagenet both name"):
        train(frozen, tmp_path / "k", policy=SMALL, training=QUICK, init=begun, imagenet="x")


def test_the_commands(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--vision", "frozen", "--text-encoder", "words", "--image-size", "32"]
    words += ["--batch", "2", "--device", "cpu", "--cache", str(tmp_path / "c")]
    first = ["train", str(run), "--out", str(tmp_path / "a"), "--steps", "2", *words]
    assert main([*first, "--finetune-steps", "1", "--match-weights", "cost"]) == 0
    second = ["train", str(run), "--out", str(tmp_path / "b"), "--steps", "1", *words]
    assert main([*second, "--init", str(tmp_path / "a")]) == 0
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    assert config["init"]["step"] == 2
    capsys.readouterr()
    assert main([*second, "--init", str(tmp_path / "a"), "--history", "4", "--chunk", "4"]) == 2
    assert "history 4, not 5" in capsys.readouterr().err
