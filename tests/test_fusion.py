"""Features beside an encoder's: fused stores hold what they should, scaled as documented."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import strap
from strap.cli import main
from strap.datasets import Dataset, open_dataset
from strap.encoders import PixelEncoder
from strap.encoders.language import embed_instructions
from strap.errors import StrapError
from strap.features.fusion import READERS, WeightedFeature, fuse
from strap.pipeline import RetrievalOptions
from strap.position_columns import positions
from strap.runs import open_run
from strap.store import EmbeddingStore
from strap.synthetic import Planted


def spread(arrays: list[np.ndarray]) -> float:
    rows = np.concatenate(arrays).astype(np.float64)
    return float(np.sqrt(((rows - rows.mean(0)) ** 2).sum(1).mean()))


@pytest.fixture
def embedded(planted: Planted, tmp_path: Path) -> tuple[list[EmbeddingStore], list[Dataset]]:
    datasets = [open_dataset(planted.target), open_dataset(planted.prior)]
    stores = [
        strap.embed(dataset, PixelEncoder(), tmp_path / str(n), dtype="float32")
        for n, dataset in enumerate(datasets)
    ]
    return stores, datasets


def test_a_fused_store_holds_both_features(
    embedded: tuple[list[EmbeddingStore], list[Dataset]], tmp_path: Path
) -> None:
    stores, datasets = embedded
    fused = fuse(stores, datasets, ["position=0.5", "movement"], tmp_path / "fused")
    vision = spread([stores[1][key] for key in stores[1].ids])
    places = [positions(t) for t in datasets[1]]
    moves = [np.diff(p, axis=0, append=p[-1:]) for p in places]
    for store, plain, dataset in zip(fused, stores, datasets, strict=True):
        assert store.ids == plain.ids
        for key in store.ids:
            own, place = store[key], positions(dataset[key])
            assert np.array_equal(own[:, : plain.dim], plain[key])
            scale = 0.5 * vision / spread(places)
            assert np.allclose(own[:, plain.dim : plain.dim + 3], place * scale, rtol=1e-5)
            move = np.diff(place, axis=0, append=place[-1:]) * vision / spread(moves)
            assert np.allclose(own[:, plain.dim + 3 :], move, rtol=1e-5, atol=1e-6)
            assert store.entry(key).fingerprint == plain.entry(key).fingerprint
    again = fuse(stores, datasets, ["position=0.5", "movement"], tmp_path / "fused")
    assert [store.path for store in again] == [store.path for store in fused]
    for features in (["position"], ["movement", "position=0.5"]):  # another order of the columns
        other = fuse(stores, datasets, features, tmp_path / "fused")
        assert other[1].path != fused[1].path


def test_a_feature_that_never_changes_is_refused(
    embedded: tuple[list[EmbeddingStore], list[Dataset]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The sum of many 0.1² is not the square of their mean in floating point.
    monkeypatch.setitem(READERS, "still", lambda trajectory: np.full((trajectory.length, 2), 0.1))
    with pytest.raises(StrapError, match="feature 'still' never changes in the prior"):
        fuse(*embedded, ["still"], tmp_path)


def test_features_are_read_from_texts() -> None:
    assert WeightedFeature.parse("gripper") == WeightedFeature("gripper", 1.0)
    assert WeightedFeature.parse("joint_states[0:3]=2") == WeightedFeature("joint_states[0:3]", 2.0)
    for text in ("gripper=0", "gripper=x", "=1", "gripper=nan"):
        with pytest.raises(StrapError, match="its weight must be a number above 0"):
            WeightedFeature.parse(text)


def test_what_cannot_be_fused_is_told(
    embedded: tuple[list[EmbeddingStore], list[Dataset]], tmp_path: Path
) -> None:
    stores, datasets = embedded
    with pytest.raises(StrapError, match="unknown proprioception 'elbow'"):
        fuse(stores, datasets, ["elbow"], tmp_path)


def test_fused_features_from_the_command_line(planted: Planted, tmp_path: Path) -> None:
    call = ["retrieve", "--target", str(planted.target), "--prior", str(planted.prior)]
    call += ["--encoder", "pixels", "--top-k", "72", "--augmented", "none"]
    call += ["--stores", str(tmp_path / "stores")]
    assert main([*call, "--out", str(tmp_path / "a")]) == 0
    assert main([*call, "--out", str(tmp_path / "b"), "--fuse", "position=0.1"]) == 0
    plain, fused = (open_run(tmp_path / name) for name in "ab")
    costs = [
        {(m.query, m.segment.trajectory_id): m.cost for m in run.matches} for run in (plain, fused)
    ]
    assert costs[0].keys() == costs[1].keys()  # all pairs
    # A plant has the position of its query too; elsewhere another place makes a match dearer.
    assert all(costs[1][pair] >= cost - 1e-4 for pair, cost in costs[0].items())
    assert sum(costs[1][pair] > cost + 0.01 for pair, cost in costs[0].items()) > 30


def with_instructions(datasets: list[Dataset]) -> list[Dataset]:
    """Return the datasets with two instructions in the prior, in turn, and another elsewhere."""
    texts = dict(zip(datasets[1].ids, ["open the drawer", "close the lid"] * 6, strict=True))
    readers = [Told(dataset.reader, {**texts, "": "open a drawer"}) for dataset in datasets]
    return [replace(d, reader=reader) for d, reader in zip(datasets, readers, strict=True)]


@pytest.mark.slow  # a language model is loaded
def test_instructions_can_be_compared_too(
    embedded: tuple[list[EmbeddingStore], list[Dataset]], tmp_path: Path
) -> None:
    stores, datasets = embedded
    told = with_instructions(datasets)
    fused = fuse(stores, told, ["language"], tmp_path / "fused")[1]
    parts = {key: fused[key][:, stores[1].dim :] for key in fused.ids}
    assert all((part == part[0]).all() for part in parts.values())
    assert np.array_equal(parts["demo_0"][0], parts["demo_2"][0])
    assert not np.array_equal(parts["demo_0"][0], parts["demo_1"][0])
    vision = spread([stores[1][key] for key in stores[1].ids])
    assert spread(list(parts.values())) == pytest.approx(vision, rel=1e-3)
    silent = [replace(d, reader=Told(d.reader, {"": ""})) for d in datasets]
    with pytest.raises(StrapError, match="has no instruction: leave 'language' out"):
        fuse(stores, silent, ["language"], tmp_path / "silent")


@dataclass(frozen=True)
class Told:
    """A reader whose trajectories have other instructions."""

    reader: Any
    texts: dict[str, str]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.reader, name)

    def read(self, key: str) -> Any:
        return replace(self.reader.read(key), instruction=self.texts.get(key, self.texts[""]))


def test_fused_stores_follow_their_datasets(own_planted: Planted, tmp_path: Path) -> None:
    paths = (own_planted.target, own_planted.prior)

    def fused() -> tuple[list[EmbeddingStore], list[EmbeddingStore]]:
        datasets = [open_dataset(path) for path in paths]
        plain = [
            strap.embed(dataset, PixelEncoder(), tmp_path / f"s{n}", dtype="float32")
            for n, dataset in enumerate(datasets)
        ]
        return fuse(plain, datasets, ["position"], tmp_path / "fused"), plain

    before, _ = fused()
    with h5py.File(own_planted.target, "r+") as file:  # seen and moved otherwise; ids stay
        for demo in file["data"].values():
            demo["obs/agentview_rgb"][...] = 255 - demo["obs/agentview_rgb"][:]
            demo["obs/ee_pos"][...] = 3 - demo["obs/ee_pos"][:]
    after, plain = fused()
    assert [store.path for store in after] == [store.path for store in before]
    target, dim = after[0], plain[0].dim
    for key in target.ids:
        assert np.array_equal(target[key][:, :dim], plain[0][key])
        assert not np.array_equal(target[key][:, :dim], before[0][key][:, :dim])
        both = target[key][:, dim:] + before[0][key][:, dim:]  # scaled by the prior, as before
        assert np.ptp(both) < 1e-4 * both.mean()
        assert target.entry(key).fingerprint == plain[0].entry(key).fingerprint
    os.utime(own_planted.target)  # the same content in a file of another time: nothing is made
    rows = sum(shard.frames for shard in target.shards.values())
    again = fused()[0][0]
    assert sum(shard.frames for shard in again.shards.values()) == rows
    assert again.manifest["fingerprint"] == open_dataset(own_planted.target).fingerprint()


def test_pictures_that_are_read_otherwise_are_fused_apart(
    embedded: tuple[list[EmbeddingStore], list[Dataset]], tmp_path: Path
) -> None:
    stores, datasets = embedded
    up, down = (
        fuse(
            stores,
            [open_dataset(d.path, orientation=way) for d in datasets],
            ["position"],
            tmp_path,
        )
        for way in ("upright", "flipped")
    )
    assert {store.path for store in up}.isdisjoint(store.path for store in down)


def test_the_text_encoder_that_is_named_embeds_fused_instructions(
    embedded: tuple[list[EmbeddingStore], list[Dataset]], tmp_path: Path
) -> None:
    stores, datasets = embedded
    told = with_instructions(datasets)
    options = RetrievalOptions(fuse=("language",), text_encoder="words").resolved().features()
    words = options.text_encoder
    store = fuse(stores, told, options.fuse, tmp_path / "fused", text_encoder=words)[1]
    [fused] = store.config.encoder["fused"]
    assert fused[:2] == ["language", "words"]
    columns = store["demo_1"][0, stores[1].dim :]
    assert np.allclose(columns, embed_instructions(["close the lid"], "words")[0] * fused[2])


def test_an_unknown_text_encoder_is_noticed_before_the_work(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["retrieve", "--target", str(planted.target), "--prior", str(planted.prior)]
    call += ["--encoder", "pixels", "--out", str(tmp_path / "run")]
    for feature in ("language", "auto"):
        assert main([*call, "--fuse", feature, "--text-encoder", "wrods"]) == 2
        assert "unknown language encoder 'wrods': did you mean 'words'?" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
