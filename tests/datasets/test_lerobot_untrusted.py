"""LeRobot datasets of somebody else: whatever is wrong in them is one error that names it."""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.datasets.writers import (
    episodes,
    number_of,
    picture,
    png,
    write_lerobot_v3,
    write_lerobot_v21,
    write_video,
)

import strap
from strap.cli import main
from strap.datasets.lerobot import containers, parquet
from strap.datasets.lerobot import episodes as episode_lists
from strap.datasets.lerobot.layout import MAX_INFO_BYTES
from strap.datasets.lerobot.pages import unpacked_size
from strap.errors import StrapError

LENGTHS = (5, 1, 7)
INFO = "meta/info.json"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
TASKS = "meta/tasks.parquet"
DATA = "data/chunk-000/file-000.parquet"
FRONT = "videos/observation.images.front/chunk-000/file-000.mp4"
KEY = "videos/observation.images.front"

Change = Callable[[pa.Table], pa.Table]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lerobot")
    write_lerobot_v3(root / "v3", episodes(LENGTHS))
    write_lerobot_v3(root / "pictures", episodes(LENGTHS), pictures=True)
    write_lerobot_v21(root / "v21", episodes(LENGTHS))
    return root


@pytest.fixture
def v3(written: Path, tmp_path: Path) -> Path:
    """A dataset of v3.0 with videos, to be damaged."""
    return Path(shutil.copytree(written / "v3", tmp_path / "v3"))


@pytest.fixture
def pictures(written: Path, tmp_path: Path) -> Path:
    """One of v3.0 with pictures in its table."""
    return Path(shutil.copytree(written / "pictures", tmp_path / "pictures"))


@pytest.fixture
def v21(written: Path, tmp_path: Path) -> Path:
    """One of v2.1."""
    return Path(shutil.copytree(written / "v21", tmp_path / "v21"))


def read_all(root: Path, **options: Any) -> list[strap.Trajectory]:
    """Open the dataset and read every array of every trajectory."""
    found = list(strap.open_dataset(root, **options))
    for trajectory in found:
        arrays = (trajectory.proprioception, trajectory.extras, {"actions": trajectory.actions})
        for array in (array for group in arrays for array in group.values()):
            assert len(array[:]) == trajectory.length
        for name in trajectory.cameras:
            assert len(trajectory.frames(name)) == trajectory.length
    return found


def edit_info(root: Path, path: str, value: object) -> None:
    """Set a value of info.json; `path` has its keys, joined by `|`."""
    info = json.loads((root / INFO).read_text())
    *parents, last = path.split("|")
    node = info
    for key in parents:
        node = node[key]
    node[last] = value
    (root / INFO).write_text(json.dumps(info))


def edit_table(file: Path, change: Change) -> None:
    pq.write_table(change(pq.read_table(file)), file)


def column(name: str, values: object) -> Change:
    """Replace a column by `values`: an array, a value for all rows, or what becomes of the old."""

    def change(table: pa.Table) -> pa.Table:
        new = values(table[name].to_pylist()) if callable(values) else values
        array = new if isinstance(new, pa.Array) else pa.array(_repeated(new, table.num_rows))
        return table.set_column(table.column_names.index(name), name, array)

    return change


def _repeated(values: object, count: int) -> list[object]:
    return values if isinstance(values, list) and len(values) == count else [values] * count


def first(value: object) -> Callable[[list[object]], list[object]]:
    """Another value in the first row."""
    return lambda old: [value, *old[1:]]


def test_untouched_they_are_read(v3: Path, pictures: Path, v21: Path) -> None:
    for root in (v3, pictures, v21):
        assert [t.length for t in read_all(root)] == list(LENGTHS)


# --- paths -------------------------------------------------------------------------------------

OUTSIDE = [
    "../secret.parquet",
    "data/../../{episode_index}.parquet",
    "/etc/passwd",
    "file:///etc/passwd",
    "https://example.org/a.mp4",
    "C:\\secret",
]


