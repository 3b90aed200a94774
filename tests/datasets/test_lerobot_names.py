"""LeRobot datasets whose features and folders have other names than LeRobot's own."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.datasets.lerobot_damage import INFO, LENGTHS, edit_info, read_all
from tests.datasets.writers import Episode, episodes, number_of, write_lerobot_v21

import strap
from strap.conversion import convert
from strap.datasets.labels import OBJECT, SKILL
from strap.datasets.lerobot import write_lerobot
from strap.datasets.lerobot.features import MAX_KEY_BYTES
from strap.datasets.lerobot.layout import IMAGES
from strap.errors import StrapError
from strap.lazy_arrays import lazy
from strap.types import Source, Trajectory

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
    with pytest.warns(UserWarning, match="videos are read from 'video/', but meta/info.json"):
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
        StrapError, match=r"'file_index' is not a known name.*known names: chunk_index"
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


FRAMES = 4


def recorded(
    id: str = "demo_0",
    *,
    cameras: tuple[str, ...] = ("front",),
    states: tuple[str, ...] = ("ee_pos",),
    dtype: str = "f4",
    extras: dict[str, np.ndarray] | None = None,
) -> Trajectory:
    """Return a trajectory whose cameras are of one grey each: 0, 100, …."""
    pictures = {
        name: np.full((FRAMES, 16, 16, 3), 100 * i, np.uint8) for i, name in enumerate(cameras)
    }
    return Trajectory(
        id=id,
        length=FRAMES,
        instruction="stack the bowls",
        cameras={name: lazy(frames) for name, frames in pictures.items()},
        proprioception={name: lazy(np.ones((FRAMES, 3), np.float32)) for name in states},
        actions=lazy(np.arange(FRAMES * 2).reshape(FRAMES, 2).astype(dtype)),
        source=Source(Path("nowhere"), id),
        fps=10.0,
        extras={name: lazy(array) for name, array in (extras or {}).items()},
    )


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            {"cameras": ("front", "observation.images.front")},
            "cameras 'front' and 'observation.images.front' both",
        ),
        ({"cameras": ("a/front", "a.front")}, "cameras 'a/front' and 'a.front' both"),
        (
            {"cameras": ("observation.top", "observation.images.observation.top")},
            "cameras 'observation.top' and 'observation.images.observation.top' both",
        ),
        ({"states": ("arm/pos", "arm.pos")}, "proprioception 'arm/pos' and 'arm.pos' both"),
        ({"states": ("pos", "observation.pos")}, "proprioception 'pos' and 'observation.pos' both"),
        ({"states": ("images/front",)}, "camera and proprioception 'front' and 'images/front' bo"),
    ],
)
def test_arrays_of_one_feature_are_an_error(
    names: dict[str, tuple[str, ...]], message: str, tmp_path: Path
) -> None:
    with pytest.raises(StrapError, match=f"'demo_0': {message}.*leave one out, or rename it"):
        write_lerobot(tmp_path / "out", [recorded(**names)])
    assert list(tmp_path.iterdir()) == []


def test_arrays_of_one_feature_in_a_later_trajectory(tmp_path: Path) -> None:
    later = recorded("demo_1", cameras=("front", "observation.images.front"))
    with pytest.raises(StrapError, match="'demo_1': cameras 'front' and 'observation"):
        write_lerobot(tmp_path / "out", [recorded(), later])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("chosen", "grey"), [("front", 0), ("observation.images.front", 100), ("wrist", 200)]
)
def test_of_two_cameras_of_one_feature_the_chosen_one_is_written(
    chosen: str, grey: int, tmp_path: Path
) -> None:
    own = recorded(cameras=("front", "observation.images.front", "wrist"))
    out = write_lerobot(tmp_path / "out", [own], cameras=[chosen])
    again = strap.open_dataset(out)["episode_000000"]
    (name,) = again.cameras
    assert abs(again.frames(name).astype(int) - grey).max() < 5


NUMBERS = np.arange(FRAMES, dtype=np.float32)
TAKEN = [
    *("timestamp", "frame_index", "episode_index", "index", "task_index"),
    *("action", "observation.state", "observation.ee_pos", "observation.images.front"),
]


def test_extras_without_a_column_are_named_in_one_warning(tmp_path: Path) -> None:
    rows = {"a/c": NUMBERS, "a.c": -NUMBERS, **dict.fromkeys(TAKEN, NUMBERS)}
    unfit = {"depth": np.zeros((FRAMES, 2, 2)), "note": np.full(FRAMES, "x")}
    both = [recorded(extras={**rows, **unfit}), recorded("demo_1", extras=rows)]
    with pytest.warns(UserWarning, match="left out of the dataset") as seen:
        out = write_lerobot(tmp_path / "out", both)
    (told,) = (str(warning.message) for warning in seen)
    listing = [f"{name} (not one row of numbers per frame)" for name in unfit]
    listing += [f"{name} (its name is taken: rename it)" for name in ("a.c", *TAKEN)]
    assert told == f"left out of the dataset: {', '.join(listing)}"
    assert list(strap.open_dataset(out)["episode_000001"].extras) == ["a.c"]
    assert strap.open_dataset(out)["episode_000001"].extras["a.c"][:].tolist() == NUMBERS.tolist()


def test_a_converted_dataset_names_its_robot(tmp_path: Path) -> None:
    made = write_lerobot(tmp_path / "a", [recorded()], robot_type="panda")
    again = convert(strap.open_dataset(made), tmp_path / "b")
    assert strap.open_dataset(again).robot_type == "panda"


def test_lerobot_to_lerobot_warns_of_no_bookkeeping(v3: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = write_lerobot(tmp_path / "out", strap.open_dataset(v3))
    assert list(strap.open_dataset(out)["episode_000000"].extras) == ["next.reward", "next.done"]


def test_skill_labels_are_not_left_out(tmp_path: Path) -> None:
    labels = {SKILL: np.full(FRAMES, "grasp"), OBJECT: np.full(FRAMES, "bowl")}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = write_lerobot(tmp_path / "out", [recorded(extras=labels)])
    assert (out / "meta/skills.parquet").is_file()


@pytest.mark.parametrize(
    ("dtype", "native"),
    [(">f4", "float32"), (">f8", "float64"), (">i8", "int64"), (">f2", "float32")],
)
def test_big_endian_numbers_are_written_as_native_ones(
    dtype: str, native: str, tmp_path: Path
) -> None:
    own = recorded(dtype=dtype, extras={"reward": NUMBERS.astype(dtype)})
    out = write_lerobot(tmp_path / "out", [own])
    features = json.loads((out / INFO).read_text())["features"]
    assert features["action"]["dtype"] == features["reward"]["dtype"] == native
    again = strap.open_dataset(out)["episode_000000"]
    np.testing.assert_array_equal(again.actions[:], own.actions[:])
    np.testing.assert_array_equal(again.extras["reward"][:], NUMBERS)


@pytest.mark.parametrize(
    "name", ["con\\x", "n" * 250, "é" * 125], ids=["backslash", "long", "long in bytes"]
)
def test_a_camera_whose_name_is_no_folder_is_an_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(StrapError, match=r"camera '.*no backslash and at most 220 bytes; rename"):
        write_lerobot(tmp_path / "out", [recorded(cameras=(name,))])
    assert list(tmp_path.iterdir()) == []


def test_a_camera_of_the_longest_name(tmp_path: Path) -> None:
    name = "n" * (MAX_KEY_BYTES - len(IMAGES))
    out = write_lerobot(tmp_path / "out", [recorded(cameras=(name,))])
    assert list(strap.open_dataset(out)["episode_000000"].cameras) == [name]
