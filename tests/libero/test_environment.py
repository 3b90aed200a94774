from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from strap.errors import StrapError
from strap.libero import distribution
from strap.libero.environment import CAMERAS, IDLE, LiberoEnv
from strap.libero.rendering import backend
from strap.libero.rendering.renderer import Renderer, SequenceRenderer
from strap.libero.tasks import (
    Task,
    find_task,
    list_suites,
    list_tasks,
    load_fixed_states,
)


def test_suites_and_tasks() -> None:
    assert {"libero_90", "libero_10"} <= set(list_suites())
    assert len(list_tasks("libero_90")) == 90
    task = find_task("libero_10", 0)
    assert task.instruction == "put both the alphabet soup and the tomato sauce in the basket"
    assert task.goals[0].as_list() == ["in", "alphabet_soup_1", "basket_1_contain_region"]
    assert task.file_name.endswith("_in_the_basket_demo.hdf5")


def test_unknown_names_are_explained() -> None:
    with pytest.raises(StrapError, match=r"unknown LIBERO suite 'libero_9'.*libero_90"):
        list_tasks("libero_9")
    with pytest.raises(StrapError, match=r"matches \d+ tasks of libero_90"):
        find_task("libero_90", "close")
    with pytest.raises(StrapError, match="'turn on the stove' matches 2 tasks of libero_90"):
        find_task("libero_90", "turn on the stove")  # in two scenes; others go on after it
    assert find_task("libero_goal", "turn on the stove").name == "turn_on_the_stove"
    with pytest.raises(StrapError, match="tasks 0 to 9, not 10"):
        find_task("libero_10", 10)


def test_a_step_is_rendered_and_not_black(env: LiberoEnv) -> None:
    env.sample(0)
    env.step(IDLE)
    seen = env.observe()
    for camera in ("agentview", "eye_in_hand"):
        assert seen.images[camera].shape == (64, 64, 3)
        assert seen.images[camera].mean() > 20
        assert seen.images[camera].std() > 10
    assert seen.ee_states.shape == (6,)
    assert seen.robot_states.shape == (9,)


def test_upright_turns_the_stored_image_over(env: LiberoEnv) -> None:
    env.sample(0)
    seen = env.observe()
    upright = seen.upright("agentview")
    assert np.array_equal(upright[::-1], seen.images["agentview"])
    # The table fills the lower part of an upright frame; the dark kitchen is behind it.
    assert upright[-15:].mean() > upright[:15].mean() + 20


def test_placements_follow_the_seed_and_are_not_the_fixed_ones(env: LiberoEnv, task: Task) -> None:
    env.sample(3)
    first = env.state()
    env.sample(4)
    assert np.abs(env.state()[1:] - first[1:]).max() > 1e-3
    env.sample(3)
    assert np.array_equal(env.state(), first)
    objects = slice(10, 40)
    gaps = np.abs(load_fixed_states(task)[:, objects] - first[objects]).max(axis=1)
    assert gaps.min() > 1e-3


def test_fixed_states_are_reached(env: LiberoEnv, task: Task) -> None:
    env.fixed(7)
    stored = load_fixed_states(task)[7]
    joints = slice(1, 8)
    assert np.abs(env.state()[joints] - stored[joints]).max() < 0.05
    with pytest.raises(StrapError, match="initial states 0 to 49, not 50"):
        env.fixed(50)


def test_restoring_a_state_repeats_exactly(env: LiberoEnv) -> None:
    env.sample(1)
    start = env.state()
    actions = np.random.default_rng(0).uniform(-0.5, 0.5, (5, 7))
    ends = []
    for _ in range(2):
        env.restore(start)
        for action in actions:
            env.step(action)
        ends.append(env.state())
    assert np.array_equal(ends[0], ends[1])


def test_stepping_agrees_with_robosuite(env: LiberoEnv) -> None:
    env.sample(1)
    start = env.state()
    actions = np.random.default_rng(0).uniform(-0.5, 0.5, (8, 7))
    env.restore(start)
    for action in actions:
        env.step(action)
    ours = env.state()
    env.restore(start)
    for action in actions:
        env._control.step(action)
    assert np.abs(ours - env.state()).max() < 1e-5


