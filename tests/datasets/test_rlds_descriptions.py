"""RLDS descriptions that somebody forged: each is refused by name, and none asks for much."""

from __future__ import annotations

import copy
import json
import os
import random
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.datasets import writers
from tests.datasets.forging import (
    SHARD,
    Json,
    change,
    forge_field,
    forge_info,
    forge_split,
    read_all,
    write_episode,
)
from tests.datasets.writers import write_rlds

import strap
from strap.datasets.untrusted import MAX_TRAJECTORIES
from strap.errors import StrapError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STRAP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_rlds(tmp_path / "droid/1.0.0")
    return tmp_path / "droid/1.0.0"


# --- names of shards ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "template",
    ["../stolen", "/{DATASET}", "a/../../stolen", "file:///etc/passwd", "C:\\stolen", "a\0b"],
)
def test_a_template_that_leaves_the_folder_is_refused(folder: Path, template: str) -> None:
    (folder.parent / "stolen").write_bytes((folder / SHARD).read_bytes())
    forge_split(folder, filepathTemplate=template, shardLengths=["2"])
    with pytest.raises(
        StrapError, match=r"dataset_info.json' names the file .*outside the dataset's"
    ):
        read_all(folder)


def test_names_that_leave_the_folder_are_refused(folder: Path) -> None:
    forge_info(folder, name="../../droid")
    with pytest.raises(
        StrapError, match=r"names the file '../../droid-train.*outside the dataset's"
    ):
        read_all(folder)
    forge_info(folder, name="droid")
    forge_split(folder, name="../train", filepathTemplate="{SPLIT}-{SHARD_X_OF_Y}")
    with pytest.raises(StrapError, match=r"names the file '../train-00000.*outside the dataset's"):
        read_all(folder)
    forge_info(folder, fileFormat="../tfrecord")
    with pytest.raises(StrapError, match=r"'fileFormat' is '../tfrecord', expected 'tfrecord'"):
        read_all(folder)


def test_names_are_filled_in_once_and_stay_short(folder: Path) -> None:
    forge_info(folder, name="{SPLIT}" * 30)
    forge_split(folder, filepathTemplate="{DATASET}" * 6)
    with pytest.raises(StrapError, match="expected file names of at most 1024 characters"):
        read_all(folder)
    forge_split(folder, filepathTemplate="x" * 1025)
    with pytest.raises(StrapError, match=r"'filepathTemplate' is 'xxx.*at most 1024 characters"):
        read_all(folder)


def test_a_shard_or_split_listed_twice_is_refused(folder: Path) -> None:
    forge_split(folder, filepathTemplate=SHARD)
    with pytest.raises(StrapError, match=f"lists the shard '.*{SHARD}' twice"):
        read_all(folder)
    change(folder / "dataset_info.json", lambda info: info["splits"].append(info["splits"][0]))
    with pytest.raises(StrapError, match="lists the split 'train' twice"):
        read_all(folder)


def test_a_split_without_lengths_is_read_from_its_files(folder: Path) -> None:
    forge_split(folder, shardLengths=[])
    assert list(read_all(folder).ids) == ["train/000000", "train/000001", "train/000002"]


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_a_shard_that_is_no_file(folder: Path, kind: str) -> None:
    (folder / SHARD).unlink()
    (folder / SHARD).mkdir() if kind == "folder" else os.mkfifo(folder / SHARD)
    (folder / "dataset_info.json").unlink()
    with pytest.raises(StrapError, match=f"'{folder / SHARD}' is not a file of records"):
        read_all(folder)


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_a_description_that_is_no_file(folder: Path, kind: str) -> None:
    info = folder / "dataset_info.json"
    info.unlink()
    if kind == "folder":
        info.mkdir()
    elif kind == "pipe":
        os.mkfifo(info)
    else:
        info.symlink_to(info)
    with pytest.raises(StrapError, match=f"'{info}'.*(is not a file|Too many levels)"):
        read_all(folder)


