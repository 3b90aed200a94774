"""LeRobot datasets of somebody else: every value of meta/ of a wrong kind is named."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.datasets.lerobot_damage import (
    DATA,
    EPISODES,
    INFO,
    TASKS,
    Change,
    column,
    edit_info,
    edit_table,
    first,
    read_all,
)

import strap
from strap.datasets.lerobot import episodes as episode_lists
from strap.datasets.lerobot import parquet
from strap.datasets.lerobot.layout import MAX_INFO_BYTES
from strap.errors import StrapError

ACTION, CAMERA = "features|action", "features|observation.images.front"
KEY = "videos/observation.images.front"
NUMBERS = "it must be whole numbers"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("features", [], "has no 'features'"),
        ("features", "x", "has no 'features'"),
        (ACTION, None, "feature 'action' lacks a dtype or shape"),
        (ACTION, [1], "feature 'action' lacks a dtype or shape"),
        (ACTION, {"dtype": "float32"}, "feature 'action' lacks a dtype or shape"),
        (f"{ACTION}|dtype", 3, "dtype is 3; it must be a text"),
        (f"{ACTION}|dtype", None, "dtype is None; it must be a text"),
        (f"{ACTION}|dtype", "(3,)f8", "no feature 'action'"),
        (f"{ACTION}|dtype", "int64", r"'action' is .* in a frame, which does not fit into int64"),
        (f"{ACTION}|dtype", "bool", r"'action' is .* in a frame, which does not fit into bool"),
        (f"{ACTION}|shape", 3, "shape is 3; it must be a list"),
        (f"{ACTION}|shape", "3", "shape is '3'; it must be a list"),
        (f"{ACTION}|shape", ["3"], "a size in shape is '3'; it must be a whole number"),
        (f"{ACTION}|shape", [True], "a size in shape is True; it must be a whole number"),
        (f"{ACTION}|shape", [-3], "a size in shape is -3; it must be a whole number of 0"),
        (f"{ACTION}|shape", [2.5], "a size in shape is 2.5; it must be a whole number"),
        (f"{ACTION}|shape", [None], "a size in shape is None"),
        (f"{ACTION}|shape", [1] * 20, "it must be a list of sizes"),
        (f"{ACTION}|shape", [10**6, 10**6], "bytes per frame in 'action'; at most"),
        (f"{ACTION}|shape", [10**30], "a size in shape is 1000.* it must be a whole number"),
        (
            f"{CAMERA}|shape",
            [20_000, 20_000, 3],
            "400,000,000 pixels in 'observation.images.front'",
        ),
        (f"{CAMERA}|shape", [0, 64, 3], r"it must be \[height, width, channels\]"),
        (f"{CAMERA}|info", 3, "info is 3; it must be an object"),
        (f"{CAMERA}|info", {"is_depth_map": "no"}, "is_depth_map is 'no'; it must be true or"),
        ("fps", True, "fps is True; it must be a positive number"),
        ("fps", float("nan"), "fps is nan; it must be a positive number"),
        ("fps", float("inf"), "fps is inf; it must be a positive number"),
        ("fps", "10", "fps is '10'; it must be a positive number"),
        ("fps", None, "fps is None; it must be a positive number"),
        ("fps", 1e-300, "fps is 1e-300; it must be a positive number"),
        ("fps", -10, "fps is -10; it must be a positive number"),
        ("codebase_version", 3, "LeRobot 3: v2.x and v3.0 are read"),
        ("codebase_version", "v3.0\x1b[2J", r"LeRobot 'v3.0\\x1b\[2J': v2.x and v3.0 are read"),
        ("chunks_size", 0, "chunks_size is 0; it must be a whole number of 1 or more"),
        ("chunks_size", -5, "chunks_size is -5; it must be a whole number of 1 or more"),
        ("chunks_size", "1000", "chunks_size is '1000'; it must be a whole number"),
        ("total_episodes", 4, "declares 4 episodes but meta/ lists 3"),
        ("total_episodes", "3", "total_episodes is '3'; it must be a whole number"),
    ],
)
@pytest.mark.parametrize("version", ["v3", "v21"])
def test_values_of_info_of_a_wrong_kind(
    version: str, path: str, value: object, message: str, request: pytest.FixtureRequest
) -> None:
    root = request.getfixturevalue(version)
    edit_info(root, path, value)
    with pytest.raises(StrapError, match=message) as caught:
        read_all(root)
    assert str(root) in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[" * 100_000, "as JSON .RecursionError"),
        ('{"features": {"a": ' + "[" * 100_000, "as JSON .RecursionError"),
        ('{"features": ' + "9" * 5000 + "}", "as JSON .*4300 digits"),
        ('{"fps": 10, "features": {}, "fps": 20}', "as JSON.*'fps' occurs twice"),
        ("[]", "has no 'features'"),
        ("null", "has no 'features'"),
        ("", "as JSON"),
        ('{"features": {"\\ud800": {}}}', "not valid Unicode"),
    ],
)
def test_an_info_that_is_none(v3: Path, content: str, message: str) -> None:
    (v3 / INFO).write_text(content)
    with pytest.raises(StrapError, match=f"info.json.*({message})"):
        read_all(v3)


def test_a_huge_info(v3: Path) -> None:
    os.truncate(v3 / INFO, MAX_INFO_BYTES + 1)
    with pytest.raises(StrapError, match=r"info.json' declares 33,554,433 bytes of metadata"):
        read_all(v3)


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["x", "y", "z"], ["x", "y", "z"]),
        ([["x", "y", "z"]], ["x", "y", "z"]),
        ({"motors": ["x", "y", "z"]}, ["x", "y", "z"]),
        ([0, 1, 2], ["0", "1", "2"]),
        ({"motors": {"a": [1]}}, None),
        ([None, {"a": 1}], None),
        ("xyz", None),
        (7, None),
    ],
)
def test_names_of_columns_name_nothing_where_they_are_odd(
    v3: Path, names: object, labels: list[str] | None
) -> None:
    edit_info(v3, f"{ACTION}|names", names)
    assert read_all(v3)[0].attributes["feature_names"].get("action") == labels


def test_two_features_that_are_one_camera(v3: Path) -> None:
    info = json.loads((v3 / INFO).read_text())
    info["features"]["front"] = info["features"]["observation.images.wrist"]
    (v3 / INFO).write_text(json.dumps(info))
    with pytest.raises(StrapError, match=r"'observation.images.front' and 'front' are the same ca"):
        read_all(v3)


def test_features_of_an_unknown_kind_are_not_lost_silently(v3: Path) -> None:
    edit_info(v3, f"{CAMERA}|dtype", "vidoe")
    with pytest.warns(UserWarning, match=r"left out 'observation.images.front' of the unknown dty"):
        assert set(strap.open_dataset(v3)["episode_000000"].cameras) == {"wrist"}


# --- episodes and tasks ------------------------------------------------------------------------


def edit_lines(root: Path, file: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the first line of a .jsonl file."""
    lines = (root / file).read_text().splitlines()
    row = json.loads(lines[0])
    (root / file).write_text("\n".join([json.dumps(change(row)), *lines[1:]]))


