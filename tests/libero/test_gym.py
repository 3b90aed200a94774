"""LIBERO's tasks as Gymnasium environments."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from tests.pages import ROOT, read_blocks

import strap
from strap.errors import StrapError
from strap.gym import SUITES, LiberoGymEnv, environment_id
from strap.libero import Collection, list_suites

ID = "strap.gym:strap/libero-90-v0"
SHORT = "KITCHEN_SCENE10_close_the_top_drawer_of_the_cabinet"
STATES = ["ee_ori", "ee_pos", "ee_states", "gripper_states", "joint_states"]


@pytest.fixture(scope="module")
def seeing() -> Iterator[LiberoGymEnv]:
    """An environment with both cameras."""
    made = gymnasium.make(ID, task=SHORT, image_size=32, render_mode="rgb_array")
    yield made.unwrapped  # type: ignore[misc]
    made.close()


@pytest.fixture(scope="module")
def blind(collected: Collection) -> Iterator[gymnasium.Env[Any, Any]]:
    """An environment without cameras that can begin where demonstrations begin."""
    made = gymnasium.make(ID, task=0, cameras=(), demos=collected.files[0])
    yield made
    made.close()


def test_gymnasium_s_checker_finds_nothing_wrong(seeing: LiberoGymEnv) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # what the checker warns with
        check_env(seeing)


def test_suites_are_registered_without_loading_the_simulator() -> None:
    code = (
        "import gymnasium, sys, strap.gym\n"
        "print(*sorted(name for name in gymnasium.registry if name.startswith('strap/')))\n"
        "print(*sorted({'mujoco', 'libero', 'robosuite', 'torch', 'h5py'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [" ".join(sorted(map(environment_id, SUITES))), ""]
    assert set(SUITES) <= set(list_suites())


def test_observations_are_named_and_turned_as_in_datasets(
    seeing: LiberoGymEnv, demo_file: Path
) -> None:
    trajectory = strap.open_dataset(demo_file)[strap.open_dataset(demo_file).ids[0]]
    seen, info = seeing.reset(seed=0)
    assert (
        list(seen)
        == list(seeing.observation_space)
        == [*trajectory.cameras, *STATES, "robot_states"]
    )
    assert sorted(trajectory.proprioception) == STATES
    # The table fills the lower part of an upright frame; the dark kitchen is behind it.
    assert seen["agentview_rgb"][-8:].mean() > seen["agentview_rgb"][:8].mean() + 20
    assert np.array_equal(seeing.render(), seen["agentview_rgb"])
    assert info["instruction"] == seeing.instruction == trajectory.instruction
    assert info["goals"] == {"close wooden_cabinet_1_top_region": False}


def test_placements_follow_the_seed_and_leave_numpy_s_generator_alone(
    seeing: LiberoGymEnv,
) -> None:
    np.random.seed(7)
    expected = np.random.random(3)
    np.random.seed(7)
    first = seeing.reset(seed=1)[0]["ee_pos"]
    fixed = seeing.reset(options={"initial_state": 3})[0]["ee_pos"]
    assert np.array_equal(np.random.random(3), expected)
    assert np.array_equal(seeing.reset(options={"initial_state": 3})[0]["ee_pos"], fixed)
    assert np.array_equal(seeing.reset(seed=1)[0]["ee_pos"], first)
    assert not np.array_equal(seeing.reset()[0]["ee_pos"], first)


def test_a_demonstration_s_actions_solve_the_task_from_where_it_began(
    blind: gymnasium.Env[Any, Any], demo_file: Path
) -> None:
    dataset = strap.open_dataset(demo_file)
    trajectory = dataset[dataset.ids[1]]
    seen, _ = blind.reset(options={"initial_state": 1})
    for key in STATES:
        np.testing.assert_allclose(seen[key], trajectory.proprioception[key][0], atol=1e-6)
    rewards = []
    for action in trajectory.actions:
        _, reward, terminated, truncated, info = blind.step(action)
        rewards.append(reward)
        assert not truncated
        assert terminated == info["is_success"] == all(info["goals"].values()) == bool(reward)
        if terminated:
            break
    assert rewards[-1] == 1
    assert sum(rewards) == 1
    with pytest.raises(StrapError, match="has no demo_7: it has 2 demos"):
        blind.reset(options={"initial_state": 7})


def test_many_at_once_are_what_each_is_alone(blind: gymnasium.Env[Any, Any]) -> None:
    options = {"task": 0, "cameras": (), "max_episode_steps": 2}
    several = gymnasium.make_vec(ID, num_envs=2, vectorization_mode="sync", **options)
    try:
        seen, info = several.reset(seed=[5, 6])
        assert list(info["instruction"]) == [blind.get_wrapper_attr("instruction")] * 2
        alone = [blind.reset(seed=seed)[0] for seed in (5, 6)]
        for key in STATES:
            assert np.array_equal(seen[key], [one[key] for one in alone])
        actions = np.full((2, 7), 0.5, np.float32)
        cut = [several.step(actions)[3].tolist() for _ in range(2)]
        assert cut == [[False, False], [True, True]]
    finally:
        several.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "close the fridge"}, r"^unknown task of libero_90 'close the fridge': .*Known: "),
        ({"task": "turn on the stove"}, r"^'turn on the stove' matches 2 tasks of libero_90 \("),
        ({"task": 90}, "^libero_90 has tasks 0 to 89, not 90$"),
        ({"cameras": ["agentview"]}, "^unknown camera 'agentview': did you mean 'agentview_rgb'"),
        ({"image_size": 0}, "^image size 0: a camera needs at least one pixel"),
    ],
)
def test_wrong_options_are_told_in_a_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(StrapError, match=message) as caught:
        gymnasium.make(ID, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("action", [np.zeros(6), np.full(7, np.nan), [[0] * 7]])
def test_actions_that_are_none_are_refused(seeing: LiberoGymEnv, action: Any) -> None:
    with pytest.raises(StrapError, match=r"the action is .*: give 7 finite numbers from -1 to 1"):
        seeing.step(action)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"initial_sate": 3}, "unknown option of reset 'initial_sate': did you mean"),
        ({"initial_state": "3"}, "the initial state is '3': give its number, as options="),
        ({"initial_state": True}, "the initial state is True: give its number"),
        ({"initial_state": 50}, "initial states 0 to 49, not 50"),
    ],
)
def test_initial_states_that_are_none_are_refused(
    seeing: LiberoGymEnv, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(StrapError, match=message):
        seeing.reset(options=options)


def test_without_a_render_mode_nothing_is_shown(blind: gymnasium.Env[Any, Any]) -> None:
    with pytest.warns(UserWarning, match='make the environment with render_mode="rgb_array"'):
        assert blind.unwrapped.render() is None
    with pytest.raises(StrapError, match="unknown render_mode 'human'"):
        LiberoGymEnv("libero_90", 0, render_mode="human")


def test_the_page_s_environment_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = [block for block in read_blocks(ROOT / "docs" / "libero.md") if "gym" in block.mark]
    (snippet,) = (block.text for block in blocks)
    exec(snippet, {})
    (instruction,) = re.findall(r'print\(info\["instruction"\]\)  # (.*)', snippet)
    assert capsys.readouterr().out == f"{instruction}\n"


def test_a_renderer_that_nobody_closes_ends_quietly() -> None:
    code = (
        "import mujoco\n"
        "from strap.libero.rendering.renderer import Renderer\n"
        "scene = '<mujoco><worldbody><camera name=\"front\"/></worldbody></mujoco>'\n"
        "model = mujoco.MjModel.from_xml_string(scene)\n"
        "kept = Renderer(model, mujoco.MjData(model), 32, cull_triangles=False)\n"
        "print(kept.render('front').shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("(32, 32, 3)\n", "")
