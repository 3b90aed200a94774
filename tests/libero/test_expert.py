from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from strap.errors import StrapError
from strap.libero.demonstrations.surveys import TaskScore, format_table, survey
from strap.libero.environment import LiberoEnv
from strap.libero.expert.attempts import Attempt, attempt, order_goals, solve
from strap.libero.expert.grasping import count_hits, count_tilted_hits, find_grasps, is_firm
from strap.libero.expert.motion import (
    SKILLS,
    Arm,
    Failed,
    Style,
    point_down,
    relieve_stretch,
    tilt_towards,
)
from strap.libero.expert.placing import Spot, align_turns, penalize_height, rotate
from strap.libero.expert.scene import Scene
from strap.libero.tasks import Goal, find_task


@pytest.fixture(scope="module")
def drawer(env: LiberoEnv) -> Attempt:
    """One attempt at closing a drawer."""
    return attempt(env, 12)


def box(centre: tuple[float, float, float], half: tuple[float, float, float]) -> np.ndarray:
    axes = [np.linspace(-side, side, 13) for side in half]
    return np.stack(np.meshgrid(*axes), -1).reshape(-1, 3) + centre


def test_a_short_task_is_solved_with_every_frame_labelled(drawer: Attempt) -> None:
    assert drawer.solved, drawer.failure
    assert {frame.skill for frame in drawer.frames} <= set(SKILLS)
    assert {frame.object_name for frame in drawer.frames} == {"wooden_cabinet_1"}


def test_an_attempt_is_repeatable_and_varies_on_request(env: LiberoEnv, drawer: Attempt) -> None:
    again = attempt(env, 12)
    assert env.solved()
    assert len(again.frames) == len(drawer.frames)
    assert np.array_equal(again.frames[-1].state, drawer.frames[-1].state)
    other = attempt(env, 12, variation=1)
    assert np.array_equal(other.frames[0].state, drawer.frames[0].state)
    assert not np.array_equal(other.frames[40].action, drawer.frames[40].action)


def test_an_attempt_ends_at_its_step_limit(env: LiberoEnv) -> None:
    env.sample(0)
    arm = Arm(Scene(env), np.random.default_rng(0), Style(), max_steps=3)
    with pytest.raises(Failed, match="not solved within 3 steps"):
        arm.pause(5)


def test_grasps_close_across_the_narrow_side() -> None:
    slim = box((0.0, 0.0, 0.92), (0.05, 0.015, 0.02))  # long in x, 3 cm in y
    best = find_grasps(
        slim, np.zeros((0, 3)), np.array([0, 0, 0.9]), np.array([-0.6, 0, 0.9]),
        np.random.default_rng(0),
    )[0]  # fmt: skip
    assert abs(best.yaw) < 0.3
    assert np.linalg.norm(best.position[:2]) < 0.02


def test_a_round_thing_is_taken_the_same_way_wherever_it_stands() -> None:
    """What nothing in the picture explains, a policy can't learn."""
    yaws = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        angle, radius = rng.uniform(0, 2 * np.pi, (2, 800)), 0.033 * np.sqrt(rng.random(800))
        side = np.stack([0.033 * np.cos(angle[0]), 0.033 * np.sin(angle[0])])
        lid = np.stack([radius * np.cos(angle[1]), radius * np.sin(angle[1])])
        heights = np.concatenate([rng.uniform(0, 0.08, 800), np.full(800, 0.08)])
        place = np.array([*rng.uniform(-0.1, 0.1, 2), 0.9])
        can = place + np.column_stack([np.concatenate([side, lid], axis=1).T, heights])
        centre = place + [0.003 * np.cos(seed), 0.003 * np.sin(seed), 0.04]
        base = np.array([-0.6, 0, 0.9])
        yaws.append(find_grasps(can, np.zeros((0, 3)), centre, base, rng)[0].yaw)
    assert np.ptp(yaws) < 0.35


def test_the_expert_does_not_wait_before_it_closes_its_fingers(drawer: Attempt) -> None:
    frames = drawer.frames
    closes = next(i for i, frame in enumerate(frames) if frame.action[6] > 0)
    assert np.abs(frames[closes - 1].action[:6]).max() > 0
    is_still = [not frame.action[:6].any() for frame in frames]
    runs = "".join("s" if still else "m" for still in is_still).split("m")
    assert max(map(len, runs)) <= 12  # no longer than fingers take to close


def test_grasps_avoid_what_stands_beside() -> None:
    slim = box((0.0, 0.0, 0.92), (0.05, 0.015, 0.02))
    wall = box((0.0, 0.05, 0.95), (0.012, 0.005, 0.05))
    for grasp in find_grasps(
        slim, wall, np.array([0, 0, 0.9]), np.array([-0.6, 0, 0.9]), np.random.default_rng(0)
    ):
        assert count_hits(wall, grasp.position, grasp.yaw) == 0


def test_a_wide_thing_has_no_grasp() -> None:
    wide = box((0.0, 0.0, 0.95), (0.1, 0.1, 0.05))
    assert not find_grasps(
        wide, np.zeros((0, 3)), np.zeros(3), np.array([-0.6, 0, 0.9]), np.random.default_rng(0)
    )


