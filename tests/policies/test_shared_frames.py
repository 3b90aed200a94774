"""One cache of whole datasets for many trainings."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import strap
from strap.cli import main
from strap.datasets import OpenOptions
from strap.encoders.language import embed_instructions
from strap.errors import StrapError
from strap.policies import PolicySettings
from strap.policies.checkpoints import read_tensors
from strap.synthetic import Planted
from strap.training import FrameCache, TrainingSettings, train
from strap.training.batches import Loader
from strap.training.cache_builder import build_cache
from strap.training.cache_part import select_clips
from strap.training.data import open_training_data, open_whole_datasets
from strap.training.device_frames import gather_clips, used_clips
from strap.training.windows import held_out_windows, training_windows

from .conftest import OPTIONS

SMALL = PolicySettings(history=2, chunk=2, layers=1, width=32, heads=2, keypoints=4, features=8)
QUICK = TrainingSettings(steps=2, batch=2, warmup=2, learning_rate=1e-3, holdout=1, eval_every=2)


@pytest.fixture(scope="module")
def whole(planted: Planted, tmp_path_factory: pytest.TempPathFactory) -> FrameCache:
    """Prior and target, decoded whole; the prior first, so that no row is where a run's cache has
    it.
    """
    data = open_whole_datasets([planted.prior, planted.target, planted.prior])
    return build_cache(data, tmp_path_factory.mktemp("whole"), OPTIONS, workers=3)


def test_whole_datasets_are_decoded_once(whole: FrameCache, planted: Planted) -> None:
    prior, target = strap.open_dataset(planted.prior), strap.open_dataset(planted.target)
    assert [clip.id for clip in whole.clips] == [*prior.ids, *target.ids]
    frames = np.concatenate([own.frames("agentview_rgb") for own in (*prior, *target)])
    assert np.array_equal(whole.frames("agentview_rgb"), frames)
    actions = np.concatenate([own.actions[:] for own in (*prior, *target)])
    np.testing.assert_allclose(whole.actions, actions, atol=1e-6)


@pytest.mark.parametrize("recipe", ["bc", "strap", "ft", "mt"])
def test_a_shared_cache_trains_the_same_weights(
    whole: FrameCache, run: Path, tmp_path: Path, recipe: str
) -> None:
    data = open_training_data(run, whole_prior=recipe in ("ft", "mt"))
    own = build_cache(data, tmp_path / "own", OPTIONS)
    part = select_clips(whole, data, language="words")
    assert part.to_json() == own.to_json()
    assert np.array_equal(part.states, own.states)
    settings = replace(QUICK, recipe=recipe)
    for name, cache in (("a", own), ("b", part)):
        train(cache, tmp_path / name, policy=SMALL, training=settings, device="cpu", quiet=True)
    ours, theirs = (read_tensors(tmp_path / name / "resume.safetensors") for name in "ab")
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


def test_only_clips_in_use_are_brought_to_the_device(whole: FrameCache, run: Path) -> None:
    data = open_training_data(run, whole_prior=True)
    part = select_clips(whole, data, language="words")
    held = frozenset({"demo_0"})
    windows = training_windows(part, "bc", held_out=held)
    used = used_clips(part, [windows])
    assert {part.clips[number].id for number in used} == {
        clip.id for clip in part.clips if clip.role == "target" and clip.id not in held
    }
    numbers = torch.tensor([0, 7, len(windows) - 1])
    loader = Loader(part, windows, SMALL, torch.device("cpu"))
    mapped = loader.gather(loader.centred(numbers))
    assert len(loader.frames.images["agentview_rgb"]) == whole.rows
    loader.frames = gather_clips(part, loader.frames.images, used, torch.device("cpu"))
    kept = loader.frames.images["agentview_rgb"]
    assert len(kept) == sum(part.clips[number].length for number in used) < whole.rows
    gathered = loader.with_windows(windows).gather(loader.centred(numbers))
    assert torch.equal(gathered.images["agentview_rgb"], mapped.images["agentview_rgb"])
    assert set(used_clips(part, [windows, held_out_windows(part, held)])) > set(used)


def test_a_cache_says_what_it_lacks(
    whole: FrameCache, own_planted: Planted, tmp_path: Path
) -> None:
    data = open_training_data(own_planted.target)
    with pytest.raises(StrapError, match=r"lacks 2 of the clips .*: demo_0, demo_1 of .* it holds"):
        select_clips(whole, data, language="words")
    options = replace(OPTIONS, cameras=("agentview_rgb",), proprioception=("gripper_states",))
    small = build_cache(data, tmp_path, options)
    with pytest.raises(StrapError, match="has no camera 'front'; it has: agentview_rgb"):
        select_clips(small, data, cameras=("front",), language="words")
    with pytest.raises(StrapError, match="has no proprioception 'ee_pos' of size 3; it has: gripp"):
        select_clips(small, data, proprioception=("ee_pos",), language="words")
    with pytest.raises(StrapError, match="made for --vision resnet, not frozen"):
        select_clips(small, data, language="words", vision="frozen")
    with pytest.raises(StrapError, match="images of 32 pixels a side, not 64"):
        select_clips(small, data, language="words", image_size=64)
    turned = open_training_data(own_planted.target, opening=OpenOptions(orientation="upright"))
    with pytest.raises(StrapError, match="were changed, or are read with another orientation"):
        select_clips(small, turned, language="words")
    os.utime(own_planted.target, (1, 1))
    with pytest.raises(StrapError, match=r"2 trajectories of .* were changed"):
        select_clips(small, open_training_data(own_planted.target), language="words")


def test_some_of_a_cache_s_proprioception(whole: FrameCache, run: Path) -> None:
    part = select_clips(
        whole, open_training_data(run), language="words", proprioception=("gripper_states",)
    )
    assert dict(part.interface.proprioception) == {"gripper_states": 2}
    sizes = list(whole.interface.proprioception.items())
    begin = sum(size for _, size in sizes[: [key for key, _ in sizes].index("gripper_states")])
    row, length = part.image_rows[0], part.clips[0].length
    expected = whole.states[row : row + length, begin : begin + 2]
    assert np.array_equal(part.states[:length], expected)


def test_instructions_are_looked_up_or_embedded(whole: FrameCache, run: Path) -> None:
    data = open_training_data(run)
    for encoder in ("words", "minilm"):
        part = select_clips(whole, data, language=encoder)
        assert np.array_equal(part.language, embed_instructions(part.instructions, encoder))
        assert part.interface.language_size == part.language.shape[1]


def test_an_instruction_s_vector_does_not_depend_on_its_neighbours() -> None:
    texts = ["open the drawer", "put the small black bowl into the top drawer of the cabinet"]
    together = embed_instructions(texts, "minilm")
    for text, vector in zip(texts, together, strict=True):
        assert np.array_equal(embed_instructions([text], "minilm")[0], vector)


def test_the_commands(
    planted: Planted, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frames = str(tmp_path / "frames")
    words = ["cache", str(planted.target), str(planted.prior), "--out", frames]
    words += ["--image-size", "32", "--text-encoder", "words"]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["trajectories"] == len(strap.open_dataset(planted.prior)) + 2
    assert main(words) == 0
    assert f"{told['frames']} frames" in capsys.readouterr().out
    words = ["train", str(run), "--out", str(tmp_path / "k"), "--frames", frames, "--steps", "1"]
    words += ["--text-encoder", "words", "--batch", "2", "--device", "cpu"]
    words += ["--history", "2", "--chunk", "2"]
    assert main(words) == 0
    assert "strap: 1 steps" in capsys.readouterr().out
    assert not (Path(os.environ["STRAP_CACHE"]) / "frames").exists()
    assert main([*words, "--vision", "frozen"]) == 2
    assert "made for --vision resnet, not frozen" in capsys.readouterr().err


def test_actions_that_are_not_finite_are_named(own_planted: Planted, tmp_path: Path) -> None:
    with h5py.File(own_planted.target, "r+") as file:
        file["data/demo_1/actions"][3, 2] = np.nan
    data = open_training_data(own_planted.target)
    with pytest.raises(StrapError, match="'demo_1', frame 3, column 2 of 'actions' is nan: corr"):
        build_cache(data, tmp_path, OPTIONS)
