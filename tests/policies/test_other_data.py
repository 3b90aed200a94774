"""Frames are decoded anew, and a training is another one, where what is read has changed."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from tests.datasets.writers import write_rlds

import strap
from strap.cli import main
from strap.datasets import OpenOptions
from strap.errors import StrapError
from strap.policies import PolicySettings
from strap.policies.checkpoints import read_tensors
from strap.policies.vision import ResNet18
from strap.synthetic import Planted
from strap.training import TrainingSettings, open_cache, train
from strap.training.cache_builder import build_cache
from strap.training.cache_part import select_clips
from strap.training.data import open_training_data, open_whole_datasets

from .conftest import OPTIONS

SMALL = PolicySettings(history=2, chunk=2, layers=1, width=32, heads=2, keypoints=4, features=8)
QUICK = TrainingSettings(recipe="bc", steps=2, batch=2, warmup=2, learning_rate=1e-3)
WORDS = ["--text-encoder", "words", "--image-size", "32", "--batch", "2", "--device", "cpu"]
WORDS += ["--history", "2", "--chunk", "2", "--steps", "1"]
OTHER = "it has other data: files, matches or choices have changed, or are read with other options"


def test_images_read_upside_down_are_other_frames(
    planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of two trainings has frames of its own in the user's cache folder."""
    monkeypatch.setenv("STRAP_CACHE", str(tmp_path / "cache"))
    words = ["train", str(planted.target), *WORDS]
    assert main([*words, "--out", str(tmp_path / "a")]) == 0
    assert main([*words, "--out", str(tmp_path / "b"), "--orientation", "upright"]) == 0
    caches = [open_cache(path) for path in (tmp_path / "cache" / "frames").iterdir()]
    one, two = (cache.frames("agentview_rgb") for cache in caches)
    assert np.array_equal(one, two[:, ::-1])


def test_a_cache_folder_is_filled_anew_for_another_orientation(
    planted: Planted, tmp_path: Path
) -> None:
    words = ["cache", str(planted.target), "--out", str(tmp_path), "--image-size", "32"]
    words += ["--text-encoder", "words"]
    assert main(words) == 0
    before = np.array(open_cache(tmp_path).frames("agentview_rgb"))
    assert main([*words, "--orientation", "upright"]) == 0
    assert np.array_equal(open_cache(tmp_path).frames("agentview_rgb"), before[:, ::-1])


@pytest.mark.parametrize(
    "other",
    [
        OpenOptions(orientation="flipped"),
        OpenOptions(camera=("wrist_image_left",)),
        OpenOptions(language=("language_instruction_3",)),
        OpenOptions(action=("reward",)),
    ],
    ids=["orientation", "camera", "language", "action"],
)
def test_every_option_of_reading_makes_other_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: OpenOptions
) -> None:
    monkeypatch.setenv("STRAP_CACHE", str(tmp_path / "index"))
    folder = tmp_path / "droid/1.0.0"
    write_rlds(folder)
    plain, read = (open_training_data(folder, opening=o) for o in (OpenOptions(), other))
    assert plain.fingerprint() != read.fingerprint()
    skipping = open_training_data(folder, opening=OpenOptions(missing="skip"))
    assert plain.fingerprint() == skipping.fingerprint()
    options = replace(OPTIONS, cameras=("wrist_image_left",))
    shared = build_cache(open_whole_datasets([folder]), tmp_path / "shared", options)
    assert select_clips(shared, plain, language="words").rows == shared.rows
    with pytest.raises(StrapError, match=r"are read with another orientation or other --rlds-… f"):
        select_clips(shared, read, language="words")


def test_a_run_s_datasets_are_read_as_the_run_read_them(run: Path, planted: Planted) -> None:
    with pytest.raises(
        StrapError, match="is a run, whose datasets are read with the options of `strap retrieve`"
    ):
        open_training_data(run, opening=OpenOptions(orientation="upright"))
    assert open_training_data(run, opening=OpenOptions(missing="skip")).retrieved
    with pytest.raises(StrapError, match="is a run, which has its own prior: leave --prior out"):
        open_training_data(run, prior=[planted.prior], whole_prior=True)
    with pytest.raises(StrapError, match="is an augmented dataset, which has its own prior"):
        open_training_data(run / "augmented.hdf5", prior=[planted.prior])


