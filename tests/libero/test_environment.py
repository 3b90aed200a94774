from __future__ import annotations

import numpy as np
import pytest
from strap.libero.rendering.renderer import Film

from strap.errors import StrapError
from strap.libero.environment import CAMERAS, IDLE, LiberoEnv
from strap.libero.rendering import backend
from strap.libero.rendering import renderer as rendering
from strap.libero.tasks import Task, find_task, fixed_states, list_suites, list_tasks


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
    with pytest.raises(StrapError, match=r"fits \d+ tasks of libero_90"):
        find_task("libero_90", "close")
    with pytest.raises(StrapError, match="tasks 0 to 9, not 10"):
        find_task("libero_10", 10)


def test_a_step_is_rendered_and_not_black(env: LiberoEnv) -> None:
    env.sample(0)
    env.step(IDLE)
    seen = env.observe()
    for camera in ("agentview", "eye_in_hand"):
        assert seen.images[camera].shape == (128, 128, 3)
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
    assert upright[-30:].mean() > upright[:30].mean() + 20


def test_placements_follow_the_seed_and_are_not_the_fixed_ones(env: LiberoEnv, task: Task) -> None:
    env.sample(3)
    first = env.state()
    env.sample(4)
    assert np.abs(env.state()[1:] - first[1:]).max() > 1e-3
    env.sample(3)
    assert np.array_equal(env.state(), first)
    objects = slice(10, 40)
    gaps = np.abs(fixed_states(task)[:, objects] - first[objects]).max(axis=1)
    assert gaps.min() > 1e-3


def test_fixed_states_are_reached(env: LiberoEnv, task: Task) -> None:
    env.fixed(7)
    stored = fixed_states(task)[7]
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


def test_fast_rendering_is_exact(env: LiberoEnv) -> None:
    env.sample(2)
    states = []
    for _ in range(6):
        states.append(env.state())
        env.step(np.array([0.8, 0.4, -0.8, 0.0, 0.3, 0.0, -1.0]))
    nothing = np.zeros(env.model.ngeom, bool)
    for camera in ("agentview", "robot0_eye_in_hand"):
        film = Film(env.painter, camera, states)
        for state in states[::5]:
            env.show(state)
            whole, _ = env.painter.draw(env.model.camera(camera).id, nothing)
            for fast in (film.render(), env.painter.render(camera)):
                # Rounding in the blending of textures may differ in the last bit.
                assert np.abs(fast.astype(int) - whole).max() <= 2


@pytest.mark.parametrize("scene", [0, 44])  # 44 has a stove, whose plate mirrors
def test_triangles_that_are_left_out_do_not_show(
    scene: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LiberoEnv(find_task("libero_90", scene)) as env:
        env.sample(2)
        faces, pictures = env.model.mesh_face.copy(), {}
        for software in (True, False):
            monkeypatch.setattr(rendering, "_is_software", lambda answer=software: answer)
            painter = rendering.Painter(env.model, env.data, 128, antialias=False)
            pictures[software] = [painter.render(camera) for camera in CAMERAS.values()]
            left = env.model.mesh_facenum.sum() / len(faces)
            assert left < 0.1 if software else left == 1
            painter.close()
            assert np.array_equal(env.model.mesh_face, faces)
        assert np.array_equal(pictures[True], pictures[False])


def test_no_backend_names_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(backend.PROBED, raising=False)
    broken = backend.BackendTrial("egl", False, "no display")
    monkeypatch.setattr(backend, "try_backend", lambda name: broken)
    with pytest.raises(StrapError, match=r"apt-get install -y libegl1 .*libosmesa6"):
        backend.select_backend()


def test_missing_libero_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "find_spec", lambda name: None)
    with pytest.raises(StrapError, match=r"pip install 'strap-robot\[libero\]'"):
        backend.import_libero()


def test_the_arm_begins_as_the_benchmark_has_it(task: Task) -> None:
    """Joints vary where asked to, by about as much as in the fixed states."""
    with (
        LiberoEnv(task, cameras=False) as still,
        LiberoEnv(task, cameras=False, arm_noise=0.02) as moved,
    ):
        spread = []
        for seed in range(6):
            still.sample(seed)
            moved.sample(seed)
            ours, theirs = moved.proprioception(), still.proprioception()
            spread.append(ours.joint_states - theirs.joint_states)
        benchmark = []
        for index in range(6):
            still.fixed(index)
            benchmark.append(still.proprioception().joint_states)
    assert 0.01 < np.std(spread) < 0.04
    assert 0.01 < np.std(benchmark, axis=0).mean() < 0.04
