"""The presets `paper` and `released`: every difference from `fixed` is an option."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from strap.cli import main
from strap.errors import StrapError
from strap.evaluation import Evaluation
from strap.policies import Interface, PolicySettings, build_policy, load_checkpoint, policy_preset
from strap.policies.settings import require_imagenet, text_encoder_preset
from strap.training import FrameCache, TrainingSettings, train, training_preset
from strap.training.batches import Loader, Sampler
from strap.training.windows import training_windows

SMALL = PolicySettings(history=2, chunk=2, layers=1, width=32, heads=2, keypoints=4, features=8)
INTERFACE = Interface(("front",), 32, {"ee_pos": 3}, 4, 6)


def test_the_values_of_the_presets() -> None:
    for name in ("paper", "released"):
        policy, training = policy_preset(name), training_preset(name)
        assert (policy.initial, policy.normalize) == ("backbone", "none")
        assert (training.crop, training.windows) == ("frame", "context")
        assert (training.warmup, training.weight_decay) == (10_000, 1e-5)
        assert text_encoder_preset(name) == "clip"
        diffusion = training_preset(name, kind="diffusion")
        assert (diffusion.warmup, diffusion.weight_decay) == (0, 0.0)
        assert diffusion.rate(0) == diffusion.rate(9_999) == 1e-4
        assert policy_preset(name, kind="diffusion").normalize == "none"
        assert text_encoder_preset(name, kind="diffusion") == "minilm"
    fixed, ours = policy_preset("fixed"), training_preset("fixed")
    assert (fixed.initial, ours.crop, ours.windows) == ("normal", "clip", "segment")
    assert text_encoder_preset("fixed") == "minilm"
    horizons = [policy_preset(name).horizon for name in ("fixed", "paper", "released")]
    assert horizons == [520, 520, 300]


def test_crops_are_drawn_for_each_clip_or_for_each_frame(cache: FrameCache) -> None:
    """Pictures whose pixels say where they lie, so that a crop tells its corner."""
    windows = training_windows(cache, "bc")
    loader = Loader(cache, windows, SMALL, torch.device("cpu"))
    size, crop = cache.interface.image_size, cache.interface.crop
    places = torch.arange(size)
    marked = torch.stack(torch.meshgrid(places, places, places[:1], indexing="ij")[:2], -1)
    marked = torch.cat([marked[:, :, 0], marked[:, :, 0, :1]], -1).to(torch.uint8)
    rows = len(loader.frames.pictures["agentview_rgb"])
    loader.frames.pictures["agentview_rgb"] = marked.expand(rows, size, size, 3)
    for crops, alike in ((1, True), (SMALL.history, False)):
        sampler = Sampler([(0, np.ones(len(windows)))], 16, loader.places, crops, 0)
        draw = sampler.draw(0)
        seen = loader.gather(draw).images["agentview_rgb"]
        corners = seen[:, :, 0, 0, :2].long()  # [b h 2]
        assert torch.equal(corners, draw[:, 1:].view(16, -1, 2).expand(16, SMALL.history, 2))
        assert (corners == corners[:, :1]).all() == alike
        assert corners.max() <= size - crop


def test_a_training_crops_as_its_settings_say(cache: FrameCache, tmp_path: Path) -> None:
    weights = []
    for crop in ("clip", "frame"):
        settings = TrainingSettings(method="bc", steps=1, batch=2, crop=crop)
        train(cache, tmp_path / crop, policy=SMALL, training=settings, device="cpu", quiet=True)
        weights.append(load_checkpoint(tmp_path / crop).policy.state_dict())
    assert any(not torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    with pytest.raises(StrapError, match="choice for crop 'frames': did you mean 'frame'"):
        TrainingSettings(crop="frames")


@torch.no_grad()
def test_weights_at_first() -> None:
    torch.manual_seed(0)
    whole = build_policy(INTERFACE, PolicySettings(layers=2))
    torch.manual_seed(0)
    blocks = build_policy(INTERFACE, PolicySettings(layers=2, initial="backbone"))
    for policy in (whole, blocks):
        for block in policy.blocks:
            assert block.qkv.weight.std() == pytest.approx(0.02, rel=0.05)
            assert block.mlp[0].bias.abs().max() == 0
    assert whole.embed.weight.std() == pytest.approx(0.02, rel=0.05)
    assert whole.head.mean.bias.abs().max() == 0
    assert whole.position.std() == pytest.approx(0.02, rel=0.1)
    assert blocks.position.abs().max() == 0
    inputs = blocks.embed.in_features
    assert blocks.embed.weight.abs().max() == pytest.approx(inputs**-0.5, rel=0.05)  # uniform
    assert blocks.head.mean.bias.abs().max() > 0


def test_windows_on_a_segment_or_on_what_is_kept_around_it(cache: FrameCache) -> None:
    target = sum(clip.length for clip in cache.clips if clip.role == "target")
    inside = training_windows(cache, "strap")
    around = training_windows(cache, "strap", anchors="context")
    assert cache.context == (5, 5)
    assert len(inside) == target + sum(r.stop - r.start for r in cache.retrieved)
    begin = target
    for found in cache.retrieved:
        clip = cache.clips[found.clip]
        start, stop = max(found.start - 5, clip.start), min(found.stop + 5, clip.stop)
        rows = np.arange(start, stop) - clip.start + clip.row
        own = slice(begin, begin + len(rows))
        assert np.array_equal(around.anchor[own], rows)
        assert (around.first[own] == rows[0]).all()
        assert (around.last[own] == rows[-1]).all()
        begin += len(rows)
    assert begin == len(around)
    assert np.array_equal(inside.anchor[:target], around.anchor[:target])
    with pytest.raises(StrapError, match="choice for windows 'all'"):
        TrainingSettings(windows="all")


def test_a_training_draws_the_windows_its_settings_say(frozen: FrameCache, tmp_path: Path) -> None:
    small = replace(SMALL, vision="frozen")
    weights = []
    for anchors in ("segment", "context"):
        settings = TrainingSettings(method="strap", steps=1, batch=8, windows=anchors)
        out = tmp_path / anchors
        train(frozen, out, policy=small, training=settings, device="cpu", quiet=True)
        weights.append(load_checkpoint(out).policy.state_dict())
    assert any(not torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_diffusion_begins_with_imagenet() -> None:
    with pytest.raises(StrapError, match=r"--preset paper --kind diffusion begins with ResNet-18"):
        require_imagenet("paper", "diffusion", "resnet")
    require_imagenet("fixed", "diffusion", "resnet")
    require_imagenet("released", "transformer", "resnet")


def test_the_command_says_when_clip_is_not_there(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strap.encoders.language.CLIP", "nobody/has-this-model")
    words = ["train", str(run), "--out", str(tmp_path / "k"), "--preset", "released"]
    words += ["--image-size", "32", "--steps", "1", "--batch", "2", "--device", "cpu"]
    words += ["--history", "2", "--chunk", "2"]
    assert main(words) == 2
    assert "CLIP ViT-L/14, which embeds the instructions" in capsys.readouterr().err
    assert main([*words, "--text-encoder", "words"]) == 0
    made = load_checkpoint(tmp_path / "k")
    assert made.instructions.encoder == "words"
    assert (made.settings.horizon, made.settings.initial) == (300, "backbone")
    assert made.about["training"]["crop"] == "frame"


def test_an_evaluation_s_horizon_is_the_preset_s(
    frozen: FrameCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import strap.evaluation.report as report

    settings = TrainingSettings(method="bc", steps=1, batch=2)
    small = replace(SMALL, vision="frozen", horizon=300)
    train(frozen, tmp_path, policy=small, training=settings, device="cpu", quiet=True)
    horizons: list[int] = []

    def note(_checkpoint: Path, settings: object, *_: object, **__: object) -> object:
        horizons.append(settings.horizon)
        return Evaluation(tmp_path, ({"state": 0, "success": True, "partial": 1.0},)), None

    monkeypatch.setattr(report, "evaluate_pair", note)
    assert main(["evaluate", str(tmp_path), "--task", "0"]) == 0
    assert main(["evaluate", str(tmp_path), "--task", "0", "--horizon", "40"]) == 0
    assert horizons == [300, 40]
