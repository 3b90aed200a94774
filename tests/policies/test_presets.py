"""The presets `paper` and `released`: every difference from `fixed` is an option."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from strap.cli import main
from strap.errors import StrapError
from strap.evaluation import Evaluation
from strap.policies import Interface, PolicySettings, build_policy, load_checkpoint, policy_preset
from strap.policies.settings import imagenet_preset, text_encoder_preset
from strap.policies.vision import ResNet18
from strap.training import FrameCache, TrainingSettings, train, training_preset
from strap.training.batches import Loader, Sampler
from strap.training.cache import CachedClip, RetrievedSpan
from strap.training.windows import training_windows

SMALL = PolicySettings(history=2, chunk=2, layers=1, width=32, heads=2, keypoints=4, features=8)
INTERFACE = Interface(("front",), 32, {"ee_pos": 3}, 4, 6)


def test_the_values_of_the_presets() -> None:
    for name in ("paper", "released"):
        policy, training = policy_preset(name), training_preset(name)
        assert (policy.initial, policy.normalize) == ("backbone", "none")
        assert (policy.qkv_bias, policy.pixels, policy.min_std) == (False, "unit", 0.005)
        assert (training.crop, training.windows) == ("frame", "context")
        assert (training.warmup, training.weight_decay) == (10_000, 1e-5)
        assert text_encoder_preset(name) == "clip"
        diffusion = training_preset(name, kind="diffusion")
        assert (diffusion.warmup, diffusion.weight_decay) == (0, 0.0)
        assert diffusion.rate(0) == diffusion.rate(9_999) == 1e-4
        assert policy_preset(name, kind="diffusion").normalize == "none"
        assert text_encoder_preset(name, kind="diffusion") == "minilm"
    fixed, ours = policy_preset("fixed"), training_preset("fixed")
    assert (fixed.initial, ours.crop, ours.windows) == ("normal", "window", "segment")
    assert (fixed.qkv_bias, fixed.pixels) == (True, "imagenet")
    attentions = [policy_preset(name).attention for name in ("fixed", "paper", "released")]
    assert attentions == ["full", "full", "causal"]
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
    rows = len(loader.frames.images["agentview_rgb"])
    loader.frames.images["agentview_rgb"] = marked.expand(rows, size, size, 3)
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
    for crop in ("window", "frame"):
        settings = TrainingSettings(recipe="bc", steps=1, batch=2, crop=crop)
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
    assert whole.observation.cameras[0].film.linear.weight.abs().max() == 0
    film = blocks.observation.cameras[0].film.linear  # PyTorch's default, too
    assert film.weight.abs().max() == pytest.approx(film.in_features**-0.5, rel=0.05)


def test_the_released_network_is_as_large_as_the_authors() -> None:
    """As a training of theirs logged it: the transformer's blocks, and the whole policy."""
    state = {"ee_ori": 3, "ee_pos": 3, "ee_states": 6, "gripper_states": 2, "joint_states": 7}
    interface = Interface(("agentview_rgb", "eye_in_hand_rgb"), 128, state, 7, 768)
    policy = build_policy(interface, policy_preset("released"))
    sizes = {name: parameter.numel() for name, parameter in policy.named_parameters()}
    backbone = [size for name, size in sizes.items() if name.startswith(("blocks", "norm_out"))]
    assert sum(backbone) == 6_312_448
    assert sum(sizes.values()) == 34_868_619


@torch.no_grad()
def test_pixels_reach_the_network_by_imagenet_s_statistics_or_from_0_to_1() -> None:
    images = torch.tensor([[0, 102, 255]], dtype=torch.uint8).expand(1, 1, 16, 16, 3)
    seen = {}
    for pixels in ("imagenet", "unit"):
        policy = build_policy(INTERFACE, replace(SMALL, pixels=pixels)).eval()
        camera = policy.observation.cameras[0]
        camera.resnet.register_forward_pre_hook(
            lambda _, args, at=pixels: seen.update({at: args[0]})
        )
        camera(images, torch.zeros(1, INTERFACE.language_size))
    unit = torch.tensor([0, 0.4, 1])
    torch.testing.assert_close(seen["unit"][0, :, 0, 0], unit)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    torch.testing.assert_close(seen["imagenet"][0, :, 0, 0], (unit - mean) / std)


