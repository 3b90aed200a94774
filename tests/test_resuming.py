"""A conversion that was killed goes on with its own data and options, never with other ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from tests import forks

import strap
from strap.cli import main
from strap.conversion import convert
from strap.datasets import robomimic
from strap.datasets.lerobot import write_lerobot, writing
from strap.errors import StrapError


def call_slowly(*words: str) -> int:
    """Call `strap`; each trajectory takes a moment to write."""

    def slowed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            time.sleep(0.05)
            return function(*arguments)

        return call

    robomimic._write_demo = slowed(robomimic._write_demo)
    writing.write_episode = slowed(writing.write_episode)
    return main(words)


def write_clips(file: Path, count: int, value: int | None = None) -> Path:
    """Demonstrations of a resting arm; pictures and actions are random, or all of one value."""
    rng = np.random.default_rng(count)
    with h5py.File(file, "w") as handle:
        for index in range(count):
            demo = handle.create_group(f"data/demo_{index}")
            demo["actions"] = (
                rng.random((20, 7)) if value is None else np.full((20, 7), value / 255)
            )
            pictures = rng.integers(0, 255, (20, 16, 16, 3), dtype=np.uint8)
            demo["obs/view"] = pictures if value is None else np.full_like(pictures, value)
            demo["obs/ee_pos"] = np.zeros((20, 3))
        handle["data"].attrs["fps"] = 10.0
    return file


def kill_after(n_finished: int, *words: str, out: Path) -> None:
    """Start a conversion and kill it once some of its trajectories are finished."""
    parts = out.with_name(f".{out.name}.partial")
    child = forks.start(call_slowly, *words)
    deadline = time.monotonic() + 60
    while child.is_alive() and time.monotonic() < deadline:
        finished = [*parts.glob("demo_*.hdf5"), *parts.glob("pieces/*.json")]
        if len(finished) >= n_finished:
            break
        time.sleep(0.005)
    child.kill()
    child.join()
    assert parts.exists()
    assert not out.exists()


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


@pytest.mark.parametrize("name", ["out", "out.hdf5"])
def test_convert_does_not_resume_another_datasets_trajectories(tmp_path: Path, name: str) -> None:
    one, other = write_clips(tmp_path / "a.hdf5", 12, 40), write_clips(tmp_path / "b.hdf5", 12, 200)
    out = tmp_path / name
    kill_after(4, "convert", str(one), str(out), out=out)
    assert main(["convert", str(other), str(out)]) == 0
    for trajectory in strap.open_dataset(out):
        assert np.allclose(trajectory.actions[:], 200 / 255, atol=1e-3)
        camera = next(iter(trajectory.cameras))
        assert abs(trajectory.frames(camera).astype(int) - 200).max() < 8
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("name", ["out", "out.hdf5"])
def test_convert_does_not_resume_in_another_orientation(tmp_path: Path, name: str) -> None:
    data = write_clips(tmp_path / "a.hdf5", 8)
    out, plain = tmp_path / name, tmp_path / f"plain-{name}"
    kill_after(3, "convert", str(data), str(out), "--orientation", "upright", out=out)
    words = ["--orientation", "flipped"]
    assert main(["convert", str(data), str(out), *words]) == 0
    assert main(["convert", str(data), str(plain), *words]) == 0
    for one, other in zip(strap.open_dataset(out), strap.open_dataset(plain), strict=True):
        for camera in one.cameras:
            assert np.array_equal(one.frames(camera), other.frames(camera))
    assert leftovers(tmp_path) == []


def test_export_does_not_resume_another_runs_trajectories(tmp_path: Path) -> None:
    target, prior = write_clips(tmp_path / "t.hdf5", 2), write_clips(tmp_path / "p.hdf5", 9)
    for run, k in (("one", "8"), ("two", "5")):
        words = ["--target", str(target), "--prior", str(prior), "--encoder", "pixels"]
        assert main(["retrieve", *words, "--top-k", k, "--out", str(tmp_path / run)]) == 0
    out = tmp_path / "out"
    kill_after(2, "export", str(tmp_path / "one"), "--as", "lerobot", "--out", str(out), out=out)
    assert main(["export", str(tmp_path / "two"), "--as", "lerobot", "--out", str(out)]) == 0
    plain = tmp_path / "plain"
    assert main(["export", str(tmp_path / "two"), "--as", "lerobot", "--out", str(plain)]) == 0
    for one, other in zip(strap.open_dataset(out), strap.open_dataset(plain), strict=True):
        assert np.array_equal(one.actions[:], other.actions[:])
        assert one.attributes["provenance"] == other.attributes["provenance"]
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("name", ["out", "out.hdf5"])
def test_killed_between_rename_and_clean_up(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out = write_clips(tmp_path / "a.hdf5", 3), tmp_path / name
    place = "lerobot.finished_episodes" if name == "out" else "robomimic"
    with monkeypatch.context() as patch:
        patch.setattr(f"strap.datasets.{place}.remove_folder", killed)
        with pytest.raises(KeyboardInterrupt):
            convert(strap.open_dataset(data), out)
    assert out.exists()
    assert leftovers(tmp_path)
    assert main(["convert", str(data), str(out)]) == 0
    assert leftovers(tmp_path) == []
    assert len(strap.open_dataset(out)) == 3


def killed(folder: Path) -> None:
    if folder.exists():
        raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["out", "out.hdf5"])
def test_two_conversions_into_one_output(tmp_path: Path, name: str) -> None:
    data, out = write_clips(tmp_path / "a.hdf5", 10), tmp_path / name
    logs = [tmp_path / "first.log", tmp_path / "second.log"]
    both = [forks.start(call_slowly, "convert", str(data), str(out), log=log) for log in logs]
    for process in both:
        process.join()
    said = [log.read_text() for log in logs]
    codes = sorted(process.exitcode for process in both)
    assert codes in ([0, 0], [0, 2]), said
    assert not any("Traceback" in text for text in said)
    if codes == [0, 2]:
        assert any("another process is writing" in text for text in said)
    assert len(strap.open_dataset(out)) == 10
    assert leftovers(tmp_path) == []


def test_a_dataset_that_somebody_else_wrote_is_not_taken_for_ours(tmp_path: Path) -> None:
    data, out = strap.open_dataset(write_clips(tmp_path / "a.hdf5", 2)), tmp_path / "out"
    write_lerobot(out, list(data))
    with pytest.raises(StrapError, match="exists already"):
        convert(data, out)