def test_the_hand_tilts_outwards_only_when_far() -> None:
    base = np.array([-0.6, 0.0, 0.9])
    near = relieve_stretch(base, np.array([-0.1, 0.0, 0.95])).magnitude()
    far = relieve_stretch(base, np.array([0.25, 0.0, 0.95]))
    assert near == 0
    assert far.magnitude() > 0.1
    pointing = (far * point_down(0.0)).as_matrix()[:, 2]
    assert pointing[0] > 0.1  # away from the base
    assert pointing[2] < 0


def test_a_leaning_hand_hits_what_an_upright_one_would_in_a_leaning_world() -> None:
    points = np.random.default_rng(0).uniform(-0.2, 0.2, (3000, 3))
    position, yaw = np.array([0.02, -0.01, 0.03]), 0.4
    upright = count_tilted_hits(points, position, point_down(yaw))
    assert upright == count_hits(points, position, yaw) > 0
    lean = tilt_towards(np.array([0.0, 1.0, 0.0]), 0.9)
    hand = lean * point_down(yaw)
    assert count_tilted_hits(lean.apply(points), lean.apply(position), hand) == upright
    assert hand.as_matrix()[1, 2] > 0.7  # it points ahead …
    assert hand.as_matrix()[2, 2] < 0  # … and down


def test_a_grasp_is_firm_where_the_pads_meet_the_thing_squarely() -> None:
    slim = box((0.0, 0.0, 0.0), (0.05, 0.015, 0.05))
    assert is_firm(slim, np.array([0.0, 0.0, 0.03]), point_down(0.0))
    assert not is_firm(slim, np.array([0.0, 0.0, 0.055]), point_down(0.0))  # at its edge
    assert not is_firm(slim, np.array([0.0, 0.0, 0.03]), point_down(1.0))  # askew


def test_a_door_is_opened(moved: LiberoEnv) -> None:
    opened = solve(moved, 1)
    assert opened.solved, opened.failure


def test_a_covered_place_is_reached_from_the_front() -> None:
    with LiberoEnv(find_task("libero_90", 89), cameras=False, arm_noise=0.02) as env:
        book_under_the_shelf = solve(env, 1)
    assert book_under_the_shelf.solved, book_under_the_shelf.failure


def test_rotate_turns_about_the_vertical() -> None:
    assert np.allclose(rotate(np.array([1.0, 0.0, 2.0]), np.pi / 2), [0.0, 1.0, 2.0])


def test_a_long_thing_is_turned_along_a_narrow_compartment() -> None:
    book = rotate(box((0.0, 0.0, 0.0), (0.055, 0.014, 0.07)), 0.3)
    spans = [np.ptp(rotate(book, turn)[:, :2], axis=0) for turn in align_turns(book)]
    assert any(np.allclose(span, [0.028, 0.11], atol=1e-6) for span in spans)
    assert any(np.allclose(span, [0.11, 0.028], atol=1e-6) for span in spans)


def test_spots_across_the_walls_of_a_compartment_cost_more() -> None:
    across, down = Spot(np.array([0, 0, 1.02]), 0.0, 0.03), Spot(np.array([0, 0, 0.9]), 1.5, 0.08)
    costs = [spot.cost for spot in penalize_height([across, down])]
    assert costs[1] == pytest.approx(0.08)
    assert costs[0] > costs[1]


@pytest.mark.parametrize(
    ("suite", "task", "order"),
    [
        ("libero_10", 3, ["in", "close"]),  # the bowl into the drawer, then close it
        ("libero_10", 2, ["turnon", "on"]),
        ("libero_90", 1, ["close", "on"]),
        ("libero_90", 8, ["open", "in"]),
        ("libero_90", 23, ["close", "open"]),
        ("libero_10", 9, ["in", "close"]),
    ],
)
def test_goals_are_put_in_order(suite: str, task: int, order: list[str]) -> None:
    goals = order_goals(find_task(suite, task).goals)
    assert [goal.predicate for goal in goals] == order


def test_what_carries_another_goes_first() -> None:
    goals = order_goals(find_task("libero_90", 63).goals)
    assert goals[0] == Goal("in", "akita_black_bowl_2", "wooden_tray_1_contain_region")


def test_the_table_counts_tasks_that_pass() -> None:
    rows = [
        TaskScore("libero_10", 0, "good", ("in",), 10, 9, 8, 120.0, ("slipped",)),
        TaskScore("libero_10", 1, "bad", ("open",), 10, 3, 3, 90.0, ()),
    ]
    text = format_table(rows)
    assert "libero_10: 1 of 2 tasks" in text
    assert "| 0 | good | in | 9/10 | 8 | 120 |" in text


def test_rows_of_other_surveys_are_not_measured_again(tmp_path: Path) -> None:
    for name, solved in (("first", 2), ("second", 9)):
        row = TaskScore("libero_10", 5, "book", ("in",), 10, solved, solved, 150.0, ())
        content = {"attempts": 10, "noise": 0.04, "arm_noise": 0.02, "first_seed": 0}
        content["tasks"] = [asdict(row)]
        (tmp_path / name).mkdir()
        (tmp_path / name / "survey.json").write_text(json.dumps(content))
    out, other = tmp_path / "first", tmp_path / "second"
    assert survey("libero_10", tasks=[5], out=out)[0].solved == 2
    assert survey("libero_10", tasks=[5], out=out, also=[other])[0].solved == 9
    assert survey("libero_10", tasks=[5], out=out)[0].solved == 9  # it was taken over
    with pytest.raises(StrapError, match="has no survey with attempts=5"):
        survey("libero_10", tasks=[5], attempts=5, out=tmp_path, also=[other])