@pytest.mark.parametrize("version", ["v3", "v21"])
@pytest.mark.parametrize("key", ["data_path", "video_path"])
@pytest.mark.parametrize("template", OUTSIDE)
def test_templates_that_lead_out_of_the_folder(
    version: str, key: str, template: str, request: pytest.FixtureRequest
) -> None:
    root = request.getfixturevalue(version)
    names = "{video_key}{episode_index}" if version == "v21" else "{video_key}"
    suffix = names if key == "video_path" else names.removeprefix("{video_key}")
    edit_info(root, key, template + suffix)
    with pytest.raises(StrapError, match=rf"info.json': {key} names.*outside the dataset's folder"):
        read_all(root)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("data/{episode_index.__class__}", "no known name"),
        ("data/{episode_index[0]}", "no known name"),
        ("data/{video_key}", "no known name"),
        ("data/{0}", "no known name"),
        ("data/{}", "no known name"),
        ("data/{episode_index:3000000000d}", "two digits at most"),
        ("data/{episode_index:{file_index}}", "two digits at most"),
        ("data/{episode_index:>99}", "two digits at most"),
        ("data/{episode_index!r}", "conversion"),
        ("data/{episode_index", "expected '}'"),
        ("x" * 2000, "1 to 1000 characters"),
        ("", "1 to 1000 characters"),
        (None, "1 to 1000 characters"),
        (3, "1 to 1000 characters"),
        (["a"], "1 to 1000 characters"),
    ],
)
def test_templates_that_are_more_than_names(v3: Path, template: object, reason: str) -> None:
    edit_info(v3, "data_path", template)
    with pytest.raises(StrapError, match=f"cannot make a file name from data_path.*{reason}"):
        read_all(v3)


@pytest.mark.parametrize(
    ("version", "key", "template", "lacks"),
    [
        ("v21", "data_path", "data/chunk-000/episode_000000.parquet", "episode_index"),
        ("v21", "video_path", "videos/{video_key}.mp4", "episode_index"),
        ("v3", "video_path", "videos/file-{file_index:03d}.mp4", "video_key"),
    ],
)
def test_templates_that_name_one_file_for_several(
    version: str, key: str, template: str, lacks: str, request: pytest.FixtureRequest
) -> None:
    root = request.getfixturevalue(version)
    edit_info(root, key, template)
    with pytest.raises(StrapError, match=f"{key}.*names one file for several: it lacks {{{lacks}"):
        read_all(root)


@pytest.mark.parametrize("name", ["../../secret", "a/b", "..", "a\\b", ""])
def test_video_keys_are_names_of_folders(v3: Path, name: str) -> None:
    info = json.loads((v3 / INFO).read_text())
    info["features"][name] = info["features"].pop("observation.images.front")
    (v3 / INFO).write_text(json.dumps(info))
    with pytest.raises(StrapError, match=r"info.json': feature '.*' is a video.*no slashes"):
        read_all(v3)


def beside(pictures: Path, path: object) -> None:
    """Let the table name a file instead of holding the pictures."""
    count = sum(LENGTHS)
    values = pa.array([{"bytes": None, "path": path}] * count)
    edit_table(pictures / DATA, column("observation.images.front", values))


@pytest.mark.parametrize("path", ["../secret.png", "/etc/passwd", "https://example.org/a.png"])
def test_image_columns_that_name_other_files(pictures: Path, path: str) -> None:
    (pictures.parent / "secret.png").write_bytes(png(picture(3)))
    beside(pictures, path)
    with pytest.raises(StrapError, match=r"'observation.images.front' names.*outside the dataset"):
        read_all(pictures)


def test_image_columns_that_name_files_of_the_dataset(pictures: Path) -> None:
    beside(pictures, "images/one.png")
    with pytest.raises(StrapError, match=r"names the picture '.*one.png', which is missing"):
        read_all(pictures)
    (pictures / "images").mkdir()
    (pictures / "images/one.png").write_bytes(png(picture(3)))
    assert number_of(read_all(pictures)[0].frames("front")[0]) == 3


