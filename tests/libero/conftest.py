"""Fixtures shared by the LIBERO tests: one environment and one collected file for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("libero.libero", reason="needs the libero extra")

from tests.policies.small_policies import save_small_policy

from strap.libero import Collection, LiberoEnv, Task, collect, find_task

SUITE = "libero_90"
SHORT = "KITCHEN_SCENE10_close_the_top_drawer_of_the_cabinet"
SIZE = 64  # of pictures: enough to see what is where


@pytest.fixture(scope="session")
def task() -> Task:
    return find_task(SUITE, SHORT)


@pytest.fixture(scope="session")
def env(task: Task) -> Iterator[LiberoEnv]:
    with LiberoEnv(task, size=SIZE) as made:
        yield made


@pytest.fixture(scope="session")
def moved() -> Iterator[LiberoEnv]:
    """A closed microwave to open, physics only, where the arm begins a little elsewhere."""
    with LiberoEnv(find_task(SUITE, 35), cameras=False, arm_noise=0.02) as made:
        yield made


@pytest.fixture(scope="session")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    out = tmp_path_factory.mktemp("demos")
    return collect(SUITE, demos=2, out=out, tasks=[SHORT], workers=1, size=SIZE)


@pytest.fixture
def demo_file(collected: Collection) -> Path:
    return collected.files[0]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained policy that looks at what LIBERO shows."""
    state = {"ee_pos": 3, "gripper_states": 2}
    cameras = ("agentview_rgb", "eye_in_hand_rgb")
    return save_small_policy(
        tmp_path_factory.mktemp("policy"), cameras=cameras, proprioception=state, action_size=7,
        language_size=64, frame_sizes={},
    )  # fmt: skip
