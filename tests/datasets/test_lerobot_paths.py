"""LeRobot datasets of somebody else: paths and playlists lead to no other file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from tests.datasets.lerobot_damage import (
    DATA,
    EPISODES,
    FRONT,
    INFO,
    LENGTHS,
    TASKS,
    column,
    edit_info,
    edit_table,
    read_all,
)
from tests.datasets.writers import (
    number_of,
    picture,
    png,
)

import strap
from strap.errors import StrapError

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
        ("data/{episode_index.__class__}", "is not a known name"),
        ("data/{episode_index[0]}", "is not a known name"),
        ("data/{video_key}", "is not a known name"),
        ("data/{0}", "is not a known name"),
        ("data/{}", "is not a known name"),
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
    with pytest.raises(
        StrapError, match=f"{key}.*gives several files the same name: it lacks {{{lacks}"
    ):
        read_all(root)


@pytest.mark.parametrize("name", ["../../secret", "a/b", "..", "a\\b", ""])
def test_video_keys_are_names_of_folders(v3: Path, name: str) -> None:
    info = json.loads((v3 / INFO).read_text())
    info["features"][name] = info["features"].pop("observation.images.front")
    (v3 / INFO).write_text(json.dumps(info))
    with pytest.raises(
        StrapError, match=r"info.json': feature '.*' is a video.*must not contain slashes"
    ):
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
    with pytest.raises(StrapError, match=r"names the image '.*one.png', which is missing"):
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