def test_what_never_moves_is_drawn_once_and_looks_the_same(env: LiberoEnv) -> None:
    env.sample(2)
    states = []
    for _ in range(6):
        states.append(env.state())
        env.step(np.array([0.8, 0.4, -0.8, 0.0, 0.3, 0.0, -1.0]))
    assert env.renderer.can_layer
    for camera in CAMERAS.values():
        sequence = SequenceRenderer(env.renderer, camera, states)
        for state in (states[0], states[-1]):
            env.show(state)
            whole = env.renderer.render(camera)
            # Rounding in the blending of textures may differ in the last bit.
            assert np.abs(sequence.render().astype(int) - whole).max() <= 2


@pytest.fixture(scope="module")
def stove() -> Iterator[LiberoEnv]:
    with LiberoEnv(find_task("libero_90", 44), cameras=False) as made:
        yield made


@pytest.mark.parametrize("scene", ["env", "stove"])  # the plate of the stove mirrors
def test_triangles_that_are_left_out_do_not_show(
    scene: str, request: pytest.FixtureRequest
) -> None:
    made: LiberoEnv = request.getfixturevalue(scene)
    made.sample(2)
    faces, pictures = made.model.mesh_face.copy(), {}
    for cull_triangles in (True, False):
        renderer = Renderer(made.model, made.data, 128, cull_triangles=cull_triangles)
        pictures[cull_triangles] = [renderer.render(camera) for camera in CAMERAS.values()]
        assert renderer.can_layer == (scene == "env")
        if renderer.culler is None:
            assert not cull_triangles
        else:
            assert 0 < renderer.culler.n_compiled < 0.1 * len(faces)
        renderer.close()
    assert np.array_equal(made.model.mesh_face, faces)
    assert made.model.mesh_facenum.sum() == len(faces)
    assert np.array_equal(pictures[True], pictures[False])


def test_no_backend_names_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(backend.TRIED_BACKEND, raising=False)
    monkeypatch.setattr(backend, "try_backend", lambda name: f"no {name}")
    text = r"egl: no egl; osmesa: no osmesa.*apt-get install -y libegl1 .*libosmesa6"
    with pytest.raises(StrapError, match=text):
        backend.select_backend()


def test_missing_libero_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "find_spec", lambda name: None)
    with pytest.raises(StrapError, match=r"\[libero\]"):
        distribution.import_libero()


def test_the_arm_begins_where_the_benchmark_has_it(env: LiberoEnv, moved: LiberoEnv) -> None:
    """Joints vary where they should, by about as much as in the fixed states."""

    def spread(environment: LiberoEnv, place: Callable[[int], None]) -> float:
        joints = []
        for number in range(6):
            place(number)
            joints.append(environment.proprioception().joint_states)
        return float(np.std(joints, axis=0).mean())

    assert spread(env, env.sample) < 1e-3
    assert 0.01 < spread(moved, moved.sample) < 0.04
    assert 0.01 < spread(env, env.fixed) < 0.04


@pytest.mark.parametrize("value", ["eglx", "egl"])
def test_an_opengl_backend_that_does_not_load_is_named(tmp_path: Path, value: str) -> None:
    (tmp_path / "OpenGL").mkdir()  # what PyOpenGL does without its library
    text = "raise AttributeError(\"'NoneType' object has no attribute 'eglQueryString'\")"
    (tmp_path / "OpenGL" / "__init__.py").write_text(text)
    words = ["libero", "collect", "--suite", "libero_10", "--demos", "1", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "strap", *words],
        env={**os.environ, "MUJOCO_GL": value, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("strap: error: MuJoCo cannot load the OpenGL backend that MUJOCO")
    assert f"MUJOCO_GL={value} names" in done.stderr
    assert "apt-get install -y libegl1" in done.stderr