def test_an_empty_shard_that_no_description_tells_of(folder: Path) -> None:
    (folder / "dataset_info.json").unlink()
    (folder / SHARD).write_bytes(b"")
    with pytest.raises(StrapError, match=f"{SHARD}' is empty; download it again"):
        read_all(folder)


# --- declared sizes ----------------------------------------------------------------------------


def test_a_billion_episodes_in_a_small_shard(folder: Path) -> None:
    forge_split(folder, shardLengths=["1000000000", "1"])
    with pytest.raises(StrapError, match=r"declares 1,000,000,001 episodes; at most 10,000,000"):
        read_all(folder)
    forge_split(folder, shardLengths=["5000000", "1"])
    with pytest.raises(
        StrapError, match=f"{SHARD}' has .* bytes, too few for the 5,000,000 records"
    ):
        read_all(folder)


def test_no_episode_in_a_shard_with_records(folder: Path) -> None:
    forge_split(folder, shardLengths=["0", "1"])
    with pytest.raises(
        StrapError, match=f"{SHARD}' has .* bytes, but dataset_info.json promises no"
    ):
        read_all(folder)


@pytest.mark.parametrize("missing", ["error", "skip"])
def test_a_billion_episodes_in_a_missing_shard(folder: Path, missing: str) -> None:
    (folder / SHARD).unlink()
    forge_split(folder, shardLengths=[str(MAX_TRAJECTORIES), "1"])
    with pytest.raises(StrapError, match=r"declares 10,000,001 episodes"):
        read_all(folder, missing=missing)


def test_many_episodes_in_a_missing_shard_are_not_listed(folder: Path) -> None:
    (folder / SHARD).unlink()
    forge_split(folder, shardLengths=[str(MAX_TRAJECTORIES - 1), "1"])
    tracemalloc.start()
    try:
        dataset = strap.open_dataset(folder)
        assert len(dataset) == MAX_TRAJECTORIES
        assert dataset.ids[-1] == "train/9999999"
        assert dataset["train/9999999"].length == 5
        with pytest.raises(StrapError, match=f"missing shard .*{SHARD}"):
            next(iter(dataset))
        with pytest.warns(UserWarning, match="skipped 9999999 of 10000000 episodes"):
            assert len(strap.open_dataset(folder, missing="skip")) == 1
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "length",
    [-1, "-1", True, False, 1.0, 1e300, "1e3", "x", "", "٣", " 1", "1_0", None, [1], {}, 2**63]
    + ["9" * 30],
)
def test_lengths_that_are_none(folder: Path, length: Json) -> None:
    forge_split(folder, shardLengths=[length, "1"])
    with pytest.raises(
        StrapError,
        match=r"'shardLengths' of split 'train' is .*expected a whole number of 0 or more",
    ):
        read_all(folder)


def test_lengths_may_be_numbers(folder: Path) -> None:
    forge_split(folder, shardLengths=[2, "1"])
    assert len(read_all(folder)) == 3


def test_more_shards_or_splits_than_any_dataset_has(folder: Path) -> None:
    forge_split(folder, shardLengths=[0] * 100_001)
    with pytest.raises(StrapError, match="declares 100,001 shards; at most 100,000"):
        read_all(folder)
    forge_info(folder, splits=[{"name": str(i)} for i in range(1001)])
    with pytest.raises(StrapError, match="declares 1,001 splits; at most 1,000"):
        read_all(folder)


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        (writers._tensor("float32", 10**9), "declares 8,000,000,000 bytes per step of 'count'"),
        (writers._tensor("int64", 2**40, 2**40), "bytes per step of 'count'; at most"),
        (writers._tensor("float32", *[1] * 17), "declares 17 dimensions of 'count'; at most 16"),
        (writers._tensor("float32", -2), "the shape of 'count' is '-2', expected .* -1 or more"),
        (writers._image(100_000, 100_000, 3), "10,000,000,000 pixels per image of 'count'"),
        (
            writers._image(0, 64, 3),
            r"the shape of 'count' is \[0, 64, 3\], expected .height, width",
        ),
        (writers._image(48, 64), "the shape of 'count' is .*expected .height, width, 1 to 4"),
        (writers._image(48, 64, 9), "the shape of 'count' is .*expected .height, width, 1 to 4"),
        (
            {"image": {"dtype": "u-nt8", "shape": {"dimensions": ["1", "1", "3"]}}},
            "the dtype of 'count' is 'u-nt8', expected one of uint8, uint16",
        ),
        (writers._tensor("S1000000000"), "the dtype of 'count' is 'S1000000000', expected one of"),
        (writers._tensor("O"), "the dtype of 'count' is 'O', expected one of bool, int8"),
        (writers._tensor("f4,f4"), "the dtype of 'count' is 'f4,f4', expected one of"),
    ],
)
def test_shapes_and_dtypes_that_ask_for_too_much(folder: Path, feature: Json, message: str) -> None:
    forge_field(folder, "count", feature)
    with pytest.raises(StrapError, match=f"features.json'.*{message}"):
        read_all(folder)


