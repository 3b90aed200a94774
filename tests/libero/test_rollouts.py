"""Rollouts in the real simulator: what a policy sees there is what it was trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import strap
from strap.cli import main
from strap.evaluation.libero_simulator import LiberoSimulator
from strap.evaluation.records import read_records
from strap.libero.environment import LiberoEnv
from strap.libero.tasks import Task

SUITE, SHORT = "libero_90", "KITCHEN_SCENE10_close_the_top_drawer_of_the_cabinet"


def test_a_fresh_environment_shows_what_was_recorded(task: Task, demo_file: Path) -> None:
    """Names, orientation, time and every pixel: before action t, observation t.

    Nothing is reset before: no markers of robosuite's may be in the picture.
    """
    dataset = strap.open_dataset(demo_file)
    trajectory = dataset[dataset.ids[0]]
    with LiberoEnv(task, size=64) as fresh:
        simulator = LiberoSimulator(fresh, str(demo_file))
        seen = simulator.begin(0)
        assert not seen.solved
        assert list(seen.goals.values()) == [False]
        for t in range(3):
            for camera in ("agentview_rgb", "eye_in_hand_rgb"):
                assert np.array_equal(seen.images[camera], trajectory.frames(camera, t, t + 1)[0])
            for key in ("ee_pos", "ee_ori", "gripper_states", "joint_states"):
                recorded = trajectory.proprioception[key][t]
                np.testing.assert_allclose(seen.proprioception[key], recorded, atol=1e-6)
            seen = simulator.step(trajectory.actions[t])


def test_the_command(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", str(checkpoint), "--suite", SUITE, "--task", SHORT, "--out"]
    words += [str(tmp_path / "e"), "--episodes", "1", "--horizon", "3", "--workers", "1"]
    assert main(words) == 0
    assert "0 of 1 episodes succeeded" in capsys.readouterr().out
    row = read_records(tmp_path / "e")[0]
    assert (row["steps"], row["success"], row["partial"]) == (3, False, 0.0)
    assert (tmp_path / "e" / row["video"]).stat().st_size > 500