@pytest.mark.parametrize("version", ["v3", "v21"])
def test_tasks_that_are_a_text_are_the_instruction(
    version: str, request: pytest.FixtureRequest
) -> None:
    root = request.getfixturevalue(version)
    if version == "v3":
        edit_table(root / EPISODES, column("tasks", "put the cup away"))
    else:
        edit_lines(root, "meta/episodes.jsonl", lambda r: {**r, "tasks": "put the cup away"})
    dataset = strap.open_dataset(root)
    assert dataset["episode_000000"].instruction == "put the cup away"
    assert dataset.reader.instructions[0] == "put the cup away"


@pytest.mark.parametrize("tasks", [3, True, {"task": "a"}, [3], [None], [["a"]], ["\ud800"]])
def test_tasks_of_another_kind_in_lines(v21: Path, tasks: object) -> None:
    edit_lines(v21, "meta/episodes.jsonl", lambda r: {**r, "tasks": tasks})
    with pytest.raises(StrapError, match=r"episodes.jsonl', line 1: 'tasks' is .*(text|Unicode)"):
        read_all(v21)


@pytest.mark.parametrize("tasks", [3, True, {"task": "a"}, [3], [None], [["a"]], b"a", Decimal(1)])
def test_tasks_of_another_kind_in_tables(v3: Path, tasks: object) -> None:
    edit_table(v3 / EPISODES, column("tasks", tasks))
    with pytest.raises(StrapError, match=r"file-000.parquet': 'tasks' is .*; it must be a text"):
        read_all(v3)


def test_the_instruction_of_a_task_index(v3: Path) -> None:
    edit_table(v3 / EPISODES, lambda t: t.drop_columns(["tasks"]))
    assert [t.instruction for t in read_all(v3)][:2] == ["pick up the cup", "open the drawer"]
    edit_table(v3 / DATA, column("task_index", 9))
    with pytest.raises(StrapError, match=r"episode_000000: its task_index is 9, which meta/tasks"):
        read_all(v3)