def test_a_training_does_not_go_on_with_data_that_changed(
    own_planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Finished or not; the same ids and lengths, recorded anew in the same file."""
    words = ["train", str(own_planted.target), *WORDS, "--out", str(tmp_path / "k")]
    assert main(words) == 0
    weights = (tmp_path / "k" / "policy.safetensors").read_bytes()
    with h5py.File(own_planted.target, "r+") as file:
        for demo in file["data"].values():
            demo["actions"][...] = -demo["actions"][...]
    os.utime(own_planted.target, (1, 1))
    for more in ([], ["--steps", "2"]):
        capsys.readouterr()
        assert main([*words, *more]) == 2
        assert OTHER in capsys.readouterr().err
    assert (tmp_path / "k" / "policy.safetensors").read_bytes() == weights


def test_a_training_goes_on_beside_new_files_and_with_words_for_what_was_found(
    own_planted: Planted, tmp_path: Path
) -> None:
    folder = tmp_path / "demonstrations"
    folder.mkdir()
    own_planted.target.rename(folder / "a.hdf5")
    words = ["train", str(folder), *WORDS, "--episodes", "0:2", "--out", str(tmp_path / "k")]
    assert main(words) == 0
    own_planted.prior.rename(folder / "b.hdf5")
    form = strap.open_dataset(folder).format
    for more in ([], ["--format", form], ["--orientation", "flipped"]):
        assert main([*words, *more]) == 0


def test_a_run_within_one_dataset_is_trained_on(planted: Planted, tmp_path: Path) -> None:
    run, data = tmp_path / "run", str(planted.prior)
    words = ["retrieve", "--target", data, "--target-episodes", "0:2", "--prior", data]
    words += ["--prior-episodes", "2:", "--encoder", "pixels", "--top-k", "4", "--report", "none"]
    words += ["--augmented", "none", "--stores", str(tmp_path / "stores"), "--out", str(run)]
    assert main(words) == 0
    assert main(["train", str(run), *WORDS, "--out", str(tmp_path / "k")]) == 0


def test_a_training_does_not_go_on_with_images_read_otherwise(
    planted: Planted, tmp_path: Path
) -> None:
    caches = [
        build_cache(
            open_training_data(planted.target, opening=OpenOptions(orientation=orientation)),
            tmp_path / str(orientation),
            OPTIONS,
        )
        for orientation in (None, "upright")
    ]
    train(caches[0], tmp_path / "k", policy=SMALL, training=QUICK, quiet=True)
    with pytest.raises(StrapError, match=OTHER):
        train(caches[1], tmp_path / "k", policy=SMALL, training=QUICK, quiet=True)
    settings = replace(QUICK, batch=3)
    with pytest.raises(StrapError, match="it has other settings and other data: files"):
        train(caches[1], tmp_path / "k", policy=SMALL, training=settings, quiet=True)


@pytest.mark.parametrize("vision", ["resnet", "frozen"])
def test_a_training_goes_on_with_frames_decoded_again(
    planted: Planted, tmp_path: Path, vision: str
) -> None:
    """Deleted and decoded again, or found in a cache of more: the same frames."""
    data, policy = open_training_data(planted.target), replace(SMALL, vision=vision)
    options = replace(OPTIONS, vision=vision)
    for name, steps in (("straight", [4]), ("again", [2, 4])):
        for number in steps:
            shutil.rmtree(tmp_path / "c", ignore_errors=True)
            cache = build_cache(data, tmp_path / "c", options)
            settings = replace(QUICK, steps=number)
            train(cache, tmp_path / name, policy=policy, training=settings, quiet=True)
    one, two = (
        read_tensors(tmp_path / name / "resume.safetensors") for name in ("straight", "again")
    )
    assert all(torch.equal(one[name], two[name]) for name in one)
    both = open_whole_datasets([planted.prior, planted.target])
    part = select_clips(build_cache(both, tmp_path / "both", options), data, language="words")
    more = replace(QUICK, steps=5)
    if vision == "resnet":
        assert train(part, tmp_path / "again", policy=policy, training=more, quiet=True).step == 5
    else:  # its maps lie on other directions
        with pytest.raises(StrapError, match=OTHER):
            train(part, tmp_path / "again", policy=policy, training=more, quiet=True)


def test_other_weights_to_begin_with_are_another_training(planted: Planted, tmp_path: Path) -> None:
    cache = build_cache(open_training_data(planted.target), tmp_path / "c", OPTIONS)
    weights = ResNet18().state_dict()
    for name in ("one.pt", "two.pt"):
        torch.save(weights, tmp_path / name)

    def begin(imagenet: str | None) -> None:
        path = tmp_path / imagenet if imagenet else None
        out = tmp_path / "k"
        train(cache, out, policy=SMALL, training=QUICK, imagenet=path, quiet=True)

    begin("one.pt")
    begin("one.pt")
    for imagenet in ("two.pt", None):
        with pytest.raises(StrapError, match=r"\(it has other settings\)"):
            begin(imagenet)


def test_proprioception_in_another_order_is_other_data(planted: Planted, tmp_path: Path) -> None:
    data = open_training_data(planted.target)
    names = tuple(data.clips[0].trajectory().proprioception)
    assert len(names) > 1
    shared = build_cache(data, tmp_path / "c", OPTIONS)
    parts = [
        select_clips(shared, data, language="words", proprioception=order)
        for order in (names, names[::-1])
    ]
    train(parts[0], tmp_path / "k", policy=SMALL, training=QUICK, quiet=True)
    with pytest.raises(StrapError, match="other data"):
        train(parts[1], tmp_path / "k", policy=SMALL, training=QUICK, quiet=True)