@pytest.mark.parametrize(
    "values",
    [None, "x", b"x", [1, 2], {"bytes": None, "path": None}, {"bytes": "text"}, {"path": ""}],
)
def test_image_columns_of_another_kind(pictures: Path, values: object) -> None:
    edit_table(pictures / DATA, column("observation.images.front", values))
    with pytest.raises(StrapError, match=r"camera 'observation.images.front': '.*file-000.parquet"):
        read_all(pictures)


def test_links_of_the_file_system_are_followed(v3: Path, tmp_path: Path) -> None:
    """The hub's cache keeps every file as a link to ../../blobs."""
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for i, file in enumerate(sorted(p for p in v3.rglob("*") if p.is_file())):
        file.rename(blobs / str(i))
        file.symlink_to(os.path.relpath(blobs / str(i), file.parent))
    assert len(read_all(v3)) == 3
    assert len(read_all(v3, missing="skip")) == 3
    (v3 / FRONT).unlink()
    (v3 / FRONT).symlink_to("nowhere")
    with pytest.warns(UserWarning, match="skipped 3 of 3"):
        dataset = strap.open_dataset(v3, missing="skip")
    assert dataset.fingerprint()


def test_a_folder_that_is_a_link_is_no_missing_one(v3: Path, tmp_path: Path) -> None:
    (v3 / "data/chunk-000").rename(tmp_path / "elsewhere")
    (v3 / "data/chunk-000").symlink_to(tmp_path / "elsewhere")
    assert len(read_all(v3, missing="skip")) == 3


@pytest.mark.parametrize("file", [DATA, FRONT, EPISODES, TASKS, INFO])
def test_pipes_are_not_waited_for(v3: Path, file: str) -> None:
    (v3 / file).unlink()
    os.mkfifo(v3 / file)
    with pytest.raises(StrapError, match=f"'{v3 / file}'"):
        read_all(v3, format="lerobot")


# --- videos ------------------------------------------------------------------------------------

DISGUISED = {
    "ffconcat": "ffconcat version 1.0\nfile neighbour.mp4\n",
    "hls": "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nneighbour.mp4\n#EXT-X-ENDLIST\n",
    "dash": '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011"></MPD>',
    "image": "/* picture%03d.png */",
    "script": "#!/bin/sh\n",
    "empty": "",
}


@pytest.mark.parametrize("kind", DISGUISED)
def test_playlists_named_mp4_are_not_opened(v3: Path, kind: str) -> None:
    neighbour = v3 / FRONT.replace("file-000", "neighbour")
    (v3 / FRONT).rename(neighbour)
    (v3 / FRONT).write_text(DISGUISED[kind])
    if kind == "ffconcat":
        with av.open(str(v3 / FRONT)) as container:  # FFmpeg by itself opens what it names
            assert container.streams.video[0].width == 64
    with pytest.raises(StrapError, match=r"front.*file-000.mp4' is no mp4, mov, mkv or webm video"):
        read_all(v3)


def test_other_containers(v3: Path) -> None:
    frames = [picture(i) for i in range(sum(LENGTHS))]
    for suffix in ("mkv", "mov", "avi"):
        file = v3.parent / f"a.{suffix}"
        write_video(file, frames, Fraction(10), bf="0")
        (v3 / FRONT).write_bytes(file.read_bytes())
        if suffix == "avi":
            with pytest.raises(StrapError, match=r"begins with b'RIFF.*re-encode it as mp4"):
                read_all(v3)
        else:
            assert number_of(read_all(v3)[2].frames("front")[3]) == 9


def box(data: bytes, kind: bytes, place: int, *numbers: int) -> bytes:
    """Overwrite numbers of the first box of that kind, `place` bytes behind its kind."""
    start = data.index(kind) + 4 + place
    new = struct.pack(f">{len(numbers)}I", *numbers)
    return data[:start] + new + data[start + len(new) :]