TASK = "__index_level_0__"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop_columns(["task_index"]), "has no columns 'task_index' and 'task'"),
        (lambda t: t.drop_columns([TASK]), "has no columns 'task_index' and 'task'"),
        (column("task_index", "0"), "'task_index' is of type string; it must be whole numbers"),
        (column("task_index", first(None)), "'task_index' has missing values"),
        (column("task_index", 0), "has two texts for task 0"),
        (column(TASK, 3), "it must be a text"),
        (column(TASK, None), "it must be a text"),
        (column(TASK, [["a"], ["b"]]), "it must be a text"),
    ],
)
def test_a_table_of_tasks_that_is_none(v3: Path, change: Change, message: str) -> None:
    edit_table(v3 / TASKS, change)
    with pytest.raises(StrapError, match=f"tasks.parquet'.*{message}"):
        read_all(v3)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"task_index": 0}', "'task' is None; it must be a text"),
        ('{"task_index": 0, "task": 3}', "'task' is 3; it must be a text"),
        ('{"task_index": "0", "task": "a"}', "'task_index' is '0'; it must be a whole number"),
        ('{"task": "a"}', "lacks 'task_index'"),
        ("[]", r"expected an object, found \[\]"),
        ('{"task_index": 0, "task_index": 1, "task": "a"}', "'task_index' occurs twice"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_lines_of_tasks_that_are_none(v21: Path, line: str, message: str) -> None:
    (v21 / "meta/tasks.jsonl").write_text(line)
    with pytest.raises(StrapError, match=f"tasks.jsonl', line 1.*{message}"):
        read_all(v21)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: {**r, "length": None}, "'length' is None; it must be a whole number"),
        (lambda r: {**r, "length": "5"}, "'length' is '5'; it must be a whole number"),
        (lambda r: {**r, "length": 5.5}, "'length' is 5.5; it must be a whole number"),
        (lambda r: {**r, "length": -5}, "'length' is -5; it must be a whole number"),
        (lambda r: {**r, "length": 10**30}, "'length' is 1000.*; it must be a whole number"),
        (lambda r: {**r, "length": True}, "'length' is True; it must be a whole number"),
        (lambda r: {**r, "episode_index": [0]}, r"'episode_index' is \[0\]"),
        (lambda r: {**r, "episode_index": -1}, "'episode_index' is -1"),
        (lambda r: {"length": 5}, "lacks 'episode_index'"),
        (lambda r: [], "expected an object"),
        (lambda r: "x", "expected an object"),
    ],
)
def test_lines_of_episodes_that_are_none(
    v21: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    edit_lines(v21, "meta/episodes.jsonl", change)
    with pytest.raises(StrapError, match=f"episodes.jsonl', line 1.*{message}"):
        read_all(v21)


def test_long_and_strange_lines(v21: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = v21 / "meta/episodes.jsonl"
    lines = file.read_text()
    file.write_text(lines.replace("pick up the cup", "cup\u2028and\u0085saucer"))
    assert read_all(v21)[0].instruction == "cup\u2028and\u0085saucer"
    file.write_bytes(lines.encode() + b"\xff\xfe\n")
    with pytest.raises(StrapError, match=r"episodes.jsonl', line 4: not JSON"):
        read_all(v21)
    file.write_text(lines + lines)
    with pytest.raises(StrapError, match="lists an episode twice"):
        read_all(v21)
    monkeypatch.setattr(episode_lists, "MAX_LINE_BYTES", 64)
    with pytest.raises(StrapError, match=r"episodes.jsonl', line 1: longer than 64 bytes"):
        read_all(v21)


WHEN = f"{KEY}/from_timestamp"


def test_what_meta_says_of_an_episode_s_frames_is_in_its_stamp(v3: Path) -> None:
    def stamps() -> list[str]:
        return [trajectory.source.stamp() for trajectory in strap.open_dataset(v3)]

    before = stamps()
    edit_table(v3 / EPISODES, lambda table: table.append_column("new", table["length"]))
    edit_table(v3 / EPISODES, column("dataset_from_index", lambda old: [n + 9 for n in old]))
    assert stamps() == before  # nothing by which a frame is found
    edit_table(v3 / EPISODES, column(WHEN, first(0.2)))
    assert [now != then for now, then in zip(stamps(), before, strict=True)] == [True, False, False]
    edit_info(v3, "fps", 20)
    assert not set(stamps()) & set(before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop_columns(["episode_index"]), "has no column 'episode_index'"),
        (lambda t: t.drop_columns(["length"]), "has no column 'length'"),
        (lambda t: t.drop_columns(["data/file_index"]), "no 'data/file_index' for episode 0"),
        (lambda t: t.drop_columns([WHEN]), "from_timestamp' of episode 0 is nan"),
        (lambda t: t.append_column("length", t["length"]), "has two columns 'length'"),
        (lambda t: t.slice(0, 0), "declares 3 episodes but meta/ lists 0"),
        (lambda t: t.slice(0, 2), "declares 3 episodes but meta/ lists 2"),
        (lambda t: pa.concat_tables([t, t]), "lists an episode twice"),
        (column("episode_index", "0"), f"'episode_index' is of type string; {NUMBERS}"),
        (column("episode_index", first(None)), "'episode_index' has missing values"),
        (column("episode_index", first(-1)), f"'episode_index' is -1 in a row; {NUMBERS}"),
        (column("episode_index", first(0.5)), f"'episode_index' is 0.5 in a row; {NUMBERS}"),
        (column("length", [[5]] * 3), f"'length' is of type list.*; {NUMBERS}"),
        (column("length", {"a": 1}), f"'length' is of type struct.*; {NUMBERS}"),
        (column("length", Decimal("5")), f"'length' is of type decimal.*; {NUMBERS}"),
        (column("length", datetime(2020, 1, 1)), f"'length' is of type timestamp.*; {NUMBERS}"),
        (column("length", True), f"'length' is of type bool; {NUMBERS}"),
        (column("length", None), f"'length' is of type null; {NUMBERS}"),
        (column("length", float("nan")), f"'length' is nan in a row; {NUMBERS}"),
        (column("length", float("inf")), f"'length' is inf in a row; {NUMBERS}"),
        (
            column("length", pa.array([2**64 - 1] * 3, pa.uint64())),
            f"'length' is 18446744073709551615 in a row; {NUMBERS}",
        ),
        (column("length", pa.array(["5"] * 3).dictionary_encode()), f"of type string; {NUMBERS}"),
        (column("length", first(2**62)), "declares 4,611,686,018,427,387,904 frames of an episode"),
        (column("length", first(99_999_999)), "has 5 rows but meta/ says 99999999 frames"),
        (column("length", first(4)), "has 5 rows but meta/ says 4 frames"),
        (column("data/chunk_index", "0"), f"'data/chunk_index' is of type string; {NUMBERS}"),
        (column("data/chunk_index", None), "no 'data/chunk_index' for episode 0"),
        (column("data/chunk_index", -1), f"'data/chunk_index' is -1 in a row; {NUMBERS}"),
        (column("data/file_index", 2**62), "missing data file '.*file-4611686018427387904.parquet"),
        (column(f"{KEY}/file_index", ["a"]), f"file_index' is of type list.*; {NUMBERS}"),
        (column(WHEN, "0"), "from_timestamp' is of type string; it must be seconds"),
        (column(WHEN, first(None)), "from_timestamp' of episode 0 is nan; it must be seconds"),
        (column(WHEN, float("nan")), "from_timestamp' of episode 0 is nan; it must be seconds"),
        (column(WHEN, float("inf")), "from_timestamp' of episode 0 is inf; it must be seconds"),
        (column(WHEN, -1.0), "from_timestamp' of episode 0 is -1.0; it must be seconds"),
        (column(WHEN, 1e7), "has no frame at 10000000"),
        (
            lambda t: t.append_column("provenance/x", pa.array([[1]] * 3)),
            "'provenance/x' is of type list.*; it must be texts or numbers",
        ),
    ],
)
def test_tables_of_episodes_of_a_wrong_kind(v3: Path, change: Change, message: str) -> None:
    edit_table(v3 / EPISODES, change)
    with pytest.raises(StrapError, match=message) as caught:
        read_all(v3)
    assert str(v3) in str(caught.value)


