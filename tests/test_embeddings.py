from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from tests.stores import make_store

import strap
from strap import embeddings
from strap.embeddings import batches, frames, local, work
from strap.encoders import PixelEncoder, load_encoder
from strap.encoders.pixels import area_weights
from strap.errors import StrapError
from strap.store import slug
from strap.synthetic import Planted
from strap.types import ContentHasher


class Counting(PixelEncoder):
    """Counts the frames it is given."""

    seen = 0

    def encode(self, images: np.ndarray) -> np.ndarray:
        Counting.seen += len(images)
        return super().encode(images)


@pytest.fixture
def counting() -> Counting:
    Counting.seen = 0
    return Counting()


def test_pixels_are_area_averages() -> None:
    image = np.random.default_rng(0).integers(0, 255, (1, 32, 48, 3), dtype=np.uint8)
    grey = image[0] @ [0.299, 0.587, 0.114] / 255
    expected = grey.reshape(16, 2, 16, 3).mean(axis=(1, 3)).ravel()
    assert np.allclose(load_encoder("pixels").encode(image)[0], expected, atol=1e-5)
    assert np.allclose(area_weights(5, 3).sum(axis=1), 1)


def test_fingerprints_are_of_the_frames_in_order(
    planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trajectories are hashed beside each other, each one's spans one after the other."""

    class Slow(ContentHasher):
        begun = False

        def update(self, images: np.ndarray) -> None:
            if not self.begun:  # what comes later could overtake it
                self.begun = True
                time.sleep(0.05)
            super().update(images)

    monkeypatch.setattr(batches, "ContentHasher", Slow)
    monkeypatch.setattr(frames, "SPAN_FRAMES", 16)
    dataset = strap.open_dataset(planted.target)
    cameras = tuple(dataset["demo_1"].cameras)
    store = strap.embed(dataset, "pixels", tmp_path / "s", cameras=cameras, workers=4)
    for key in dataset.ids:
        assert store.entry(key).fingerprint == dataset[key].fingerprint(cameras)


def test_every_thread_has_a_piece_to_go_on_with(planted: Planted) -> None:
    trajectory = strap.open_dataset(planted.target)["demo_1"]
    many = [
        frames.FrameSpan(
            work.EmbeddingJob((trajectory,), ("",), (0,)), 0, 0, i, i + 1, i, final=False
        )
        for i in range(20)
    ]
    taken = iter(many)
    reading = frames.read_ahead(taken, ("agentview_rgb",), 3)
    assert len(next(reading).images) == 1
    assert next(taken).start == 6  # two for each thread; the caller is busy with the first
    reading.close()


def test_unknown_encoder() -> None:
    with pytest.raises(StrapError, match="unknown encoder 'pixel': did you mean 'pixels'"):
        load_encoder("pixel")


def test_store_holds_the_upright_frames(planted: Planted, tmp_path: Path) -> None:
    dataset = strap.open_dataset(planted.target)
    store = strap.embed(dataset, "pixels", tmp_path / "s", dtype="float32")
    assert store.ids == dataset.ids
    expected = PixelEncoder().encode(dataset["demo_1"].frames("agentview_rgb"))
    assert np.array_equal(store["demo_1"], expected)
    assert store["demo_1"].base is not None  # a view of the map, not a copy
    assert store.entry("demo_1").instruction == "do the planted task"
    assert (store.frames, store.dim, len(store), store.complete) == (180, 256, 2, True)
    assert store.dataset == str(planted.target)
    assert store.verify() == []
    assert "pixels, 2 trajectories of 256-d" in repr(store)
    assert list(store) == list(store.ids)
    plain = np.load(tmp_path / "s/shards/000000.agentview_rgb.npy")
    assert np.array_equal(plain[90:], expected)


def test_float16_is_the_default(planted: Planted, tmp_path: Path) -> None:
    store = strap.embed(strap.open_dataset(planted.target), "pixels", tmp_path / "s")
    assert store["demo_0"].dtype == np.float16


def test_embedding_again_does_nothing(
    own_planted: Planted, tmp_path: Path, counting: Counting
) -> None:
    dataset = strap.open_dataset(own_planted.target)
    strap.embed(dataset, counting, tmp_path / "s")
    assert Counting.seen == 180
    strap.embed(dataset, counting, tmp_path / "s")
    own_planted.target.touch()  # other times, same content: read, not embedded again
    strap.embed(strap.open_dataset(own_planted.target), counting, tmp_path / "s")
    assert Counting.seen == 180


def test_a_changed_trajectory_is_embedded_anew(
    own_planted: Planted, tmp_path: Path, counting: Counting
) -> None:
    strap.embed(strap.open_dataset(own_planted.target), counting, tmp_path / "s")
    with h5py.File(own_planted.target, "a") as handle:
        handle["data/demo_1/obs/agentview_rgb"][5] = 255
    store = strap.embed(strap.open_dataset(own_planted.target), counting, tmp_path / "s")
    assert Counting.seen == 270
    assert np.all(store["demo_1"][5] > 0.99)
    assert store.verify() == []


@pytest.mark.parametrize("part", [None, "1/2"])
def test_what_a_part_leaves_out_is_looked_at_when_it_is_needed(
    part: str | None, own_planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A selection or a part of a changed dataset says nothing of the other trajectories."""
    monkeypatch.setattr(work, "GROUP_IMAGES", 1)
    strap.embed(strap.open_dataset(own_planted.target), "pixels", tmp_path / "s")
    with h5py.File(own_planted.target, "a") as handle:
        for key in ("demo_0", "demo_1"):
            handle[f"data/{key}/obs/agentview_rgb"][:] = 255
    changed = strap.open_dataset(own_planted.target)
    some = changed if part else changed.select(["demo_0"])
    store = strap.embed(some, "pixels", tmp_path / "s", part=part)
    assert not embeddings.is_embedded(store, changed)
    store = strap.embed(changed, "pixels", tmp_path / "s")
    assert embeddings.is_embedded(store, changed)
    for key in ("demo_0", "demo_1"):
        assert np.all(store[key] > 0.99)


def test_parts_of_an_unchanged_dataset_leave_the_store_up_to_date(
    own_planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = strap.open_dataset(own_planted.prior)
    for chosen in (dataset, dataset.select(["demo_3"])):
        store = strap.embed(chosen, "pixels", tmp_path / "s")
        assert embeddings.is_embedded(store, dataset)
        assert store.manifest["unchecked"] == []
    halves = dataset.ids[:6], dataset.ids[6:]
    for half in halves:  # each adds its own, and knows that the other is as it was
        store = strap.embed(dataset.select(half), "pixels", tmp_path / "halves")
    assert embeddings.is_embedded(store, dataset)
    monkeypatch.setattr(work, "GROUP_IMAGES", 1)
    for part in ("1/2", "2/2"):
        store = strap.embed(dataset, "pixels", tmp_path / "parts", part=part)
    assert embeddings.is_embedded(store, dataset)
    monkeypatch.setattr(embeddings, "embed_here", None)
    for half in halves:
        strap.embed(dataset.select(half), "pixels", tmp_path / "halves")


def test_same_content_in_other_files_is_read_once(
    own_planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strap.embed(strap.open_dataset(own_planted.target), "pixels", tmp_path / "s")
    own_planted.target.touch()
    store = strap.embed(strap.open_dataset(own_planted.target), "pixels", tmp_path / "s")
    assert store.verify() == []
    assert list(store.shards) == ["000000"]
    monkeypatch.setattr(strap.Trajectory, "fingerprint", None)  # nothing is read any more
    (tmp_path / "s/manifest.json").unlink()
    again = strap.embed(strap.open_dataset(own_planted.target), "pixels", tmp_path / "s")
    assert again.shards == store.shards


def test_what_changes_meanwhile_is_noticed_by_the_next_call(
    own_planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = embeddings.finish_store

    def change_and_finish(dataset: strap.Dataset, *rest: Any, **more: Any) -> Any:
        with h5py.File(own_planted.target, "a") as handle:
            handle["data/demo_0/obs/agentview_rgb"][:] = 255
        return finish(dataset, *rest, **more)

    monkeypatch.setattr(embeddings, "finish_store", change_and_finish)
    strap.embed(strap.open_dataset(own_planted.target), "pixels", tmp_path / "s")
    monkeypatch.undo()
    store = strap.embed(strap.open_dataset(own_planted.target), "pixels", tmp_path / "s")
    assert np.all(store["demo_0"] > 0.99)


def test_new_and_removed_trajectories(
    own_planted: Planted, tmp_path: Path, counting: Counting
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    own_planted.target.rename(folder / "a.hdf5")
    strap.embed(strap.open_dataset(folder), counting, tmp_path / "s")
    own_planted.prior.rename(folder / "b.hdf5")
    before = Counting.seen
    store = strap.embed(strap.open_dataset(folder), counting, tmp_path / "s")
    assert len(store) == 14
    assert Counting.seen - before == store.frames - 180  # only the new ones
    (folder / "a.hdf5").unlink()
    store = strap.embed(strap.open_dataset(folder), counting, tmp_path / "s")
    assert store.ids == strap.open_dataset(folder).ids


def test_many_shards_read_the_same(
    planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = strap.open_dataset(planted.prior)
    one = strap.embed(dataset, "pixels", tmp_path / "one")
    monkeypatch.setattr(local, "SHARD_BYTES", 1)
    monkeypatch.setattr(work, "GROUP_IMAGES", 1)
    many = strap.embed(dataset, "pixels", tmp_path / "many")
    assert (len(one.shards), len(many.shards)) == (1, 12)
    assert one.ids == many.ids
    for key in one:
        assert np.array_equal(one[key], many[key])


def write_cameras(file: Path, cameras: Mapping[str, int]) -> Path:
    with h5py.File(file, "w") as handle:
        demo = handle.create_group("data/demo_0")
        demo["actions"] = np.zeros((4, 7))
        for name, level in cameras.items():
            demo[f"obs/{name}"] = np.full((4, 8, 8, 3), level, np.uint8)
    return file


def test_cameras_are_kept_apart_and_averaged_on_reading(tmp_path: Path) -> None:
    dataset = strap.open_dataset(write_cameras(tmp_path / "a.hdf5", {"left": 0, "right": 255}))
    store = strap.embed(dataset, "pixels", tmp_path / "s")
    assert store.config.cameras == ("left", "right")
    assert np.allclose(store["demo_0"], 0.5, atol=1e-3)
    assert np.allclose(strap.open_store(tmp_path / "s", cameras=["right"])["demo_0"], 1)
    with pytest.raises(StrapError, match="unknown camera 'rigt': did you mean 'right'"):
        strap.open_store(tmp_path / "s", cameras=["rigt"])


def test_which_cameras_are_chosen(tmp_path: Path) -> None:
    libero = {"eye_in_hand_rgb": 1, "agentview_rgb": 2}
    dataset = strap.open_dataset(write_cameras(tmp_path / "a.hdf5", libero))
    assert embeddings.choose_cameras(dataset, None) == ("agentview_rgb",)
    assert embeddings.choose_cameras(dataset, ["eye_in_hand_rgb"]) == ("eye_in_hand_rgb",)
    with pytest.raises(StrapError, match="unknown camera 'agent': did you mean 'agentview_rgb'"):
        embeddings.choose_cameras(dataset, ["agent"])
    blind = strap.open_dataset(write_cameras(tmp_path / "b.hdf5", {}))
    with pytest.raises(StrapError, match="has no camera images in 'demo_0'"):
        embeddings.choose_cameras(blind, None)


def test_a_store_is_never_mixed(planted: Planted, tmp_path: Path) -> None:
    dataset = strap.open_dataset(planted.target)
    strap.embed(dataset, PixelEncoder(8), tmp_path / "s")
    with pytest.raises(StrapError, match="made with dtype float16, not float32"):
        strap.embed(dataset, PixelEncoder(8), tmp_path / "s", dtype="float32")
    with pytest.raises(StrapError, match="was made with encoder pixels"):
        strap.embed(dataset, PixelEncoder(4), tmp_path / "s")
    with pytest.raises(StrapError, match="unknown dtype 'int8'"):
        strap.embed(dataset, "pixels", tmp_path / "s", dtype="int8")  # type: ignore[arg-type]


class Broken:
    """An encoder that gives what it is told to."""

    dim = 2

    def __init__(self, value: float, width: int = 2) -> None:
        self.value, self.width = value, width

    @property
    def config(self) -> Mapping[str, Any]:
        return {"name": "broken"}

    def encode(self, images: np.ndarray) -> np.ndarray:
        return np.full((len(images), self.width), self.value, np.float32)


def test_bad_embeddings_are_refused(planted: Planted, tmp_path: Path) -> None:
    dataset = strap.open_dataset(planted.target)
    with pytest.raises(StrapError, match=r"'demo_0'.*frame 0: the embedding is not finite"):
        strap.embed(dataset, Broken(np.nan), tmp_path / "a")
    with pytest.raises(StrapError, match="too large for float16; embed with --dtype float32"):
        strap.embed(dataset, Broken(1e6), tmp_path / "b")
    with pytest.raises(StrapError, match=r"gave shape \(64, 3\)"):
        strap.embed(dataset, Broken(0, width=3), tmp_path / "c")


def test_damage_is_named(planted: Planted, tmp_path: Path) -> None:
    strap.embed(strap.open_dataset(planted.target), "pixels", tmp_path / "s")
    shard = tmp_path / "s/shards/000000.agentview_rgb.npy"
    content = bytearray(shard.read_bytes())
    content[-100] ^= 1
    shard.write_bytes(content)
    store = strap.open_store(tmp_path / "s")
    assert store["demo_0"].shape == (90, 256)
    with pytest.raises(StrapError, match=r"'000000.agentview_rgb.npy' is damaged at .*'demo_1'"):
        store["demo_1"]
    assert len(store.verify()) == 1
    shard.write_bytes(content[:1000])
    with pytest.raises(StrapError, match="is cut off or has bytes after its last row"):
        strap.open_store(tmp_path / "s")["demo_0"]
    np.save(shard, np.zeros((3, 3)))
    with pytest.raises(StrapError, match="holds float64"):
        strap.open_store(tmp_path / "s")["demo_0"]


def test_opening_what_is_no_store(tmp_path: Path, planted: Planted) -> None:
    with pytest.raises(StrapError, match="is not an embedding store"):
        strap.open_store(tmp_path)
    (tmp_path / "file").write_text("x")
    for place in (tmp_path, tmp_path / "file"):
        with pytest.raises(StrapError, match="exists and is not an embedding store"):
            strap.embed(strap.open_dataset(planted.target), "pixels", place)
    made = make_store(tmp_path / "s", {"a": np.zeros((2, 3))})
    text = (made.path / "store.json").read_text()
    (made.path / "store.json").write_text(text.replace('"version": 2', '"version": 99'))
    with pytest.raises(StrapError, match="store of version 99"):
        strap.open_store(made.path)
    with pytest.raises(StrapError, match="has no trajectory 'b'"):
        made["b"]


def test_unwritable_output(planted: Planted, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StrapError, match=r"cannot write .*choose an output folder"):
        strap.embed(strap.open_dataset(planted.target), "pixels", tmp_path / "file" / "s")


def test_slug() -> None:
    assert slug("observation.images/top cam") == "observation_images_top_cam"


def test_what_a_killed_writer_leaves_is_not_in_the_way(planted: Planted, tmp_path: Path) -> None:
    """Killed before its first file was whole, a store or a run starts afresh."""
    from strap.pipeline import RetrievalOptions, run_retrieval

    for name in ("s", "run"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".store.json.4711.tmp").write_text("{")
    dataset = strap.open_dataset(planted.target)
    assert len(strap.embed(dataset, "pixels", tmp_path / "s")) == 2
    options = RetrievalOptions(encoder="pixels", top_k=6)
    run = run_retrieval(planted.target, [planted.prior], tmp_path / "run", options)
    assert len(run.matches) == 6
    assert not list(tmp_path.glob("*/.*.tmp"))


def test_a_part_without_trajectories_is_told(planted: Planted, tmp_path: Path) -> None:
    dataset = strap.open_dataset(planted.target)
    with pytest.warns(UserWarning, match="part 2/2 of .* is empty: .* this dataset has 1"):
        store = strap.embed(dataset, "pixels", tmp_path / "second", part="2/2")
    assert not len(store)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert len(strap.embed(dataset, "pixels", tmp_path / "first", part="1/2")) == len(dataset)