def fragmented() -> bytes:
    """An mp4 without a table of its pictures: each fragment has its own."""

    out = io.BytesIO()
    options = {"movflags": "frag_keyframe+empty_moov"}
    with av.open(out, "w", format="mp4", options=options) as container:
        stream = container.add_stream("libx264", rate=10, options={"g": "4", "bf": "0"})
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        for i in range(sum(LENGTHS)):
            frame = av.VideoFrame.from_ndarray(picture(i), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return out.getvalue()


def test_fragments_are_read(v3: Path) -> None:
    (v3 / FRONT).write_bytes(fragmented())
    assert number_of(read_all(v3)[2].frames("front")[3]) == 9


@pytest.mark.parametrize(
    ("kind", "damage", "message"),
    [
        ("plain", lambda d: box(d, b"stsz", 4, 1, 80_000_000), "80,000,000 bytes of pictures"),
        ("plain", lambda d: box(d, b"stsz", 4, 0, 80_000_000), "80,000,013|80,000,000 pictures"),
        ("plain", lambda d: box(d, b"elst", 4, 80_000_000), "pictures; at most 16,777,216"),
        ("fragmented", lambda d: box(d, b"trun", 4, 80_000_000), r"80,000,0\d\d pictures"),
        ("plain", lambda d: d.replace(b"mvhd", b"cmov"), "its index is compressed"),
    ],
)
def test_videos_that_declare_more_than_they_hold(
    v3: Path, kind: str, damage: Callable[[bytes], bytes], message: str
) -> None:
    whole = fragmented() if kind == "fragmented" else (v3 / FRONT).read_bytes()
    (v3 / FRONT).write_bytes(damage(whole))
    with pytest.raises(StrapError, match=f"front.*file-000.mp4'.*({message})"):
        read_all(v3)


def test_a_large_index(v3: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "MAX_INDEX_BYTES", 500)
    with pytest.raises(StrapError, match=r"file-000.mp4' declares .* bytes of index"):
        read_all(v3)


def test_a_video_without_pictures(v3: Path) -> None:
    with av.open(str(v3 / FRONT), "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=8000)
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        sound.sample_rate = 8000
        container.mux(stream.encode(sound))
        container.mux(stream.encode())
    with pytest.raises(StrapError, match=r"cannot decode '.*file-000.mp4'"):
        read_all(v3)


def test_a_video_whose_pictures_change_their_size(v3: Path) -> None:
    settings = {"x264-params": "repeat-headers=1:bframes=0:keyint=1"}

    def encoded(size: tuple[int, int], start: int) -> list[av.Packet]:
        codec = av.CodecContext.create("libx264", "w")
        codec.height, codec.width = size
        codec.pix_fmt, codec.time_base, codec.options = "yuv420p", Fraction(1, 10), settings
        found = []
        for i in range(start, start + 10):
            frame = av.VideoFrame.from_ndarray(picture(i, size), format="rgb24")
            frame.pts, frame.time_base = i, Fraction(1, 10)
            found += codec.encode(frame)
        return found + codec.encode(None)

    with av.open(str(v3 / FRONT), "w") as container:
        stream = container.add_stream("libx264", rate=10, options=settings)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        for packet in encoded((48, 64), 0)[:3] + encoded((96, 128), 3):
            packet.stream = stream
            container.mux(packet)
    with pytest.raises(StrapError, match=r"has frames of \[96, 128\] but meta/info.json says"):
        read_all(v3)


# --- info.json ---------------------------------------------------------------------------------

ACTION, CAMERA = "features|action", "features|observation.images.front"


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
        (f"{ACTION}|dtype", "int64", r"'action' is .* in a frame, which is no int64"),
        (f"{ACTION}|dtype", "bool", r"'action' is .* in a frame, which is no bool"),
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
        ("[" * 100_000, "RecursionError|JSON"),
        ('{"features": {"a": ' + "[" * 100_000, "RecursionError|JSON"),
        ('{"features": ' + "9" * 5000 + "}", "as LeRobot .*4300 digits"),
        ("[]", "has no 'features'"),
        ("null", "has no 'features'"),
        ("", "as JSON"),
        ('{"features": {"\\ud800": {}}}', "no valid Unicode"),
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
        ("[" * 100_000, "no JSON"),
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
    with pytest.raises(StrapError, match=r"episodes.jsonl', line 4: no JSON"):
        read_all(v21)
    file.write_text(lines + lines)
    with pytest.raises(StrapError, match="lists an episode twice"):
        read_all(v21)
    monkeypatch.setattr(episode_lists, "MAX_LINE_BYTES", 64)
    with pytest.raises(StrapError, match=r"episodes.jsonl', line 1: longer than 64 bytes"):
        read_all(v21)


NUMBERS = "it must be whole numbers"
WHEN = f"{KEY}/from_timestamp"


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
        (parquet, "MAX_CHUNK_BYTES", 10, r"bytes of column 'episode_index' in a row group"),
        (parquet, "MAX_BATCH_BYTES", 10, r"bytes of column 'episode_index'; at most 10"),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(module, name, limit)
            with pytest.raises(StrapError, match=f"file-000.parquet' .*{message}"):
                read_all(v3)


# --- data files --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop_columns(["episode_index"]), "has no column 'episode_index'"),
        (lambda t: t.drop_columns(["action"]), "has no column 'action', which meta/info.json"),
        (lambda t: t.append_column("action", t["action"]), "has two columns 'action'"),
        (lambda t: t.slice(0, 0), "holds no rows of episode 0 .it has none"),
        (lambda t: t.slice(0, 9), "episode 2: column .* has 3 rows but meta/ says 7"),
        (lambda t: pa.concat_tables([t, t]), "the rows of episode 0 are not together"),
        (lambda t: t.take(list(range(12, -1, -1))), "its rows are not in the order of frame_index"),
        (column("episode_index", "0"), f"'episode_index' is of type string; {NUMBERS}"),
        (column("episode_index", first(None)), "'episode_index' has missing values"),
        (column("episode_index", first(-1)), f"'episode_index' is -1 in a row; {NUMBERS}"),
        (
            column("episode_index", lambda old: [2**62 + i for i in old]),
            "holds no rows of episode 0",
        ),
        (column("frame_index", "0"), f"'frame_index' is of type string; {NUMBERS}"),
        (column("frame_index", 0), "its rows are not in the order of frame_index"),
        (column("action", "a"), "column 'action' is no regular array .it holds string"),
        (column("action", ["1", "2", "3"]), "'action' is no regular array .it holds string"),
        (column("action", b"a"), "column 'action' is no regular array .it holds binary"),
        (column("action", None), "column 'action' is no regular array .it holds null"),
        (column("action", Decimal("1.5")), "'action' is no regular array .it holds decimal"),
        (column("action", datetime(2020, 1, 1)), "is no regular array .it holds timestamp"),
        (column("action", {"a": 1}), "column 'action' is no regular array .it holds struct"),
        (column("action", first(None)), "column 'action' is no regular array"),
        (column("action", first([None, 1, 2])), "'action' is no regular array .it has missing"),
        (column("action", lambda old: [old[0][:2], *old[1:]]), "its rows differ in length"),
        (column("action", lambda old: [[row] for row in old]), r"'action' is \[1, 3\] per frame"),
        (column("action", 1.0), r"'action' is \[\] per frame but meta/info.json says \[3\]"),
        (
            column("action", [[1e300] * 3] * 13),
            "'action' is 1e.300 in a frame, which is no float32",
        ),
        (column("next.done", 2), "'next.done' is 2 in a frame, which is no bool"),
    ],
)
def test_data_files_of_a_wrong_kind(v3: Path, change: Change, message: str) -> None:
    edit_table(v3 / DATA, change)
    with pytest.raises(StrapError, match=f"file-000.parquet'.*{message}"):
        read_all(v3)