def enumerate_windows(
    start: int, stop: int, length: int, kept: tuple[int, int], policy: PolicySettings
) -> list[tuple[list[int], list[int]]]:
    """Write a match to a file as the authors do; list what its complete windows see and predict.

    Of windows that begin to act on a repeated frame there are none.
    """
    before, after = kept
    frames = list(range(max(0, start - before), min(stop + after, length)))
    n_repeated, n_real = max(0, before - 1 - start), len(frames)
    frames = [frames[0]] * n_repeated + frames
    frames += [frames[-1]] * max(0, stop - length + after - 1)
    found = []
    for i in range(n_repeated, n_repeated + n_real):
        seen = range(i - policy.history + 1, i + 1)
        acted = range(i + policy.first_action, i + policy.first_action + policy.chunk)
        if seen[0] >= 0 and acted[0] >= 0 and acted[-1] < len(frames):
            found.append(([frames[k] for k in seen], [frames[k] for k in acted]))
    return found


@given(
    before=st.integers(0, 12),
    size=st.integers(1, 30),
    behind=st.integers(0, 12),
    kept=st.tuples(st.integers(2, 7), st.integers(3, 7)),
    data=st.data(),
)
def test_complete_windows_are_those_of_the_authors_files(
    before: int, size: int, behind: int, kept: tuple[int, int], data: st.DataObject
) -> None:
    """`before` and `behind`: how much of the trajectory there is around the match."""
    history = data.draw(st.integers(1, kept[0]))
    chunk = data.draw(st.integers(2, kept[1]))
    first_action = data.draw(st.sampled_from([0, -1]))
    policy = replace(SMALL, kind="diffusion", history=history, chunk=chunk)
    policy = replace(policy, first_action=first_action)
    start, stop, length = before, before + size, before + size + behind
    shown = max(0, start - kept[0]), min(stop + kept[1], length)
    clip = CachedClip("a", "prior", "prior", 0, *shown, 0)
    span = RetrievedSpan(1, start, stop, 1.0, "target", 0, size)
    target = CachedClip("t", "target", "target", 0, 0, 1, clip.length)
    cache = FrameCache(
        Path(), INTERFACE, (target, clip), (span,), ("",), "words", has_frames=True, context=kept
    )
    windows = training_windows(cache, "strap", complete=policy)
    windows = windows.where(~windows.is_target)
    rows = enumerate_windows(start, stop, length, kept, policy)
    at = windows.anchor - clip.row + clip.start
    first, last = clip.start, clip.stop - 1
    seen = [np.maximum(frame + np.arange(1 - history, 1), first).tolist() for frame in at]
    future = np.arange(chunk) + first_action
    acted = [np.clip(frame + future, first, last).tolist() for frame in at]
    assert list(zip(seen, acted, strict=True)) == rows


def test_windows_on_a_segment_or_complete_in_what_is_kept_around_it(cache: FrameCache) -> None:
    target = sum(clip.length for clip in cache.clips if clip.role == "target")
    inside = training_windows(cache, "strap")
    around = training_windows(cache, "strap", complete=policy_preset("released"))
    assert cache.context == (5, 5)
    assert len(inside) == target + sum(r.stop - r.start for r in cache.retrieved)
    longer = 0
    for found in cache.retrieved:
        clip = cache.clips[found.clip]
        longer += (found.start - 5 >= clip.start) + (found.stop + 5 <= clip.stop)
    assert len(around) == len(inside) + longer
    assert longer > 0
    assert np.array_equal(inside.anchor[:target], around.anchor[:target])
    with pytest.raises(StrapError, match="choice for windows 'all'"):
        TrainingSettings(windows="all")


def test_repeated_actions_are_learned_where_windows_are_the_authors(cache: FrameCache) -> None:
    windows = training_windows(cache, "bc")
    last = torch.tensor([cache.clips[0].length - 1])
    for learns in (False, True):
        loader = Loader(cache, windows, SMALL, torch.device("cpu"), learns_repeated=learns)
        batch = loader.gather(loader.centred(last))
        assert torch.equal(batch.actions[0, 0], batch.actions[0, 1])
        assert batch.valid.tolist() == [[True, learns]]
        other = loader.with_windows(windows)  # held-out demonstrations are scored alike
        assert other.gather(other.centred(last)).valid.tolist() == [[True, False]]


@pytest.mark.parametrize("anchors", ["segment", "context"])
def test_a_training_draws_the_windows_its_settings_say(
    frozen: FrameCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anchors: str
) -> None:
    small, made = replace(SMALL, vision="frozen"), []

    class Watched(Loader):
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, **options)
            made.append(self)

    monkeypatch.setattr("strap.training.loop.Loader", Watched)
    settings = TrainingSettings(recipe="strap", steps=1, batch=8, windows=anchors)
    train(frozen, tmp_path, policy=small, training=settings, device="cpu", quiet=True)
    complete = small if anchors == "context" else None
    assert len(made[0].table) == len(training_windows(frozen, "strap", complete=complete))
    assert made[0].learns_repeated == (anchors == "context")


