"""Movement, the threshold that is chosen from it, and what is said where stops are odd."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

import strap
from strap.errors import StrapError
from strap.lazy_arrays import lazy
from strap.position_columns import joint_candidates, moving_columns, position_candidates
from strap.segments import RELEASED_EPSILON, Segmentation, cut_dataset, with_default_epsilon
from strap.stop_frames import Movements, choose_threshold, explain_stops, measure_movements
from strap.types import Source, Trajectory

SAMPLE = Path(__file__).parent.parent / "samples" / "libero-mini"
SO100 = ["shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper"]


def recorded(name: str = "t", length: int = 100, **arrays: np.ndarray) -> Trajectory:
    return Trajectory(
        id=name,
        length=length,
        instruction="",
        cameras={},
        proprioception={key.replace("__", "."): lazy(array) for key, array in arrays.items()},
        actions=lazy(np.zeros((length, 6))),
        source=Source(Path("x"), name),
        fps=30.0,
        attributes={"feature_names": {"observation.state": SO100, "state": SO100}},
    )


def joint_path(seed: int = 0) -> np.ndarray:
    """Six joint angles in degrees [120 6]: the arm moves, rests while the gripper closes, moves."""
    rng = np.random.default_rng(seed)
    speed = np.concatenate([np.full(50, 1.0), np.zeros(15), np.full(55, 1.0)])
    steps = speed[:, None] * rng.uniform(0.5, 1.5, (120, 6)) + rng.normal(0, 0.01, (120, 6))
    steps[:, 5] = np.where(speed == 0, 5.0, 0.0)  # the gripper
    return np.cumsum(steps, axis=0).astype(np.float32)


def quiet(trajectories: list[Trajectory], **options: object) -> tuple[list, list[str]]:
    """Cut, and return segments and what was said."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = strap.segment(trajectories, **options)  # type: ignore[arg-type]
    return [(s.start, s.stop) for s in found], [str(w.message) for w in caught]


@pytest.mark.parametrize("name", ["observation__state", "state"])
def test_joints_in_degrees_are_cut_where_the_arm_rests(name: str) -> None:
    own = recorded(length=120, **{name: joint_path()})
    found, said = quiet([own])
    assert found == [(0, 50), (50, 120)]
    shown = name.replace("__", ".")
    assert any(
        f"no end-effector position: cut where the joints {shown}[0:5] rest (by their size in "
        "degrees)" in text
        for text in said
    )
    assert any("epsilon auto is" in text and "degrees per step" in text for text in said)


def test_an_epsilon_that_is_given_is_taken_for_joints_too() -> None:
    own = recorded(length=120, observation__state=joint_path())
    with pytest.warns(UserWarning, match="no end-effector position"):
        cuts = cut_dataset([own], Segmentation(epsilon=0.9))
    assert cuts.segmentation.epsilon == 0.9
    assert cuts.movements is not None
    assert cuts.movements.unit == "degrees per step"


def test_which_columns_move() -> None:
    path = joint_path()
    state = recorded(length=120, observation__state=path)
    assert moving_columns(state) == ("observation.state[0:5]", "joints")
    assert moving_columns(state, "observation.state[1:3]") == ("observation.state[1:3]", "columns")
    both = recorded(length=120, observation__ee_pos=path[:, :3], joint_positions=path)
    assert moving_columns(both) == ("observation.ee_pos", "end effector")
    assert moving_columns(both, "joint_positions") == ("joint_positions", "joints")
    assert joint_candidates(both) == ["joint_positions"]
    grips = recorded(length=120, gripper_joint=path[:, :1], joint_vel=path)
    assert joint_candidates(grips) == []
    assert joint_candidates(recorded(length=120, left=path)) == ["left"]
    with pytest.raises(StrapError, match=r"no end-effector position .*gripper_joint, joint_vel"):
        moving_columns(grips)


@pytest.mark.parametrize("prefix", ["", "observation__", "observations__", "obs__"])
def test_positions_are_found_under_any_prefix(prefix: str) -> None:
    path = joint_path()
    plain = prefix.replace("__", ".")
    own = recorded(length=120, **{f"{prefix}eef_pos": path[:, :3]})
    assert position_candidates(own)[0] == f"{plain}eef_pos"
    own = recorded(length=120, **{f"{prefix}cartesian_position": path})
    assert position_candidates(own)[0] == f"{plain}cartesian_position[0:3]"


def test_units_are_told_by_size() -> None:
    path = joint_path()

    def unit(**arrays: np.ndarray) -> str:
        options = {"position": None, "norm": "l1", "unit": "second"}
        found = measure_movements([recorded(length=120, **arrays)], **options)  # type: ignore[arg-type]
        assert found is not None
        return found.unit

    assert unit(ee_pos=path[:, :3] / 1000) == "m per second"
    assert unit(ee_pos=path[:, :3]) == "mm per second"
    assert unit(joint_states=path) == "degrees per second"
    assert unit(joint_states=path * np.pi / 180) == "rad per second"


@pytest.mark.parametrize("task", ["mug-mug", "soup-cheese", "soup-sauce"])
def test_auto_cuts_the_sample_as_the_paper_does(task: str) -> None:
    target = strap.open_dataset(SAMPLE / "target" / task)
    paper = cut_dataset(target, Segmentation())
    with pytest.warns(UserWarning, match="epsilon auto is"):
        auto = cut_dataset(target, Segmentation(epsilon="auto"))
    assert paper.segmentation.epsilon == RELEASED_EPSILON
    assert auto.segmentation.epsilon == pytest.approx(RELEASED_EPSILON, rel=0.05)
    assert any("45 % of the upper quartile" in note for note in auto.notes)
    ours = {(s.trajectory_id, s.start) for s in auto.segments}
    near = [
        any((s.trajectory_id, s.start + offset) in ours for offset in range(-10, 11))
        for s in paper.segments
    ]
    assert np.mean(near) >= 0.95
    assert abs(len(auto.segments) - len(paper.segments)) <= 1