def test_columns_named_like_the_beginning_of_others(pictures: Path) -> None:
    """`front` and `front.left` are two cameras."""
    old, new = "observation.images.wrist", "observation.images.front.left"
    info = (pictures / INFO).read_text().replace(old, new)
    (pictures / INFO).write_text(info)
    names = pq.read_schema(pictures / DATA).names
    renamed = [new if name == old else name for name in names]
    edit_table(pictures / DATA, lambda t: t.rename_columns(renamed).select(renamed[::-1]))
    found = read_all(pictures)[0]
    np.testing.assert_array_equal(found.frames("front")[0], picture(0))
    np.testing.assert_array_equal(found.frames("front.left")[0], picture(0, tint=20))


@pytest.mark.parametrize("version", ["v3", "pictures"])
def test_data_files_that_unpack_to_more_than_allowed(
    version: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = request.getfixturevalue(version)
    wide = 4_000_000
    edit_table(root / DATA, column("action", pa.array([[0.0] * wide] * 13, pa.list_(pa.float32()))))
    assert (root / DATA).stat().st_size < 1_000_000
    monkeypatch.setattr(parquet, "MAX_CHUNK_BYTES", 1 << 27)
    dataset = strap.open_dataset(root)
    with pytest.raises(StrapError, match=r"declares 624,000,000 bytes of column 'action' in a row"):
        dataset["episode_000000"].actions[:]


def varint(value: int, length: int = 1) -> bytes:
    """A number as Thrift writes it, at least `length` bytes long."""
    out, value = [], value << 1
    while value or len(out) < length:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out[:-1], out[-1] & 127])