def test_diffusion_begins_with_imagenet(cache: FrameCache, tmp_path: Path) -> None:
    assert imagenet_preset("fixed", kind="diffusion") is None
    assert imagenet_preset("released") is None
    assert imagenet_preset("paper", kind="diffusion", vision="frozen") is None
    name = imagenet_preset("paper", kind="diffusion")
    assert name == "microsoft/resnet-18"
    small = replace(SMALL, kind="diffusion", channels=(8,), groups=4, language=False)
    settings = TrainingSettings(recipe="bc", steps=1, batch=2)

    def begin(out: Path, source: str) -> torch.nn.Module:
        options = {"policy": small, "training": settings, "imagenet": source}
        train(cache, out, **options, device="cpu", quiet=True)
        return load_checkpoint(out).policy.observation.cameras[0].resnet

    with pytest.raises(
        StrapError, match="'microsoft/resnet-18', are not on this machine and could"
    ):
        begin(tmp_path / "absent", name)
    made = ResNet18()
    with torch.no_grad():
        made.conv1.weight.fill_(0.25)
    folder = tmp_path / "resnet"
    folder.mkdir()
    save_file(made.state_dict(), folder / "model.safetensors")
    first = begin(tmp_path / "folder", str(folder)).conv1.weight
    assert (first - 0.25).abs().max() < 0.01  # one step further
    again = begin(tmp_path / "file", str(folder / "model.safetensors")).conv1.weight
    assert torch.equal(first, again)


def test_the_command_says_when_clip_is_not_there(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strap.encoders.language.CLIP", "nobody/has-this-model")
    words = ["train", str(run), "--out", str(tmp_path / "k"), "--preset", "released"]
    words += ["--image-size", "32", "--steps", "1", "--batch", "2", "--device", "cpu"]
    words += ["--history", "2", "--chunk", "2"]
    assert main(words) == 2
    assert "CLIP ViT-L/14, which embeds the instructions" in capsys.readouterr().err
    otherwise = ["--attention", "full", "--min-std", "0.1", "--qkv-bias", "on"]
    otherwise += ["--pixels", "imagenet", "--weight-decay", "0.5"]
    assert main([*words, *otherwise, "--text-encoder", "words"]) == 0
    made = load_checkpoint(tmp_path / "k")
    assert (made.settings.attention, made.settings.min_std) == ("full", 0.1)
    assert (made.settings.qkv_bias, made.settings.pixels) == (True, "imagenet")
    assert made.about["training"]["weight_decay"] == 0.5
    assert made.instructions.encoder == "words"
    assert (made.settings.horizon, made.settings.initial) == (300, "backbone")
    assert made.about["training"]["crop"] == "frame"


def test_options_that_mean_nothing_are_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", str(run), "--out", str(tmp_path / "k")]
    assert main([*words, "--kind", "diffusion", "--min-std", "0.1"]) == 2
    assert "--min-std has no effect with --kind diffusion: leave it out" in capsys.readouterr().err
    assert main([*words, "--vision", "frozen", "--pixels", "unit"]) == 2
    assert "--pixels has no effect with --vision frozen" in capsys.readouterr().err
    words += ["--kind", "diffusion", "--preset", "paper", "--recipe", "bc", "--image-size", "32"]
    assert main([*words, "--text-encoder", "words", "--steps", "1", "--device", "cpu"]) == 2
    assert "initial ResNet-18 weights, 'microsoft/resnet-18', are not" in capsys.readouterr().err


def test_an_evaluation_s_horizon_is_the_preset_s(
    frozen: FrameCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import strap.evaluation.comparison as comparison

    settings = TrainingSettings(recipe="bc", steps=1, batch=2)
    small = replace(SMALL, vision="frozen", horizon=300)
    train(frozen, tmp_path, policy=small, training=settings, device="cpu", quiet=True)
    horizons: list[int] = []

    def note(_checkpoint: Path, settings: object, *_: object, **__: object) -> object:
        horizons.append(settings.horizon)
        return Evaluation(tmp_path, ({"state": 0, "success": True, "partial": 1.0},)), None

    monkeypatch.setattr(comparison, "evaluate_pair", note)
    assert main(["evaluate", str(tmp_path), "--task", "0"]) == 0
    assert main(["evaluate", str(tmp_path), "--task", "0", "--horizon", "40"]) == 0
    assert horizons == [300, 40]
