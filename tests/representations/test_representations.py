"""BehaviorRetrieval's and FlowRetrieval's features, trained at tiny size on generated data."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import strap
import strap.representations
from strap.datasets import Dataset
from strap.embeddings import choose_cameras
from strap.encoders import PixelEncoder
from strap.errors import StrapError
from strap.locks import LOCK, exclusive_lock
from strap.policies.checkpoints import read_about, write_tensors
from strap.representations import (
    Kind,
    Representation,
    RepresentationSettings,
    neighbours_figure,
    open_representation,
    reconstruction_figure,
    train_representation,
)
from strap.representations.figures import cosine_similarity, flow_colours
from strap.representations.flow import optical_flow
from strap.representations.samples import read_trajectory
from strap.store import EmbeddingStore

from .conftest import TINY, texture, write_cameras, write_sliding

Pair = tuple[Dataset, Dataset]
Trained = dict[Kind, Representation]
Stores = dict[Kind, list[EmbeddingStore]]
KINDS: tuple[Kind, ...] = ("br", "fr")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "representation.safetensors")


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_falls(tmp_path: Path, kind: Kind) -> None:
    data = write_sliding(tmp_path / "sliding.hdf5")
    settings = replace(TINY, steps=12, batch=4, log_every=4, horizon=2, learning_rate=1e-3)
    made = train_representation(kind, [data], tmp_path / "out", settings, device="cpu")
    assert [row["step"] for row in made.losses] == [4, 8, 12]
    first, last = made.losses[0], made.losses[-1]
    assert last["picture"] < 0.85 * first["picture"]
    assert last["loss"] < first["loss"]
    assert (last["action"] > 0) == (kind == "br")


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_training_ends_with_the_weights_of_one_that_was_not(
    pair: Pair, tmp_path: Path, trained: Trained, kind: Kind
) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        if what == "training" and done == 2:
            raise KeyboardInterrupt

    settings = replace(TINY, save_every=1)
    with pytest.raises(KeyboardInterrupt):
        train_representation(kind, pair[1:], tmp_path, settings, device="cpu", progress=interrupt)
    with pytest.raises(StrapError, match="not a finished representation"):
        open_representation(tmp_path)
    resume = tmp_path / "resume.safetensors"
    state, about = load_file(resume), read_about(resume)
    write_tensors(resume, {k: v for k, v in state.items() if "exp_avg" not in k}, about)
    with pytest.raises(StrapError, match="remove it to train again from step 0"):
        train_representation(kind, pair[1:], tmp_path, settings, device="cpu")
    write_tensors(resume, state, about)
    steps: list[int] = []
    resumed = train_representation(
        kind,
        pair[1:],
        tmp_path,
        settings,
        device="cpu",
        progress=lambda what, done, total: steps.append(done) if what == "training" else None,
    )
    assert steps == [3]
    straight = weights(trained[kind].path)
    assert all(torch.equal(value, straight[name]) for name, value in weights(tmp_path).items())
    assert resumed.config == trained[kind].config
    assert resumed.losses == trained[kind].losses
    assert not (tmp_path / "resume.safetensors").exists()


def test_the_same_call_again_does_nothing(pair: Pair, trained: Trained) -> None:
    made = trained["br"]
    before = (made.path / "representation.safetensors").stat().st_mtime_ns
    seen: list[str] = []
    again = train_representation(
        "br", pair[1:], made.path, TINY, device="cpu", progress=lambda *row: seen.append(row[0])
    )
    assert not seen
    assert (made.path / "representation.safetensors").stat().st_mtime_ns == before
    assert again.config == made.config


def test_another_training_is_not_written_over(pair: Pair, trained: Trained, tmp_path: Path) -> None:
    made = trained["br"].path
    for kind, datasets, settings in (
        ("fr", pair[1:], TINY),
        ("br", pair, TINY),
        ("br", pair[1:], replace(TINY, seed=1)),
    ):
        with pytest.raises(StrapError, match="with other settings or data"):
            train_representation(kind, datasets, made, settings, device="cpu")  # type: ignore[arg-type]
    with (
        exclusive_lock(tmp_path / LOCK, "busy"),
        pytest.raises(StrapError, match="another process is training into"),
    ):
        train_representation("br", pair[1:], tmp_path, TINY, device="cpu")


@pytest.mark.parametrize("kind", KINDS)
def test_stores_have_the_frames_ids_and_instructions_of_the_dataset(
    pair: Pair, trained: Trained, stores: Stores, tmp_path: Path, kind: Kind
) -> None:
    prior, made, store = pair[1], trained[kind], stores[kind][1]
    frames = sum(t.length for t in prior)
    assert (store.complete, store.dataset, store.config.cameras) == (True, prior.name, (kind,))
    assert (store.ids, store.dim, store.frames) == (tuple(prior.ids), made.dim, frames)
    assert store.dim == TINY.latent + (7 if kind == "br" else 0)
    for trajectory in prior:
        assert store[trajectory.id].shape == (trajectory.length, store.dim)
        assert np.isfinite(store[trajectory.id]).all()
    vision = strap.embed(prior, PixelEncoder(4), tmp_path / "vision")
    for key in prior.ids:  # shared trajectories are known by these
        ours, theirs = store.entry(key), vision.entry(key)
        for name in ("length", "instruction", "fingerprint", "stamp"):
            assert getattr(ours, name) == getattr(theirs, name)
    assert store.entry("demo_0").instruction == "do something else"


def test_a_finished_store_is_kept_and_a_killed_one_completed(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, data = trained["fr"], write_sliding(tmp_path / "sliding.hdf5")
    seen: list[tuple[int, int]] = []
    whole = made.embed(data, tmp_path / "whole", progress=lambda w, *n: seen.append(n))
    assert seen[-1] == (24, 24)
    files = {file: file.stat().st_mtime_ns for file in whole.path.rglob("*.npy")}
    seen.clear()
    made.embed(data, whole.path, progress=lambda w, *n: seen.append(n))
    assert not seen
    assert {file: file.stat().st_mtime_ns for file in whole.path.rglob("*.npy")} == files
    encode, calls = Representation.encode, list[int]()

    def killed(self: Representation, samples: Any) -> np.ndarray:
        calls.append(len(samples))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return encode(self, samples)

    monkeypatch.setattr(Representation, "encode", killed)
    with pytest.raises(KeyboardInterrupt):
        made.embed(data, tmp_path / "killed")
    calls[:] = [0, 0]
    store = made.embed(data, tmp_path / "killed")
    assert calls[2:] == [12]  # demo_0 was there
    assert store.complete
    for key in data.ids:
        assert np.array_equal(store[key], whole[key])


def test_a_store_of_other_weights_is_refused(
    pair: Pair, trained: Trained, stores: Stores, tmp_path: Path
) -> None:
    shutil.copytree(trained["br"].path, tmp_path / "other")
    changed = weights(tmp_path / "other")
    changed["encoder.linear.bias"] += 1
    save_file(changed, tmp_path / "other" / "representation.safetensors")
    other, store = open_representation(tmp_path / "other", device="cpu"), stores["br"][0]
    name, another = store.config.encoder["name"], other.config["name"]
    with pytest.raises(StrapError, match=f"made with encoder {name}, not {another}"):
        other.embed(pair[0], store.path)


def test_keys_of_br_contain_the_action(pair: Pair, trained: Trained, stores: Stores) -> None:
    """The code's half and the action's half each vary by 1 in all over the training data."""
    store = stores["br"][1]
    keys = np.concatenate([store[key] for key in store.ids])
    actions = np.concatenate([t.actions[:] for t in pair[1]])
    spread = trained["br"].model.action_std.numpy() * 7**0.5
    np.testing.assert_allclose(keys[:, TINY.latent :], actions / spread, rtol=1e-4, atol=1e-6)
    assert keys[:, : TINY.latent].var(0).sum() == pytest.approx(1, rel=1e-3)
    # four of the seven numbers never change in this data
    assert keys[:, TINY.latent :].var(0).sum() == pytest.approx(3 / 7, rel=1e-3)


def test_a_planted_frame_is_the_nearest(stores: Stores) -> None:
    target, prior = stores["br"]
    query, keys = target["demo_0"][5], prior["demo_1"]
    distances = np.linalg.norm(keys - query, axis=1)
    assert distances.argmin() == 7
    assert distances[7] < 1e-3 * np.sort(distances)[1]
    assert cosine_similarity(query, keys).argmax() == 7


def test_flow_of_a_shifted_picture_is_the_shift() -> None:
    wide = np.asarray(texture(np.random.default_rng(0), 160))
    # the window moves 2 to the left and 1 up in each frame: the picture goes right and down
    images = np.stack([wide[16 - t : 144 - t, 24 - 2 * t : 152 - 2 * t] for t in range(6)])
    flow = optical_flow(images, 3)
    assert (flow.shape, flow.dtype) == ((6, 128, 128, 2), np.float16)
    inner = flow[:, 32:-32, 32:-32].astype(np.float32)
    np.testing.assert_allclose(inner.mean((1, 2)), [[2, 1]] * 6, atol=0.1)
    # The last three have no frame that is three later:
    assert (flow[3:] == flow[2]).all()


def test_flow_of_a_short_trajectory_is_over_all_its_frames() -> None:
    wide = np.asarray(texture(np.random.default_rng(0), 160))
    images = np.stack([wide[16 - t : 144 - t, 24 - 2 * t : 152 - 2 * t] for t in range(3)])
    flow = optical_flow(images, 8)
    np.testing.assert_allclose(flow[:, 32:-32, 32:-32].mean((1, 2)), [[2, 1]] * 3, atol=0.1)
    assert not optical_flow(images[:1], 8).any()


def test_bad_settings_are_told() -> None:
    for values, message in (
        ({"image_size": 100}, "image_size is 100: it must be a multiple of 32, at least 64"),
        ({"image_size": 32}, "image_size is 32"),
        ({"steps": 0}, "steps is 0: give a whole number from 1"),
        ({"batch": 2.5}, "batch is 2.5: give a whole number"),
        ({"learning_rate": float("nan")}, "learning_rate is nan: it must be above 0"),
        ({"kl_weight": -1.0}, "kl_weight is -1.0: it must be 0 or more"),
        ({"hidden": ()}, r"hidden is \(\): give 1 to 16 widths"),
    ):
        with pytest.raises(StrapError, match=message):
            RepresentationSettings(**values)  # type: ignore[arg-type]


def test_data_that_does_not_fit_is_told(pair: Pair, trained: Trained, tmp_path: Path) -> None:
    def train(kind: Any, *datasets: Dataset) -> Representation:
        return train_representation(kind, datasets, tmp_path / "out", TINY, device="cpu")

    with pytest.raises(StrapError, match="unknown kind of representation 'bt'"):
        train("bt", pair[0])
    with pytest.raises(StrapError, match="there is no dataset"):
        train("br")
    other = write_cameras(tmp_path / "other.hdf5", ("agentview_rgb",), 3)
    with pytest.raises(StrapError, match=r"actions of 'demo_0' are \[5, 3\], not \[5, 7\]"):
        train("br", pair[0], other)
    with pytest.raises(StrapError, match=r"actions of 'demo_0' are \[5, 3\], not \[5, 7\]"):
        trained["br"].embed(other, tmp_path / "store")
    assert len(trained["fr"].embed(other, tmp_path / "flows")["demo_0"]) == 5
    with pytest.raises(StrapError, match="no camera images"):
        train("br", write_cameras(tmp_path / "blind.hdf5", (), 7))
    with pytest.raises(StrapError, match=r"no agent view but 2 cameras \(left, right\)"):
        train("br", write_cameras(tmp_path / "two.hdf5", ("left", "right"), 7))
    assert not (tmp_path / "out").exists()


def test_damaged_files_are_told(pair: Pair, trained: Trained, tmp_path: Path) -> None:
    source = trained["fr"].path
    config = json.loads((source / "config.json").read_text())
    tensors = load_file(source / "representation.safetensors")

    def write(config: object, tensors: dict[str, torch.Tensor]) -> None:
        (tmp_path / "config.json").write_text(json.dumps(config))
        save_file(tensors, tmp_path / "representation.safetensors")

    write(config, tensors)
    assert open_representation(tmp_path, device="cpu").config == trained["fr"].config
    for changed, message in (
        ([], "does not describe a representation"),
        ({**config, "kind": "xx"}, "unknown kind"),
        ({**config, "settings": {"steps": "many"}}, "steps is 'many'"),
        ({**config, "settings": {"colour": 1}}, "unknown names: colour"),
        ({**config, "settings": {**config["settings"], "latent": 7}}, "does not fit its config"),
    ):
        write(changed, tensors)
        with pytest.raises(StrapError, match=message):
            open_representation(tmp_path, device="cpu")
    bad = tensors["encoder.linear.bias"].clone()
    bad[0] = float("nan")
    write(config, {**tensors, "encoder.linear.bias": bad})
    with pytest.raises(StrapError, match="not finite"):
        open_representation(tmp_path, device="cpu")


@pytest.mark.parametrize("kind", KINDS)
def test_figures(pair: Pair, trained: Trained, stores: Stores, tmp_path: Path, kind: Kind) -> None:
    made, (target, prior) = trained[kind], pair
    camera = choose_cameras(target, None)[0]
    samples = read_trajectory(target["demo_0"], camera, kind, TINY)
    again = made.reconstruct(samples)
    assert again.shape == samples.pictures.shape
    assert again.dtype == (np.uint8 if kind == "br" else np.float32)
    near, priors = tmp_path / "near.png", stores[kind][1:]
    drawn = [reconstruction_figure(made, prior, tmp_path / "again.png", rows=2)]
    drawn.append(neighbours_figure(stores[kind][0], priors, pair, near))
    for file in drawn:
        assert min(Image.open(file).size) > 100
    with pytest.raises(StrapError, match="not among the given datasets"):
        neighbours_figure(stores[kind][0], priors, [target], near)
    with pytest.raises(StrapError, match="unknown camera 'nowhere'"):
        neighbours_figure(stores[kind][0], priors, pair, near, camera="nowhere")


def test_colours_of_a_flow() -> None:
    flow = np.array([[[0, 0], [2, 0], [0, 1]]])
    black, red, _ = flow_colours(flow, 2)[0]
    assert black.tolist() == [0, 0, 0]
    assert red.tolist() == [1, 0, 0]


def test_settings_need_no_torch() -> None:
    code = "import strap.representations, sys; assert not {'torch', 'cv2'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        strap.representations.nothing  # type: ignore[attr-defined]  # noqa: B018