# --- types and nesting of the two descriptions -------------------------------------------------

VALUES: tuple[Json, ...] = (
    *(None, True, 0, -1, 1e300, 10**18, "", "x", "\ud800", "a\x1b[2J", [], [1], [[]], {}, {"a": 1}),
    *({"featuresDict": 1}, {"featuresDict": {"features": []}}, {"sequence": {"feature": None}}),
)


def places(node: Json, path: tuple[Json, ...] = ()) -> Iterator[tuple[Json, ...]]:
    yield path
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, child in items if isinstance(node, dict | list) else ():
        yield from places(child, (*path, key))


def replaced(content: Json, path: tuple[Json, ...], value: Json) -> Json:
    if not path:
        return value
    changed = copy.deepcopy(content)
    node = changed
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return changed


@pytest.mark.parametrize("name", ["features.json", "dataset_info.json"])
def test_any_value_at_any_place_is_read_or_refused(tmp_path: Path, name: str) -> None:
    """Whatever replaces a value: the dataset is read, or a `StrapError` says what is wrong."""
    folder = tmp_path / "droid/1.0.0"
    write_rlds(folder, ((1,),), size=(8, 12))
    content = json.loads((folder / name).read_text())
    errors: list[str] = []
    draw = random.Random(name)
    for path in places(content):
        for value in draw.sample(VALUES, 6):
            (folder / name).write_text(json.dumps(replaced(content, path, value)))
            try:
                read_all(folder)
            except StrapError as error:
                errors.append(str(error))
    assert len(errors) > (200 if name == "features.json" else 20)
    assert [e for e in errors if str(folder) not in e or len(e) > 1000] == []


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("featuresDict",), [], "its content is not a FeaturesDict"),
        (("featuresDict", "features", "steps"), 3, "'steps' is 3, expected an object"),
        (("featuresDict", "features", "x"), None, "feature 'x' is None, expected an object"),
        (("featuresDict", "features", "x"), {"imag": {}}, "the description of feature 'x' is"),
        (("featuresDict", "features", ""), {"text": {}}, "the name of a feature is ''"),
        (("featuresDict", "features", "x"), {"image": 1}, "'image' of 'x' is 1, expected an obj"),
        (
            ("featuresDict", "features", "x"),
            {"tensor": {"shape": {"dimensions": 3}}},
            "the shape of 'x' is 3, expected a list",
        ),
        (
            ("featuresDict", "features", "x"),
            {"tensor": {"dtype": "int64", "encoding": "gzip"}},
            "the encoding of 'x' is 'gzip', expected none, bytes or zlib",
        ),
        (
            ("featuresDict", "features", "x"),
            {"tensor": {"dtype": 7}},
            "the dtype of 'x' is 7, expected a text",
        ),
        (
            ("featuresDict", "features", "x"),
            {"tensor": {}},
            "the dtype of 'x' is '', expected one of bool",
        ),
        (
            ("featuresDict", "features", "x"),
            {"sequence": 3},
            "'sequence' of 'x' is 3, expected an object",
        ),
        (
            ("featuresDict", "features", "x"),
            {"featuresDict": {"feature": {}}},
            "feature 'x' is not a FeaturesDict",
        ),
    ],
)
def test_features_of_a_wrong_type(
    folder: Path, path: tuple[str, ...], value: Json, message: str
) -> None:
    file = folder / "features.json"
    file.write_text(json.dumps(replaced(json.loads(file.read_text()), path, value)))
    with pytest.raises(StrapError, match=f"'{file}'.*{message}"):
        read_all(folder)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": 7}, "'name' is 7, expected a text"),
        ({"name": "x" * 256}, "'name' is 'xxx.*expected a name of 1 to 255 characters"),
        ({"name": "\ud800"}, "'name' is .*expected a text"),
        ({"splits": {}}, "'splits' is {}, expected a list"),
        ({"splits": [7]}, "split 0 is 7, expected an object"),
        ({"splits": [{}]}, "the name of a split is None, expected a text"),
        ({"splits": [{"name": "a", "shardLengths": "12"}]}, "'shardLengths' of split 'a' is '12'"),
        (
            {"splits": [{"name": "a", "shardLengths": [1], "filepathTemplate": 3}]},
            "'filepathTemplate' of split 'a' is 3, expected a text",
        ),
        ({"fileFormat": "riegeli"}, "'fileFormat' is 'riegeli', expected 'tfrecord', the only"),
        ({"fileFormat": ["tfrecord"]}, "'fileFormat' is .'tfrecord'., expected a text"),
    ],
)
def test_dataset_info_of_a_wrong_type(folder: Path, values: Json, message: str) -> None:
    forge_info(folder, **values)
    with pytest.raises(StrapError, match=f"'{folder / 'dataset_info.json'}': {message}"):
        read_all(folder)