def moving_at(*speeds: np.ndarray) -> Movements:
    values = {f"t{i}": own for i, own in enumerate(speeds)}
    return Movements("ee_pos", "end effector", "m per step", values)


def test_auto_does_not_depend_on_the_scale() -> None:
    speeds = np.random.default_rng(0).gamma(2.0, 1.0, 400)
    first = choose_threshold(moving_at(speeds), 20)
    other = choose_threshold(moving_at(speeds * 1000), 20)
    assert first.is_sensible
    assert other.epsilon == pytest.approx(1000 * first.epsilon, rel=0.01)
    assert other.mean_length == first.mean_length


def test_auto_takes_the_nearest_threshold_with_sensible_segments() -> None:
    # It rests at 0.7 of its speed: 45 % of the upper quartile finds no stop.
    speeds = np.ones(400)
    speeds[40::40] = 0.7
    found = choose_threshold(moving_at(speeds), 20)
    assert 0.7 < found.epsilon <= 1
    assert found.is_sensible
    assert found.mean_length == pytest.approx(40, abs=3)
    assert "nearest to 45 %" in found.reason


def test_auto_passes_over_frames_that_stand_still() -> None:
    speeds = np.tile(np.repeat([0.0, 1.0], [30, 10]), 10)  # the upper quartile of all is 0 or 1
    assert choose_threshold(moving_at(speeds), 20).epsilon == 0.45


def test_no_stop_is_said_with_what_would_work() -> None:
    speeds = np.full(200, 0.02)
    speeds[40::40] = 0.004
    text = explain_stops(moving_at(speeds), 0.001, 20)
    assert "ee_pos moves less than 0.001 m per step nowhere: none of 1 demonstrations" in text
    assert "Movement: 5 % 0.02, 25 % 0.02, 50 % 0.02, 75 % 0.02, 95 % 0.02 m per step" in text
    assert "--epsilon 0.009 (or auto) would give segments of 40 frames" in text
    assert explain_stops(moving_at(speeds), 0.009, 20) == ""


def test_nearly_every_frame_a_stop_is_said() -> None:
    speeds = np.full(200, 0.02)
    speeds[40::40] = 0.004
    text = explain_stops(moving_at(speeds), 1.0, 20)
    assert "in 100 % of all frames: nearly every frame is a stop" in text
    assert "--epsilon 0.009" in text


def test_the_threshold_in_use_is_not_recommended() -> None:
    resting = np.full(200, 0.02)
    resting[20::20] = 0.004
    movements = moving_at(resting, *[np.full(39, 0.02)] * 4)
    epsilon = choose_threshold(movements, 20).epsilon
    assert choose_threshold(movements, 20).is_sensible
    text = explain_stops(movements, epsilon, 20)
    assert "1 of 5 demonstrations is cut. Movement: " in text
    assert text.endswith("m per step.")
    text = explain_stops(moving_at(resting, resting, *[np.full(39, 0.02)] * 4), epsilon, 20)
    assert "2 of 6 demonstrations are cut" in text


def test_even_movement_has_no_threshold() -> None:
    text = explain_stops(moving_at(np.full(200, 0.02)), 0.005, 20)
    assert "No threshold gives segments of 20 to 60 frames" in text
    assert "--segmentation window" in text


def test_what_never_moves_is_an_error() -> None:
    still = recorded(length=60, ee_pos=np.ones((60, 3)))
    for epsilon in (None, "auto", 0.1):
        with pytest.raises(StrapError, match=r"'ee_pos' never changes in 1 demonstrations.*--pos"):
            strap.segment([still], epsilon=epsilon)


def test_demonstrations_too_short_to_be_cut() -> None:
    short = recorded(length=10, ee_pos=np.arange(30.0).reshape(10, 3))
    found, said = quiet([short])
    assert found == [(0, 10)]
    assert said == [
        "the longest demonstration has 10 frames, too few for two segments of at least 20: each "
        "demonstration is one segment; to cut them give --min-length 5 or less"
    ]
    assert quiet([short], min_length=5)[1] != said


def test_the_default_epsilon_is_the_papers_but_for_joints() -> None:
    target = strap.open_dataset(SAMPLE / "target" / "mug-mug")

    def default(**options: object) -> object:
        segmentation = Segmentation(**options)  # type: ignore[arg-type]
        return with_default_epsilon(segmentation, target).epsilon

    assert default() == RELEASED_EPSILON
    assert default(position="observation.joint_states") == "auto"
    assert default(position="observation.joint_states", epsilon=0.1) == 0.1
    assert default(position="nothing") == RELEASED_EPSILON  # cutting tells what is wrong
    assert default(method="window", position="observation.joint_states") == RELEASED_EPSILON


def test_all_demonstrations_are_cut_by_the_same_columns() -> None:
    path = joint_path()
    first = recorded("a", length=120, ee_pos=path[:, :3], joints=path)
    other = recorded("b", length=120, joints=path)
    with pytest.raises(StrapError, match="trajectory 'b': unknown proprioception 'ee_pos'"):
        strap.segment([first, other])
