"""RLDS: read records that the test wrote byte by byte; damaged ones are named, never guessed."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.datasets import writers
from tests.datasets.writers import example, number_of, record, varint, write_rlds

from strap.datasets.base import Dataset
from strap.datasets.rlds import is_rlds, open_rlds
from strap.datasets.rlds.example import parse
from strap.datasets.rlds.records import build_index, masked_crc, read_record, record_index
from strap.errors import StrapError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STRAP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def opened(path: Path, **options: object) -> Dataset:
    name, reader = open_rlds(path, **options)
    return Dataset(path, name, reader)


def test_droid_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "droid/1.0.0"
    written = write_rlds(folder)
    dataset = opened(folder)
    assert dataset.format == "rlds"
    assert list(dataset.ids) == ["train/000000", "train/000001", "train/000002"]
    flat = [episode for shard in written for episode in shard]
    for episode, trajectory in zip(flat, dataset, strict=True):
        assert trajectory.length == len(episode["steps/is_last"])
        np.testing.assert_array_equal(trajectory.actions[:], episode["steps/action"])
        position = trajectory.proprioception["cartesian_position"][:]
        np.testing.assert_array_equal(position, episode["steps/observation/cartesian_position"])
        assert trajectory.proprioception["gripper_position"].shape == (trajectory.length, 1)
        np.testing.assert_array_equal(trajectory.extras["count"][:], episode["steps/count"])
        assert trajectory.extras["is_last"][:].tolist()[-1] is True
        assert trajectory.attributes["position"] == "cartesian_position[0:3]"
        assert trajectory.fps == 15.0
    third = dataset["train/000002"]
    assert third.instruction == "put the marker in cup 100"  # the first that is not empty
    assert third.attributes["instructions"] == [third.instruction, "marker in the cup"]
    assert third.attributes["episode_metadata/file_path"] == "/recorded/100.h5"
    assert list(third.cameras) == ["exterior_image_1_left", "wrist_image_left"]
    frames = third.frames("exterior_image_1_left", 1, 4)
    assert [number_of(f) for f in frames] == [101, 102, 103]


def test_pictures_of_unstated_size(tmp_path: Path) -> None:
    write_rlds(tmp_path / "1.0.0", unknown_size=True)
    trajectory = opened(tmp_path / "1.0.0")["train/000000"]
    assert trajectory.cameras["exterior_image_1_left"].shape == (4, 48, 64, 3)
    assert number_of(trajectory.cameras["exterior_image_1_left"][2]) == 2


def test_found_from_the_folders_above(tmp_path: Path) -> None:
    write_rlds(tmp_path / "all/droid/1.0.0", ((1,),))
    write_rlds(tmp_path / "all/droid/1.10.0", ((2,),))
    for path in (tmp_path / "all/droid", tmp_path / "all"):
        assert is_rlds(path)
        assert opened(path)["train/000000"].length == 2  # 1.10.0 is newer than 1.0.0
    assert not is_rlds(tmp_path / "all/droid/nothing")
    write_rlds(tmp_path / "all/bridge/1.0.0", ((1,),), name="bridge")
    with pytest.raises(StrapError, match="holds 2 RLDS datasets: open one of them: bridge, droid"):
        opened(tmp_path / "all")


def test_fields_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "my_robot/1.0.0"
    write_rlds(folder, name="my_robot")
    plain = opened(folder)["train/000000"]
    assert plain.fps is None
    assert "position" not in plain.attributes
    fields = {
        "camera": "wrist_image_left",
        "position": "observation/cartesian_position[0:3]",
        "language": "language_instruction_3",
        "action": ["observation/gripper_position", "action"],
    }
    trajectory = opened(folder, fields=fields)["train/000000"]
    assert list(trajectory.cameras) == ["wrist_image_left"]
    assert trajectory.instruction == "marker in the cup"
    assert trajectory.attributes["position"] == "cartesian_position[0:3]"
    assert trajectory.actions.shape == (4, 8)
    np.testing.assert_array_equal(trajectory.actions[:][:, 1:], plain.actions[:])
    with pytest.raises(StrapError, match=r"unknown camera field 'wrist'.*wrist_image_left"):
        opened(folder, fields={"camera": "wrist"})
    with pytest.raises(StrapError, match="unknown role of a field 'cam'"):
        opened(folder, fields={"cam": "wrist"})


def test_an_action_in_parts_is_joined_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "rt/1.0.0"
    write_rlds(folder, ((3,),), name="rt")
    described = json.loads((folder / "features.json").read_text())
    step = described["featuresDict"]["features"]["steps"]["sequence"]["feature"]
    step["featuresDict"]["features"]["action"] = writers._dict(
        world=writers._tensor("float32", 3), gripper=writers._tensor("float32")
    )
    (folder / "features.json").write_text(json.dumps(described))
    episode = writers._droid_episode(0, 3, writers.SIZE) | {
        "steps/action/world": np.arange(9, dtype=np.float32),
        "steps/action/gripper": np.array([7, 8, 9], np.float32),
    }
    (folder / "rt-train.tfrecord-00000-of-00001").write_bytes(record(example(episode)))
    trajectory = opened(folder, fields={"camera": []})["train/000000"]
    assert trajectory.actions[:].tolist() == [[7, 0, 1, 2], [8, 3, 4, 5], [9, 6, 7, 8]]


def test_an_episode_is_found_without_reading_the_shard(tmp_path: Path, cache: Path) -> None:
    folder = tmp_path / "1.0.0"
    write_rlds(folder, ((4, 5, 6),))
    shard = folder / "droid-train.tfrecord-00000-of-00001"
    opened(folder)["train/000000"]
    (stored,) = (cache / "tfrecord-index").iterdir()
    index = np.fromfile(stored, "<i8").reshape(-1, 2)
    np.testing.assert_array_equal(index, build_index(shard))
    # Everything before the third record may be unreadable: it is not looked at again.
    data = bytearray(shard.read_bytes())
    stat = shard.stat()
    data[: index[2][0] - 12] = bytes(index[2][0] - 12)
    shard.write_bytes(data)
    os.utime(shard, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert opened(folder)["train/000002"].length == 6
    os.utime(shard)  # a changed file: the index is made again, and now the damage is met
    with pytest.raises(StrapError, match=r"record 0 .*checksum of its length is wrong"):
        opened(folder)["train/000002"]


def test_an_unwritable_cache_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STRAP_CACHE", str(tmp_path / "file"))
    write_rlds(tmp_path / "1.0.0")
    assert opened(tmp_path / "1.0.0")["train/000001"].length == 6


def test_shards_by_name_without_dataset_info(tmp_path: Path) -> None:
    folder = tmp_path / "1.0.0"
    write_rlds(folder)
    (folder / "dataset_info.json").unlink()
    assert list(opened(folder).ids) == ["train/000000", "train/000001", "train/000002"]


def test_a_missing_shard(tmp_path: Path) -> None:
    folder = tmp_path / "1.0.0"
    write_rlds(folder)
    (folder / "droid-train.tfrecord-00000-of-00002").unlink()
    dataset = opened(folder)
    with pytest.raises(StrapError, match=r"missing shard .*00000-of-00002"):
        dataset["train/000001"]
    left = opened(folder, missing="skip")
    assert list(left.ids) == ["train/000002"]
    assert list(left.reader.skipped) == ["train/000000", "train/000001"]
    assert "train/000000" not in left.ids
    assert "skipped 2 of 3" in left.reader.summary
    assert left["train/000002"].length == 5


def test_ids_are_a_sequence(tmp_path: Path) -> None:
    folder = tmp_path / "1.0.0"
    write_rlds(folder, ((1, 1), (), (1, 1, 1)))
    write_rlds(tmp_path / "val", ((1,),), split="val")
    info = json.loads((folder / "dataset_info.json").read_text())
    info["splits"] += json.loads((tmp_path / "val/dataset_info.json").read_text())["splits"]
    (folder / "dataset_info.json").write_text(json.dumps(info))
    shutil.copy(tmp_path / "val/droid-val.tfrecord-00000-of-00001", folder)
    ids = opened(folder).ids
    expected = [*(f"train/{i:06d}" for i in range(5)), "val/000000"]
    assert list(ids) == expected
    assert [ids[i] for i in range(-6, 6)] == expected * 2
    assert list(ids[1:6:2]) == expected[1:6:2]
    assert all(name in ids for name in expected)
    assert all(name not in ids for name in ("train/000005", "train/1", "val/000001", "", 3))
    with pytest.raises(IndexError):
        ids[6]
    read_everything(folder)


# --- checksums and parsing ---------------------------------------------------------------------


def test_checksum_is_the_published_one() -> None:
    assert (
        masked_crc(b"123456789") == (((0xE3069283 >> 15) | (0xE3069283 << 17)) + 0xA282EAD8) % 2**32
    )
    data = np.random.default_rng(0).bytes(1000)
    assert masked_crc(data) == writers.masked_crc(data)


@given(
    floats=st.lists(st.floats(width=32, allow_nan=False), max_size=20),
    ints=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20),
    texts=st.lists(st.binary(max_size=300), max_size=5),
)
@settings(max_examples=60, deadline=None)
def test_parsing_gives_back_what_was_encoded(
    floats: list[float], ints: list[int], texts: list[bytes]
) -> None:
    data = example({"f": np.array(floats, np.float32), "i": np.array(ints, np.int64), "b": texts})
    parsed = parse(data)
    np.testing.assert_array_equal(parsed.numbers("f"), np.array(floats, np.float32))
    np.testing.assert_array_equal(parsed.numbers("i"), np.array(ints, np.int64))
    assert parsed.texts("b") == texts


def test_lists_that_are_not_packed() -> None:
    """protobuf 2 writers repeat the tag before every value."""
    floats = b"".join(b"\x0d" + np.float32(v).tobytes() for v in (1.5, -2))
    ints = b"".join(b"\x08" + varint(v) for v in (3, 300, -1))
    entries = {"f": writers._field(2, floats), "i": writers._field(3, ints)}
    features = b"".join(
        writers._field(1, writers._field(1, k.encode()) + writers._field(2, v))
        for k, v in entries.items()
    )
    parsed = parse(writers._field(1, features))
    assert parsed.numbers("f").tolist() == [1.5, -2]
    assert parsed.numbers("i").tolist() == [3, 300, -1]


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_parse_or_raise_value_error(data: bytes) -> None:
    try:
        parsed = parse(data)
        for name in parsed.spans:
            parsed.value_spans(name)
            parsed.numbers(name)
    except ValueError:
        pass


# --- bad input ---------------------------------------------------------------------------------


def read_everything(folder: Path) -> None:
    for trajectory in opened(folder):
        for array in (
            trajectory.actions,
            *trajectory.cameras.values(),
            *trajectory.proprioception.values(),
            *trajectory.extras.values(),
        ):
            array[:]


@pytest.mark.parametrize(
    "file", ["features.json", "dataset_info.json", "droid-train.tfrecord-00000-of-00002"]
)
def test_truncated_at_ten_places(tmp_path: Path, file: str) -> None:
    write_rlds(tmp_path / "sound")
    whole = (tmp_path / "sound" / file).read_bytes()
    for place in random.Random(file).sample(range(1, len(whole) - 1), 10):
        folder = Path(shutil.copytree(tmp_path / "sound", tmp_path / str(place)))
        (folder / file).write_bytes(whole[:place])
        with pytest.raises(StrapError, match=str(folder / file)):
            read_everything(folder)


def test_flipped_bits_are_noticed(tmp_path: Path) -> None:
    write_rlds(tmp_path / "sound")
    file = "droid-train.tfrecord-00000-of-00002"
    whole = (tmp_path / "sound" / file).read_bytes()
    for place in random.Random(1).sample(range(len(whole)), 10):
        folder = Path(shutil.copytree(tmp_path / "sound", tmp_path / str(place)))
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        (folder / file).write_bytes(damaged)
        with pytest.raises(StrapError, match=r"00000-of-00002', record \d.*checksum"):
            read_everything(folder)


def test_records_that_do_not_fit_the_description(tmp_path: Path) -> None:
    folder = tmp_path / "1.0.0"
    write_rlds(folder)
    text = (folder / "features.json").read_text()
    (folder / "features.json").write_text(text.replace('["7"]', '["9"]'))
    with pytest.raises(
        StrapError, match=r"train/000000 .*'steps/action' has 28 values, but shape \[4, 9\] needs"
    ):
        opened(folder)["train/000000"].actions[:]
    (folder / "features.json").write_text(text.replace('["48", "64", "3"]', '["32", "64", "3"]'))
    with pytest.raises(StrapError, match=r"frame 0: the image is \[48, 64, 3\]"):
        opened(folder)["train/000000"].frames("wrist_image_left")
    (folder / "features.json").write_text(text.replace('"reward"', '"profit"'))
    with pytest.raises(StrapError, match=r"has no 'steps/profit', which features.json lists"):
        opened(folder)["train/000000"].extras["profit"][:]


def test_fewer_records_than_promised(tmp_path: Path) -> None:
    folder = tmp_path / "1.0.0"
    write_rlds(folder)
    shard = folder / "droid-train.tfrecord-00000-of-00002"
    first = record_index(shard)[0]
    shard.write_bytes(shard.read_bytes()[: int(first.sum()) + 4])
    with pytest.raises(StrapError, match="has 1 records, but record 1 was requested"):
        read_record(shard, 1)
    with pytest.raises(StrapError, match=r"has 1 records, dataset_info.json promises 2"):
        read_everything(folder)


def test_more_records_than_promised(tmp_path: Path) -> None:
    folder = tmp_path / "1.0.0"
    write_rlds(folder)
    shard = folder / "droid-train.tfrecord-00001-of-00002"
    shard.write_bytes(shard.read_bytes() * 2)
    with pytest.raises(
        StrapError, match=r"has 2 records, dataset_info.json promises 1: they are of"
    ):
        read_everything(folder)


def test_not_rlds(tmp_path: Path) -> None:
    with pytest.raises(StrapError, match="holds no RLDS dataset"):
        opened(tmp_path)
    (tmp_path / "features.json").write_text(json.dumps(writers._dict(x=writers._tensor("float32"))))
    with pytest.raises(StrapError, match="has no sequence 'steps'"):
        opened(tmp_path)
