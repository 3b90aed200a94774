"""LeRobot datasets whose features and folders have other names than LeRobot's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.datasets.lerobot_damage import INFO, LENGTHS, edit_info, read_all
from tests.datasets.writers import Episode, episodes, number_of, write_lerobot_v21

import strap
from strap.datasets.lerobot import write_lerobot
from strap.errors import StrapError

SO100 = ["shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper"]


def rename_features(root: Path, names: dict[str, str]) -> None:
    """Rename features in info.json, in the tables and among the folders of videos."""
    info = json.loads((root / INFO).read_text())
    features = {names.get(name, name): spec for name, spec in info["features"].items()}
    (root / INFO).write_text(json.dumps({**info, "features": features}))
    for file in root.glob("data/*/*.parquet"):
        table = pq.read_table(file)
        pq.write_table(table.rename_columns([names.get(n, n) for n in table.column_names]), file)
    for folder in root.glob("videos/*/*"):
        folder.rename(folder.with_name(names.get(folder.name, folder.name)))


UNPREFIXED = {
    "observation.state": "state",
    "action": "actions",
    "observation.images.front": "image",
    "observation.images.wrist": "wrist_image",
    "next.reward": "next.state_value",
}


def test_features_without_a_prefix_are_found(v21: Path, tmp_path: Path) -> None:
    rename_features(v21, UNPREFIXED)
    found = read_all(v21)
    assert [t.length for t in found] == list(LENGTHS)
    assert list(found[0].cameras) == ["image", "wrist_image"]
    assert list(found[0].proprioception) == ["state"]
    assert list(found[0].extras) == ["next.state_value", "next.done"]
    assert found[0].proprioception["state"][:].tolist() == episodes(LENGTHS)[0].state.tolist()
    write_lerobot(tmp_path / "again", strap.open_dataset(v21))
    again = strap.open_dataset(tmp_path / "again")["episode_000000"]
    labels = again.attributes["feature_names"]
    assert labels["observation.state"] == ["x", "y", "z", "yaw", "gripper"]


def test_where_some_features_have_a_prefix_those_are_proprioception(v21: Path) -> None:
    rename_features(v21, {"next.reward": "joint_pos"})
    own = read_all(v21)[0]
    assert list(own.proprioception) == ["observation.state"]
    assert "joint_pos" in own.extras


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ee_pos", True),
        ("joint_positions", True),
        ("robot.states", True),
        ("qpos", True),
        ("goal_state", False),
        ("action_pos", False),
        ("possible", False),
        ("reward", False),
    ],
)
def test_names_of_proprioception(v21: Path, name: str, expected: bool) -> None:
    rename_features(v21, {"observation.state": name})
    assert (name in read_all(v21)[0].proprioception) is expected


def test_a_video_folder_of_another_name(v21: Path) -> None:
    (v21 / "videos").rename(v21 / "video")
    with pytest.warns(UserWarning, match="videos are read from 'video/', where meta/info.json"):
        dataset = strap.open_dataset(v21)
    assert number_of(dataset["episode_000002"].frames("front")[3]) == 9
    files = [file.relative_to(v21).as_posix() for file in dataset.reader.files]
    assert any(name.startswith("video/") for name in files)
    before = dataset.fingerprint()
    next((v21 / "video").rglob("*.mp4")).write_bytes(b"other")
    assert dataset.fingerprint() != before


def test_a_template_that_says_video(v21: Path) -> None:
    info = json.loads((v21 / INFO).read_text())
    edit_info(v21, "video_path", info["video_path"].replace("videos/", "video/"))
    with pytest.warns(UserWarning, match="videos are read from 'videos/', .* says 'video/'"):
        read_all(v21)


def test_no_video_folder_at_all(v21: Path) -> None:
    (v21 / "videos").rename(v21 / "films")
    with pytest.raises(StrapError, match=r"missing video '.*videos/chunk-000/.*mp4'"):
        read_all(v21)


def test_links_in_a_circle_are_missing_files(v21: Path) -> None:
    file = v21 / "videos/chunk-000/observation.images.front/episode_000001.mp4"
    file.unlink()
    file.symlink_to(file)
    reader: Any = strap.open_dataset(v21).reader
    assert reader.missing["video of camera front"] == ["episode_000001"]
    assert reader.missing["table"] == []


def test_chunk_index_in_the_templates_of_v2(v21: Path) -> None:
    info = json.loads((v21 / INFO).read_text())
    for key in ("data_path", "video_path"):
        edit_info(v21, key, info[key].replace("episode_chunk", "chunk_index"))
    assert [t.length for t in read_all(v21)] == list(LENGTHS)
    edit_info(v21, "data_path", "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet")
    with pytest.raises(
        StrapError, match=r"'file_index' is no known name.*known names: chunk_index"
    ):
        read_all(v21)


def so100(root: Path, prefix: str = "observation.") -> Path:
    """Two demonstrations of six joint angles in degrees, no pose: move, grasp, move, release."""
    content = episodes((110, 110))
    for own in content:
        own.state = _joint_angles(own)
    write_lerobot_v21(root, content)
    spec = {"dtype": "float32", "shape": [6], "names": SO100}
    edit_info(root, "features|observation.state", spec)
    rename_features(root, {"observation.state": f"{prefix}state"})
    return root


def _joint_angles(own: Episode) -> np.ndarray:
    rng = np.random.default_rng(own.index)
    is_moving = np.isin(np.arange(own.length) // 15, (2, 6), invert=True)
    steps = is_moving[:, None] * rng.uniform(0.5, 1.5, (own.length, 6))
    steps += rng.normal(0, 0.01, steps.shape)
    steps[:, 5] = np.where(is_moving, 0.0, 4.0)
    return np.cumsum(steps, axis=0).astype(np.float32)


@pytest.mark.parametrize("prefix", ["observation.", ""])
def test_a_robot_with_joints_alone_from_segment_to_export(
    prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from strap.cli import main

    root = str(so100(tmp_path / "so100", prefix))
    assert main(["inspect", root]) == 0
    assert f"none found; joints: {prefix}state[0:5]" in capsys.readouterr().out
    assert main(["segment", root, "--out", str(tmp_path / "s.json")]) == 0
    shown = capsys.readouterr()
    assert "degrees per step" in shown.out
    assert "epsilon auto is" in shown.err
    segments = json.loads((tmp_path / "s.json").read_text())["segments"]
    first = [row["start"] for row in segments if row["trajectory"] == "episode_000000"]
    assert first[:2] == [0, 30]
    run, cache = str(tmp_path / "run"), str(tmp_path / "stores")
    words = ["--target-episodes", "0", "--prior-episodes", "1", "--encoder", "pixels"]
    words += ["--top-k", "3", "--out", run, "--stores", cache]
    assert main(["retrieve", "--target", root, "--prior", root, *words]) == 0
    assert main(["export", run, "--as", "lerobot", "--out", str(tmp_path / "out")]) == 0
    again = strap.open_dataset(tmp_path / "out")
    assert len(again) == 4
    assert again[again.ids[0]].attributes["feature_names"]["observation.state"] == SO100
