"""RLDS records that somebody forged: right checksums, wrong lengths, places and structure."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from tests.datasets import writers
from tests.datasets.forging import (
    ONE,
    SHARD,
    change,
    forge_field,
    forge_split,
    read_all,
    write_episode,
    write_record,
)
from tests.datasets.writers import record, varint, write_rlds

import strap
from strap.datasets.rlds.records import build_index, masked_crc, read_record
from strap.errors import StrapError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STRAP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_rlds(tmp_path / "droid/1.0.0")
    return tmp_path / "droid/1.0.0"


# --- records and the index of a shard ----------------------------------------------------------


@pytest.mark.parametrize("length", [2**64 - 1, 2**62, 2**31, 10**6])
def test_a_record_whose_header_lies(folder: Path, length: int) -> None:
    forge_split(folder, shardLengths=["1"])
    packed = struct.pack("<Q", length)
    header = packed + struct.pack("<I", masked_crc(packed))
    (folder / ONE).write_bytes(header + bytes(100))
    stated = f"record 0 .* states {length:,} bytes; a record has at most 2,147,483,647"
    message = stated if length >= 2**31 else "ends in the middle of record 0"
    with pytest.raises(StrapError, match=f"{ONE}'.*{message}"):
        read_all(folder)


def test_a_shard_of_nothing_but_headers(folder: Path) -> None:
    forge_split(folder, shardLengths=["1000"])
    (folder / ONE).write_bytes(record(b"") * 1000)
    with pytest.raises(StrapError, match=f"{ONE}', train/000000 .*the record is empty"):
        read_all(folder)


def kept_index(cache: Path) -> Path:
    (file,) = (cache / "tfrecord-index").iterdir()
    return file


def forget() -> None:
    """A new process has nothing in memory."""
    from strap.datasets.rlds import episodes, records

    records._cached_index.cache_clear()
    episodes._records._examples.clear()


def test_a_forged_index_is_made_again(folder: Path, cache: Path) -> None:
    forge_split(folder, shardLengths=["2", "1"])
    shard = folder / SHARD
    sound = build_index(shard)
    first = read_record(shard, 0)
    read_record(shard, 1)
    file = kept_index(cache)
    assert np.fromfile(file, "<i8").reshape(-1, 2).tolist() == sound.tolist()
    size = shard.stat().st_size
    merged = [[12, size - 16]]
    shifted = [[12, int(sound[0][1]) - 8], [int(sound[1][0]) - 8, int(sound[1][1]) + 8]]
    for forged in (
        np.array([[12, 2**62]]),
        np.array([[-(2**62), 2**62]]),
        np.array([[12, -1], [0, 5]]),
        sound + 1,
        sound[:1],
        np.array(merged),
        np.array(shifted),
        np.empty((0, 2), np.int64),
    ):
        file.write_bytes(forged.astype("<i8").tobytes())
        forget()
        assert read_record(shard, 0) == first
        assert len(read_record(shard, 1)) == sound[1][1]
        assert np.fromfile(file, "<i8").reshape(-1, 2).tolist() == sound.tolist()
    for data in (b"", b"x" * 17, b"\x93NUMPY" + bytes(100), bytes(size * 2)):
        file.write_bytes(data)
        forget()
        assert read_record(shard, 0) == first


def test_a_kept_index_follows_no_link(folder: Path, cache: Path, tmp_path: Path) -> None:
    shard = folder / SHARD
    first = read_record(shard, 0)
    file = kept_index(cache)
    data = file.read_bytes()
    target = tmp_path / "target"
    target.write_bytes(b"somebody's")
    file.unlink()
    file.symlink_to(target)
    forget()
    assert read_record(shard, 0) == first
    assert target.read_bytes() == b"somebody's"
    assert not file.is_symlink()
    assert file.read_bytes() == data
    file.unlink()
    os.mkfifo(file)
    forget()
    assert read_record(shard, 0) == first
    assert list(file.parent.iterdir()) == [file]  # no temporary file is left


# --- records whose checksum is right and whose structure is not ---------------------------------


def entry(name: bytes, value: bytes) -> bytes:
    return writers._field(1, writers._field(1, name) + writers._field(2, value))


def floats(*values: float) -> bytes:
    return writers.feature(np.array(values, np.float32))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the record is empty"),
        (b"\x00" * 40, "a field has wire type 0, expected a message"),
        (b"no example at all", "a field has wire type 6"),
        (b"\xff" * 40, "a variable-length number does not end"),
        (writers._field(2, b""), "the record is not a tf.train.Example"),
        (writers._field(1, b""), "the record holds no features"),
        (writers._field(1, b"") * 2, "the record is not a tf.train.Example"),
        (writers._field(1, entry(b"a", b"") * 2), "the record holds the feature 'a' twice"),
        (writers._field(1, entry(b"\xff", b"")), "'utf-8' codec can't decode"),
        (writers._field(1, b"\x12\x00"), "a list holds something other than values"),
        (writers._field(1, b"\x0a\x7f"), "a field extends past the end of its message"),
        (writers._field(1, b"\x0a" + varint(2**62)), "extends past the end of its message"),
        (writers._field(1, writers._field(1, b"")), "lacks its name or its feature"),
        (
            writers._field(1, writers._field(1, writers._field(1, b"a") * 2)),
            "an entry of the record's map is not a name with a feature",
        ),
        (
            writers._field(1, entry(b"a", b"") * 100_001),
            "a list holds more than 100,000 values",
        ),
    ],
)
def test_records_that_are_no_example(folder: Path, data: bytes, message: str) -> None:
    write_record(folder, data)
    with pytest.raises(
        StrapError, match=f"{ONE}', train/000000 .record 0. cannot be parsed: .*{message}"
    ):
        read_all(folder)


LEFT, WRIST = "steps/observation/exterior_image_1_left", "steps/observation/wrist_image_left"


def packed(kind: int, data: bytes) -> bytes:
    return writers._field(kind, writers._field(1, data))


def unpacked(kind: int, data: bytes) -> bytes:
    return writers._field(kind, data)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("steps/action", b"\x22\x00", "is not a list of bytes, floats or integers"),
        ("steps/action", floats(1) * 2, "is not a list of bytes, floats or integers"),
        (
            "steps/action",
            packed(2, bytes(7)),
            "the size of a list of floats is not a multiple of 4",
        ),
        ("steps/action", unpacked(2, b"\x0d\0\0"), "a list of floats holds something"),
        ("steps/action", unpacked(2, b"\x09" + bytes(9)), "a list of floats holds something"),
        ("steps/action", packed(1, b"text"), "holds bytes, not numbers"),
        ("steps/action", b"", r"'steps/action' has 0 values, but shape \[4, 7\] needs 28"),
        (
            "steps/action",
            floats(*range(29)),
            r"'steps/action' has 29 values, but shape \[4, 7\] needs 28",
        ),
        ("steps/action", packed(3, bytes(28)), "holds int64 values that do not fit into float64"),
        ("steps/count", packed(3, b"\xff" * 4), "a list of integers ends inside a number"),
        ("steps/count", packed(3, b"\0" * 5), r"has 5 values, but shape \[4\] needs 4"),
        ("steps/count", packed(3, b"\0" * 3 + b"\xff" * 30 + b"\0"), "number does not end"),
        ("steps/count", unpacked(3, b"\x08\x01\x08"), "a list of integers holds something"),
        ("steps/count", unpacked(3, b"\x10\x01" * 4), "a list of integers holds something"),
        ("steps/count", floats(1, 2, 3, 4), "holds float32 values that do not fit into int64"),
        ("steps/is_last", packed(3, b"\0\0\0\x02"), "holds int64 values that do not fit into bool"),
        ("steps/is_last", packed(3, b""), r"'steps/is_last' has 0 values, but shape \[4\] needs 4"),
        (LEFT, floats(1), "holds numbers, not bytes"),
        (LEFT, packed(1, b"\xff\xd8\xff"), "has 4 texts for 1 steps"),
        (LEFT, writers.feature([b"GIF89a"] * 4), "frame 0: cannot decode.*neither JPEG nor PNG"),
        (LEFT, b"", "has 4 texts for 0 steps"),
        (WRIST, packed(1, b"\xff\xd8\xff"), "has 1 images for 4 steps"),
        (
            LEFT,
            writers._field(1, b"\x0a\x00" * ((1 << 20) + 1)),
            "a list holds more than 1,048,576 values",
        ),
        ("steps/language_instruction_2", packed(1, b"x"), "has 1 texts for 4 steps"),
        ("steps/language_instruction_2", floats(1), "holds numbers, not bytes"),
        ("episode_metadata/file_path", floats(1), "holds numbers, not bytes"),
        ("episode_metadata/file_path", b"", "has 0 texts for one episode"),
    ],
)
def test_features_whose_values_do_not_fit(
    folder: Path, name: str, value: bytes, message: str
) -> None:
    features = writers._droid_episode(3, 4, writers.SIZE)
    entries = {k.encode(): writers.feature(v) for k, v in features.items()} | {name.encode(): value}
    write_record(folder, writers._field(1, b"".join(entry(k, v) for k, v in entries.items())))
    with pytest.raises(StrapError, match=f"{ONE}', train/000000 .*{message}"):
        read_all(folder)


@pytest.mark.parametrize(
    "name",
    [
        *("steps/action", "steps/reward", "steps/language_instruction_2", LEFT),
        "episode_metadata/file_path",
    ],
)
def test_a_record_without_a_described_feature(folder: Path, name: str) -> None:
    write_episode(folder, {name: None})
    with pytest.raises(StrapError, match=f"{ONE}', .* has no '{name}', which features.json lists"):
        read_all(folder)


@pytest.mark.parametrize(
    ("dtype", "values", "fits"),
    [
        ("uint8", [0, 255, 1, 2], True),
        ("uint8", [0, 256, 1, 2], False),
        ("int8", [-129, 0, 0, 0], False),
        ("uint16", [-1, 0, 0, 0], False),
        ("uint64", [-1, 0, 1, 2], True),
        ("float16", [65504.0, np.inf, np.nan, -1], True),
        ("float16", [1e6, 0, 0, 0], False),
        ("bfloat16", [1e6, 0, 0, 0], True),
    ],
)
def test_values_keep_their_dtype(folder: Path, dtype: str, values: list[float], fits: bool) -> None:
    forge_field(folder, "count", writers._tensor(dtype))
    write_episode(folder, {"steps/count": np.array(values)})
    if not fits:
        with pytest.raises(
            StrapError, match=f"'steps/count' holds .* values that do not fit into {dtype}"
        ):
            read_all(folder)
        return
    (trajectory,) = list(read_all(folder))
    expected = np.array(values).astype("float32" if dtype == "bfloat16" else dtype)
    np.testing.assert_array_equal(trajectory.extras["count"][:], expected)


def test_a_value_stored_once_is_one_value(folder: Path) -> None:
    scalar = writers._tensor("float32")
    change(
        folder / "features.json",
        lambda content: content["featuresDict"]["features"].update({"once": scalar}),
    )
    write_episode(folder, {"once": np.array([1.5], np.float32)})
    assert next(iter(read_all(folder))).attributes["once"] == 1.5
    write_episode(folder, {"once": np.array([1.5, 2], np.float32)})
    with pytest.raises(StrapError, match=r"'once' has 2 values, but shape \[1\] needs 1"):
        read_all(folder)


# --- ids ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["train/000003", "train/3", "train/²", "train/٣", "train/-00001", f"train/{'9' * 5000}"]
    + ["val/000000", "train", "", "/", "train/"],
)
def test_only_an_unknown_id_is_an_unknown_trajectory(folder: Path, name: str) -> None:
    dataset = strap.open_dataset(folder)
    with pytest.raises(StrapError, match=f"unknown trajectory '{re.escape(name)}'"):
        dataset[name]
    with pytest.raises(KeyError):
        dataset.reader.read(name)


def test_a_damaged_record_is_no_unknown_trajectory(folder: Path) -> None:
    write_record(folder, b"\xff" * 40)
    with pytest.raises(StrapError, match=r"train/000000 .record 0. cannot be parsed"):
        strap.open_dataset(folder).reader.read("train/000000")