def test_whole_floats_and_codes_are_numbers(v3: Path) -> None:
    edit_table(v3 / EPISODES, column("data/file_index", 0.0))
    edit_table(v3 / EPISODES, column("data/chunk_index", pa.array([0] * 3).dictionary_encode()))
    edit_table(v3 / DATA, column("next.reward", lambda old: pa.array(old).dictionary_encode()))
    assert len(read_all(v3)) == 3


def test_episode_tables_that_differ_in_their_columns(v3: Path) -> None:
    table = pq.read_table(v3 / EPISODES)
    pq.write_table(table.slice(0, 2), v3 / EPISODES)
    told = table.slice(2).append_column("provenance/start", pa.array([4]))
    pq.write_table(told, v3 / "meta/episodes/chunk-000/file-001.parquet")
    found = read_all(v3)
    assert found[2].attributes["provenance"] == {"start": 4}
    assert "provenance" not in found[0].attributes


def test_tables_of_meta_within_limits(v3: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, limit, message in [
        (episode_lists, "MAX_TRAJECTORIES", 2, "declares 3 episodes; at most 2"),
        (episode_lists, "MAX_METADATA_BYTES", 10, "bytes of metadata; at most 10"),
        (parquet, "MAX_COLUMN_BYTES", 10, r"bytes of column 'episode_index' in a row group"),
        (parquet, "MAX_BATCH_BYTES", 10, r"bytes of column 'episode_index'; at most 10"),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(module, name, limit)
            with pytest.raises(StrapError, match=f"file-000.parquet' .*{message}"):
                read_all(v3)