def test_data_files_whose_footer_understates_what_they_hold(
    v3: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = 3_000_000
    values = pa.array(np.zeros(wide, np.float32))
    lists = pa.ListArray.from_arrays(pa.array([0] + [wide] * 13, pa.int32()), values)
    table = column("action", lists)(pq.read_table(v3 / DATA))
    pq.write_table(table, v3 / DATA, data_page_size=1 << 30)
    data = (v3 / DATA).read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    true = varint(wide + 12)  # an empty list counts as a value
    assert data.count(true, footer) == 1
    data = data[:footer] + data[footer:].replace(true, varint(39, len(true)))
    (v3 / DATA).write_bytes(data)
    place = pq.read_schema(v3 / DATA).names.index("action")
    assert pq.ParquetFile(v3 / DATA).metadata.row_group(0).column(place).num_values == 39
    monkeypatch.setattr(parquet, "MAX_CHUNK_BYTES", 1 << 24)
    with pytest.raises(StrapError, match="declares 36,000,144 bytes of column 'action'"):
        strap.open_dataset(v3)["episode_000000"].actions[:]


@pytest.mark.parametrize("page_version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("dictionary", [True, False])
def test_pages_add_up_to_what_an_honest_footer_says(
    tmp_path: Path, page_version: str, compression: str, statistics: bool, dictionary: bool
) -> None:
    rng = np.random.default_rng(0)
    count = 2000
    table = pa.table(
        {
            "number": np.arange(count),
            "list": pa.array(list(rng.normal(size=(count, 3)))),
            "text": ["long texts in statistics " * 50 + str(i) for i in range(count)],
        }
    )
    pq.write_table(
        table,
        tmp_path / "a.parquet",
        data_page_version=page_version,
        compression=compression,
        write_statistics=statistics,
        write_page_checksum=statistics,
        use_dictionary=dictionary,
        data_page_size=2000,
        row_group_size=900,
    )
    footer = pq.ParquetFile(tmp_path / "a.parquet").metadata
    with (tmp_path / "a.parquet").open("rb") as file:
        for group in range(footer.num_row_groups):
            for leaf in range(footer.num_columns):
                chunk = footer.row_group(group).column(leaf)
                start = chunk.dictionary_page_offset or chunk.data_page_offset
                place = (file, start, chunk.total_compressed_size)
                pages = unpacked_size(*place, chunk.num_values, 0)
                n_values = unpacked_size(*place, chunk.num_values, 10**6) / 10**6
                assert n_values == chunk.num_values
                assert 0.5 < pages / chunk.total_uncompressed_size <= 1  # that has headers, too


def test_pictures_that_repeat_are_read_a_few_at_a_time(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A picture that stands once in the file may be that of every row."""
    same = [{"bytes": png(picture(3)), "path": None}] * sum(LENGTHS)
    edit_table(pictures / DATA, column("observation.images.front", pa.array(same)))
    monkeypatch.setattr(parquet, "MAX_BATCH_BYTES", 2000)
    assert [
        number_of(f) for f in strap.open_dataset(pictures)["episode_000002"].frames("front")
    ] == [3] * 7


def test_episodes_longer_than_what_is_read_at_a_time(tmp_path: Path) -> None:
    lengths = (parquet.ROWS - 3, 10, parquet.ROWS + 5)
    root = write_lerobot_v3(tmp_path / "d", episodes((5, 1, 7)))
    index = np.repeat(np.arange(3), lengths)
    frames = np.concatenate([np.arange(n) for n in lengths])
    action = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(index, 3).astype(np.float32)), 3)
    table = {"episode_index": index, "frame_index": frames, "action": action}
    pq.write_table(pa.table(table), root / DATA)
    edit_table(root / EPISODES, column("length", list(lengths)))
    info = json.loads((root / INFO).read_text())
    info["features"] = {"action": info["features"]["action"]}
    (root / INFO).write_text(json.dumps(info))
    for i, trajectory in enumerate(read_all(root)):
        assert trajectory.actions.shape == (lengths[i], 3)
        assert (trajectory.actions[:] == i).all()
    frames[parquet.ROWS] = 0  # the first row of the second batch
    pq.write_table(pa.table({**table, "frame_index": frames}), root / DATA)
    with pytest.raises(StrapError, match="not in the order of frame_index"):
        read_all(root)


def test_frames_of_the_next_episode_are_not_given_away(v3: Path) -> None:
    """Episodes share a video: one that is declared too long would show the next."""
    edit_table(v3 / EPISODES, column("length", [5, 3, 7]))
    with pytest.raises(StrapError, match="episode 1: column 'episode_index' has 1 rows but meta/"):
        strap.open_dataset(v3)["episode_000001"].frames("front")


# --- ids and commands --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["episode_000009", "episode_²", "episode_0", "x", "", "episode_" + "9" * 5000]
)
def test_unknown_ids(v3: Path, name: str) -> None:
    dataset = strap.open_dataset(v3)
    with pytest.raises(KeyError):
        dataset.reader.read(name)
    with pytest.raises(StrapError, match="unknown trajectory"):
        dataset[name]


def test_an_error_inside_is_no_unknown_id(v3: Path) -> None:
    reader = strap.open_dataset(v3).reader
    del reader.layout.columns["data/chunk_index"]
    with pytest.raises(StrapError, match=rf"cannot read '{v3}' as LeRobot \(KeyError"):
        reader.read("episode_000000")


@pytest.mark.parametrize("damage", ["data_path", "video", "table", "info"])
def test_inspect_says_it_in_one_line(
    v3: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if damage == "data_path":
        edit_info(v3, "data_path", "{episode_index:3000000000d}")
    elif damage == "video":
        (v3 / FRONT).write_text(DISGUISED["ffconcat"])
    elif damage == "table":
        edit_table(v3 / EPISODES, column("length", [[1]] * 3))
    else:
        (v3 / INFO).write_text("[" * 100_000)
    code = main(["inspect", str(v3)])
    printed = capsys.readouterr()
    if damage == "video":  # the rest of the dataset is told
        assert (code, "camera front cannot be read" in printed.out) == (0, True)
    else:
        assert code == 2
        assert printed.err.startswith("strap: ") or printed.err.startswith("error: ")
        assert printed.err.count("\n") == 1
