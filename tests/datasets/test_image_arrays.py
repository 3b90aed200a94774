"""Pictures as plain arrays, in every format: channels first, floats, and what is no picture."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.datasets.lerobot_damage import DATA, INFO
from tests.datasets.writers import (
    episodes,
    example,
    number_of,
    picture,
    record,
    write_lerobot_v3,
    write_zarr,
)

import strap
from strap.datasets.image_arrays import as_uint8_images, is_image_array
from strap.errors import StrapError
from strap.lazy_arrays import lazy

COUNT = 4
BYTES = np.stack([picture(i) for i in range(COUNT)])


def channels_first(images: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))


LAYOUTS = {
    "bytes": BYTES,
    "bytes, channels first": channels_first(BYTES),
    "floats to 1": (BYTES / 255).astype(np.float32),
    "floats to 1, channels first": channels_first(BYTES / 255).astype(np.float32),
    "floats to 255": BYTES.astype(np.float32),
    "integers": BYTES.astype(np.int32),
}


def write_hdf5(root: Path, images: np.ndarray) -> Path:
    with h5py.File(root / "a.hdf5", "w") as handle:
        handle["data/demo_0/actions"] = np.zeros((COUNT, 2))
        handle["data/demo_0/obs/wrist_image"] = images
    return root / "a.hdf5"


def write_buffer(root: Path, images: np.ndarray) -> Path:
    arrays = {"wrist_image": images, "action": np.zeros((COUNT, 2), np.float32)}
    return write_zarr(root / "a.zarr", arrays, [COUNT])


def write_table(root: Path, images: np.ndarray) -> Path:
    """A LeRobot dataset whose pictures lie as nested lists in its table."""
    write_lerobot_v3(root / "lerobot", episodes((COUNT,)), pictures=True)
    file = root / "lerobot" / DATA
    kept = [n for n in pq.read_table(file).column_names if "images" not in n]
    kind = pa.list_(pa.list_(pa.list_(pa.from_numpy_dtype(images.dtype))))
    nested = pa.array(images.tolist(), kind)
    pq.write_table(pq.read_table(file, columns=kept).append_column("wrist_image", nested), file)
    info = json.loads((root / "lerobot" / INFO).read_text())
    features = {n: f for n, f in info["features"].items() if f["dtype"] != "image"}
    features["wrist_image"] = {"dtype": str(images.dtype), "shape": list(images.shape[1:])}
    (root / "lerobot" / INFO).write_text(json.dumps({**info, "features": features}))
    return root / "lerobot"


def write_records(root: Path, images: np.ndarray, state: np.ndarray | None = None) -> Path:
    """An RLDS dataset whose pictures are a tensor, and its state no part of the observation."""
    state = np.zeros((COUNT, 6), np.float32) if state is None else state

    def tensor(dtype: str, *shape: int) -> dict:
        return {"tensor": {"shape": {"dimensions": list(map(str, shape))}, "dtype": dtype}}

    def group(**features: dict) -> dict:
        return {"featuresDict": {"features": features}}

    pixels = tensor(str(images.dtype), *images.shape[1:])
    step = group(
        observation=group(wrist_image=pixels),
        robot_state=tensor("float32", 6),
        action=tensor("float32", 2),
    )
    top = group(steps={"sequence": {"feature": step}})
    folder = root / "robot" / "1.0.0"
    folder.mkdir(parents=True)
    (folder / "features.json").write_text(json.dumps(top))
    split = {
        "name": "train",
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "shardLengths": ["1"],
    }
    described = {"name": "robot", "fileFormat": "tfrecord", "splits": [split]}
    (folder / "dataset_info.json").write_text(json.dumps(described))
    content = {
        "steps/observation/wrist_image": images,
        "steps/robot_state": state,
        "steps/action": np.zeros((COUNT, 2), np.float32),
    }
    (folder / "robot-train.tfrecord-00000-of-00001").write_bytes(record(example(content)))
    return root / "robot"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("write", [write_hdf5, write_buffer, write_table, write_records])
def test_every_layout_is_a_camera_of_every_format(
    write, layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRAP_CACHE", str(tmp_path / "cache"))
    dataset = strap.open_dataset(write(tmp_path, LAYOUTS[layout]))
    own = dataset[dataset.ids[0]]
    assert list(own.cameras) == ["wrist_image"]
    assert own.cameras["wrist_image"].shape == BYTES.shape
    assert own.cameras["wrist_image"].dtype == np.uint8
    assert own.frames("wrist_image").tolist() == BYTES.tolist()
    assert [number_of(f) for f in own.frames("wrist_image", 1, 3)] == [1, 2]


def test_a_state_outside_the_observation_of_rlds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRAP_CACHE", str(tmp_path / "cache"))
    state = np.arange(COUNT * 6, dtype=np.float32).reshape(COUNT, 6)
    own = strap.open_dataset(write_records(tmp_path, BYTES, state))["train/000000"]
    assert list(own.proprioception) == ["robot_state"]
    assert own.proprioception["robot_state"][:].tolist() == state.tolist()


@pytest.mark.parametrize("write", [write_hdf5, write_buffer])
def test_pictures_a_little_above_1_are_not_taken_for_dark_ones(write, tmp_path: Path) -> None:
    images = (BYTES / 255).astype(np.float32)
    images[COUNT // 2] *= 1.25
    dataset = strap.open_dataset(write(tmp_path, images))
    with pytest.raises(StrapError, match=r"wrist_image' has pixels from 0 to 1\.\d+ .* undo"):
        dataset[dataset.ids[0]].frames("wrist_image")


@pytest.mark.parametrize("write", [write_hdf5, write_buffer])
def test_one_dark_frame_does_not_decide(write, tmp_path: Path) -> None:
    images = BYTES.astype(np.float32)
    images[COUNT // 2] = 0
    dataset = strap.open_dataset(write(tmp_path, images))
    assert dataset[dataset.ids[0]].frames("wrist_image").tolist() == images.tolist()


@pytest.mark.parametrize("write", [write_hdf5, write_buffer])
def test_normalised_pictures_are_named(write, tmp_path: Path) -> None:
    dataset = strap.open_dataset(write(tmp_path, (BYTES / 127.5 - 1).astype(np.float32)))
    own = dataset[dataset.ids[0]]
    with pytest.raises(StrapError, match=r"wrist_image' has pixels from -.* undo their normal"):
        own.frames("wrist_image")


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "expected"),
    [
        ("anything", (48, 64, 3), np.uint8, True),
        ("anything", (3, 48, 64), np.uint8, False),  # may be three depth maps
        ("agentview_rgb", (3, 48, 64), np.uint8, True),
        ("agentview_rgb", (48, 64, 3), np.float32, True),
        ("points", (48, 64, 3), np.float32, False),
        ("camera_normals", (48, 64, 3), np.float32, False),
        ("wrist_depth_image", (3, 48, 64), np.float32, False),
        ("camera_matrix", (3, 3, 3), np.float32, True),
        ("camera_matrix", (3, 3, 4), np.float32, False),
        ("wrist_image", (48, 64, 1), np.uint8, False),
        ("wrist_image", (48, 64), np.uint8, False),
        ("wrist_image", (48, 64, 3), np.bool_, False),
    ],
)
def test_what_is_pictures(name: str, shape: tuple[int, ...], dtype: type, expected: bool) -> None:
    assert is_image_array(name, shape, np.dtype(dtype)) is expected


def test_a_dark_range_is_not_stretched() -> None:
    images = np.zeros((5, 48, 64, 3), np.float32)
    images[2] = 200.0  # the middle one tells that these are grey levels
    images[0] = 1.0
    assert as_uint8_images(lazy(images), "x")[0].max() == 1


@pytest.mark.parametrize("damage", [np.nan, np.inf])
def test_a_damaged_frame_does_not_decide(damage: float) -> None:
    images = (BYTES / 255).astype(np.float32)
    images[0, 0, 0, 0] = damage
    read = as_uint8_images(lazy(images), "x")
    np.testing.assert_array_equal(read[1:], BYTES[1:])
    with pytest.raises(StrapError, match="pixels that are NaN or infinite"):
        read[:1]
