"""What `inspect` says of a dataset, and the contact sheet."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.datasets.writers import (
    episodes,
    picture,
    write_lerobot_v3,
    write_lerobot_v21,
    write_rlds,
)

from strap.datasets.base import Dataset
from strap.datasets.lerobot import open_lerobot
from strap.datasets.rlds import open_rlds
from strap.errors import StrapError
from strap.inspection import inspect, position_candidates, write_contact_sheet
from strap.lazy_arrays import LazyArray, lazy
from strap.types import Source, Trajectory


def opened(opener, path: Path, **options: object) -> Dataset:
    name, reader = opener(path, **options)
    return Dataset(path, name, reader)


def test_lerobot(tmp_path: Path) -> None:
    dataset = opened(open_lerobot, write_lerobot_v3(tmp_path / "d", episodes((9, 1, 14))))
    found = inspect(dataset)
    assert (found.episodes, found.frames, found.exact) == (3, 24, True)
    assert found.cameras == {"front": (48, 64), "wrist": (48, 64)}
    assert found.fps == 10
    assert found.instructions == {"pick up the cup": 2, "open the drawer": 1}
    assert found.proprioception == {"observation.state": 5}
    assert found.positions == ["observation.state[0,1,2]"]
    assert found.lengths.counts == (1, 1, 1)
    assert found.notes == ()
    text = str(found)
    for part in ("episodes        3", "front 48×64", "2 × pick up the cup", "lerobot-v3.0"):
        assert part in text


def test_rlds_and_a_missing_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRAP_CACHE", str(tmp_path / "cache"))
    write_rlds(tmp_path / "1.0.0")
    found = inspect(opened(open_rlds, tmp_path / "1.0.0"))
    assert (found.episodes, found.frames, found.fps) == (3, 15, 15)
    assert found.positions == ["cartesian_position[0:3]"]
    root = write_lerobot_v21(tmp_path / "d", episodes((4, 4, 4)))
    (root / "videos/chunk-000/observation.images.wrist/episode_000001.mp4").unlink()
    shown = str(inspect(opened(open_lerobot, root)))
    assert "the video of camera wrist is missing in 1 of 3 trajectories (episode_000001)" in shown
    assert "--missing skip" in shown
    assert "cannot be read" not in shown
    shown = str(inspect(opened(open_lerobot, root, missing="skip")))
    assert "skipped 1 of 3" in shown
    assert "is missing in" not in shown


def test_a_missing_shard_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRAP_CACHE", str(tmp_path / "cache"))
    write_rlds(tmp_path / "1.0.0")
    next((tmp_path / "1.0.0").glob("*00000-of-00002")).unlink()
    found = inspect(opened(open_rlds, tmp_path / "1.0.0"))
    shown = "the shard is missing in 2 of 3 trajectories (train/000000, train/000001)"
    assert shown in found.notes
    assert found.sampled == 1


class Endless:
    """A reader of very many trajectories, each slow to look at."""

    files = ()

    def __init__(self, count: int, pause: float = 0.0) -> None:
        self.metadata: dict[str, object] = {}
        self.ids = [f"t{i}" for i in range(count)]
        self.pause = pause
        self.frames_read = 0

    def read(self, name: str) -> Trajectory:
        time.sleep(self.pause)
        length = 10 + int(name[1:]) % 5

        def frames(start: int, stop: int) -> np.ndarray:
            self.frames_read += stop - start
            return np.zeros((stop - start, 48, 64, 3), np.uint8)

        camera = LazyArray((length, 48, 64, 3), np.dtype(np.uint8), frames)
        return Trajectory(
            id=name,
            length=length,
            instruction="",
            cameras={"dark": camera},
            proprioception={"ee_pose": lazy(np.zeros((length, 7)))},
            actions=lazy(np.zeros((length, 2))),
            source=Source(Path("x"), name),
        )


def test_any_size_in_seconds() -> None:
    reader = Endless(1_000_000, pause=0.001)
    found = inspect(Dataset(Path("x"), "test", reader), seconds=0.3)
    assert not found.exact
    assert found.episodes == 1_000_000
    assert found.frames == pytest.approx(12e6, rel=0.1)
    assert 10 < found.sampled < 400
    assert reader.frames_read <= 3
    assert found.positions == ["ee_pose[0:3]"]
    assert "estimated from" in str(found)
    assert "camera dark is black" in str(found)
    assert "no instruction in" in str(found)


def test_an_empty_dataset() -> None:
    empty = Dataset(Path("x"), "test", Endless(0))
    with pytest.raises(StrapError, match="holds no trajectories"):
        inspect(empty)
    with pytest.raises(StrapError, match="no camera to show"):
        write_contact_sheet(empty, Path("never.png"))


def test_control_characters_are_shown_not_sent(tmp_path: Path) -> None:
    """What a terminal would act on, in instructions, ids and names, is written out."""

    class Hostile(Endless):
        def read(self, name: str) -> Trajectory:
            plain = super().read(name)
            return replace(
                plain,
                id="\x1b[2Jt",
                instruction="put\x1b]0;owned\x07 it\nepisodes        99" if name == "t0" else "",
                cameras={"wrist\x9b31m": plain.cameras["dark"]},
                proprioception={"state\u202e": plain.proprioception["ee_pose"]},
            )

    dataset = Dataset(Path("a\x1b[1mb"), "test", Hostile(2))
    text = str(inspect(dataset))
    assert all(line.isprintable() for line in text.splitlines())
    assert text.count("\nepisodes") == 1
    for shown in (
        r"a\x1b[1mb",
        r"1 × put\x1b]0;owned\x07 it\nepisodes",
        r"wrist\x9b31m 48×64",
        r"state\u202e [7]",
        r"no instruction in 1 trajectories (\x1b[2Jt)",
    ):
        assert shown in text
    assert write_contact_sheet(dataset, tmp_path / "sheet.png").is_file()


def test_a_text_without_end_is_cut() -> None:
    reader = Endless(1)
    found = inspect(Dataset(Path("x"), "test", reader))
    text = str(replace(found, instructions={"a" * 10_000: 1}))
    assert f"    1 × {'a' * 199}…\n" in text


def test_a_contact_sheet_leaves_out_trajectories_without_frames(tmp_path: Path) -> None:
    class Short(Endless):
        def read(self, name: str) -> Trajectory:
            plain = super().read(name)
            if name == "t1":
                return plain
            empty = {"dark": lazy(np.zeros((0, 48, 64, 3), np.uint8))}
            return replace(plain, length=0, cameras=empty)

    dataset = Dataset(Path("x"), "test", Short(3))
    out = write_contact_sheet(dataset, tmp_path / "sheet.png", frames=2)
    with Image.open(out) as sheet:
        assert sheet.size == (2 * 164 + 4, 120 + 18 + 4)


def test_position_candidates() -> None:
    base = Endless(1).read("t0")

    def of(names: dict[str, object] | None = None, **arrays: int) -> list[str]:
        states = {key: lazy(np.zeros((10, width))) for key, width in arrays.items()}
        attributes = {"feature_names": names or {}}
        return position_candidates(replace(base, proprioception=states, attributes=attributes))

    assert of(robot0_eef_pos=3, robot0_joint_pos=7) == ["robot0_eef_pos"]
    assert of(state=26) == []  # joint angles, maybe: not offered
    assert of({"state": ["joint", "eef_x", "eef_y", "eef_z"]}, state=4) == ["state[1,2,3]"]
    assert of({"state": [["x", "y", "z"]]}, state=3) == ["state[0,1,2]"]


def test_contact_sheet(tmp_path: Path) -> None:
    dataset = opened(open_lerobot, write_lerobot_v3(tmp_path / "d", episodes((9, 1, 14))))
    out = write_contact_sheet(dataset, tmp_path / "sheet.png", trajectories=2, frames=3)
    with Image.open(out) as sheet:
        pixels = np.asarray(sheet.convert("RGB")).astype(int)
    height, width = 120, 160
    assert sheet.size == (3 * (width + 4) + 4, 4 * (height + 18) + 4)
    first = np.asarray(Image.fromarray(picture(0)).resize((width, height))).astype(int)
    assert np.abs(pixels[18 : 18 + height, 4 : 4 + width] - first).mean() < 4