@pytest.mark.parametrize("name", ["features.json", "dataset_info.json"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000 + "]" * 100_000, "as JSON .RecursionError"),
        ("", "as JSON"),
        ("[1]", r"its content is \[1\], expected an object"),
        ('{"a": ' + "9" * 5000 + "}", "as JSON .ValueError"),
        ("\xff\xfe{", "as JSON"),
        (" " * (1 << 24) + "{}", "declares 16,777,218 bytes of JSON; at most 16,777,216"),
    ],
    ids=["deep", "empty", "list", "digits", "encoding", "huge"],
)
def test_descriptions_that_are_no_object(folder: Path, name: str, text: str, message: str) -> None:
    (folder / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(StrapError, match=f"'{folder / name}'.*{message}"):
        read_all(folder)


def test_features_nested_without_end(folder: Path) -> None:
    nested: Json = {"text": {}}
    for _ in range(100):
        nested = {"featuresDict": {"features": {"x": nested}}}
    forge_field(folder, "x", nested)
    with pytest.raises(StrapError, match=r"features.json' declares 33 levels of features"):
        read_all(folder)


def test_a_feature_at_one_place_twice(folder: Path) -> None:
    forge_field(folder, "observation/wrist_image_left", writers._tensor("float32"))
    with pytest.raises(StrapError, match="feature 'observation/wrist_image_left' occurs twice"):
        read_all(folder)


def test_an_encoded_field_is_left_out_unread(folder: Path) -> None:
    """A zlib bomb in a field that is stored with an encoding is never unpacked."""
    encoded = writers._tensor("float32", 1000)
    encoded["tensor"]["encoding"] = "zlib"
    forge_field(folder, "bomb", encoded)
    change(
        folder / "features.json",
        lambda content: content["featuresDict"]["features"].update({"once": encoded}),
    )
    bomb = zlib.compress(bytes(10_000_000), 9)
    write_episode(folder, {"steps/bomb": [bomb] * 4, "once": [bomb]})
    (trajectory,) = list(read_all(folder))
    assert "bomb" not in trajectory.extras
    assert "once" not in trajectory.attributes


def test_a_field_without_values_is_left_out(folder: Path) -> None:
    forge_field(folder, "nothing", writers._tensor("float32", 0))
    write_episode(folder, {"steps/nothing": np.empty(0, np.float32)})
    (trajectory,) = list(read_all(folder))
    assert "nothing" not in trajectory.extras
