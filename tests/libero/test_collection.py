from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from strap.errors import StrapError
from strap.libero.demonstrations import collection as collection_module
from strap.libero.demonstrations.collection import (
    Collection,
    CollectionJob,
    CollectionReport,
    collect,
    placement_seeds,
    run_job,
    split_jobs,
)
from strap.libero.demonstrations.recording import (
    Recording,
    Settings,
    assemble,
    parts_folder,
    recorded_slots,
    replay,
    write_part,
    write_settings,
)
from strap.libero.expert.attempts import solve
from strap.libero.expert.motion import MAX_CHANGE, SKILLS
from strap.libero.tasks import Task
from strap.locks import LOCK, exclusive_lock

SUITE = "libero_90"
SHORT = "KITCHEN_SCENE10_close_the_top_drawer_of_the_cabinet"
DEFAULTS = Settings(seed=0, noise=0.04, size=64, arm_noise=0.02)


def test_the_summary(collected: Collection) -> None:
    assert collected.recorded == 2
    assert collected.kept == 0
    assert collected.given_up == {}
    assert 0 < collected.peak_memory < 2.5e9


def test_file_attributes(demo_file: Path, task: Task) -> None:
    assert demo_file.name == f"{task.bddl.stem}_demo.hdf5"
    with h5py.File(demo_file) as file:
        data = file["data"]
        assert set(data) == {"demo_0", "demo_1"}
        information = json.loads(data.attrs["problem_info"])
        assert information["language_instruction"] == task.instruction
        assert data.attrs["env_name"] == "Libero_Kitchen_Tabletop_Manipulation"
        assert data.attrs["macros_image_convention"] == "opengl"
        assert data.attrs["bddl_file_name"].endswith(f"{task.suite}/{task.bddl.name}")
        assert data.attrs["bddl_file_content"] == task.bddl.read_text()
        assert json.loads(data.attrs["env_args"])["env_kwargs"]["control_freq"] == 20
        assert data.attrs["num_demos"] == 2
        lengths = [int(demo.attrs["num_samples"]) for demo in data.values()]
        assert data.attrs["total"] == sum(lengths)


def test_demonstration_datasets(demo_file: Path) -> None:
    with h5py.File(demo_file) as file:
        for demo in file["data"].values():
            length = int(demo.attrs["num_samples"])
            shapes = {
                "obs/agentview_rgb": (length, 64, 64, 3),
                "obs/eye_in_hand_rgb": (length, 64, 64, 3),
                "obs/ee_pos": (length, 3),
                "obs/ee_ori": (length, 3),
                "obs/ee_states": (length, 6),
                "obs/gripper_states": (length, 2),
                "obs/joint_states": (length, 7),
                "actions": (length, 7),
                "robot_states": (length, 9),
                "rewards": (length,),
                "dones": (length,),
            }
            for name, shape in shapes.items():
                assert demo[name].shape == shape, name
            assert demo["obs/agentview_rgb"].dtype == np.uint8
            assert demo["states"].shape[0] == length
            assert np.array_equal(demo.attrs["init_state"], demo["states"][0])
            assert demo.attrs["model_file"].startswith("<mujoco")
            for name in ("dones", "rewards"):
                assert demo[name][-1] == 1
                assert demo[name][:-1].sum() == 0
            joined = np.concatenate([demo["obs/ee_pos"], demo["obs/ee_ori"]], axis=1)
            assert np.array_equal(demo["obs/ee_states"], joined)


def test_actions_are_bounded_deltas_with_the_gripper_last(demo_file: Path) -> None:
    with h5py.File(demo_file) as file:
        actions = file["data/demo_0/actions"][()]
    assert np.abs(actions).max() <= 1
    assert set(np.unique(actions[:, 6])) <= {-1.0, 1.0}
    assert np.abs(np.diff(actions[:, :3], axis=0)).max() < 0.8


def test_images_are_stored_bottom_row_first(demo_file: Path) -> None:
    with h5py.File(demo_file) as file:
        first = file["data/demo_0/obs/agentview_rgb"][0].astype(float)
    # The bright table is at the bottom of the scene, so it comes first.
    assert first[:15].mean() > first[-15:].mean() + 20


def test_labels_cover_every_frame(demo_file: Path) -> None:
    with h5py.File(demo_file) as file:
        for demo in file["data"].values():
            skills = demo["skills/skill"].asstr()[()]
            things = demo["skills/object"].asstr()[()]
            assert len(skills) == len(things) == demo.attrs["num_samples"]
            assert set(skills) <= set(SKILLS)
            assert {"reach", "close"} <= set(skills)
            assert set(things) == {"wooden_cabinet_1"}
            assert "skills" not in demo["obs"]


def test_demonstrations_differ(demo_file: Path) -> None:
    with h5py.File(demo_file) as file:
        first, second = (file[f"data/demo_{number}"] for number in range(2))
        assert first.attrs["seed"] != second.attrs["seed"]
        assert not np.array_equal(first["states"][0], second["states"][0])


def test_replaying_the_actions_solves_the_task(env, demo_file: Path) -> None:
    assert replay(env, demo_file, "demo_1")
    with pytest.raises(StrapError, match="has no 'demo_9'"):
        replay(env, demo_file, "demo_9")


def test_intended_actions_are_recorded_and_the_executed_ones_kept(env, tmp_path: Path) -> None:
    solved = solve(env, 3, noise=0.1)
    no_pictures, robot_states = {}, np.zeros((len(solved.frames), 9))
    demo = Recording(solved, 0, 0, "intended", env.model_xml(), no_pictures, robot_states)
    write_part(demo, parts_folder(tmp_path, env.task))
    file = assemble(env.task, tmp_path, Settings(0, 0.1, 64, labels="intended"))
    with h5py.File(file) as stored:
        intended = stored["data/demo_0/actions"][()]
        executed = stored["data/demo_0/executed_actions"][()]
    assert np.array_equal(executed, [frame.action for frame in solved.frames])
    assert 0.05 < (executed - intended)[:, :6].std() < 0.2
    assert np.array_equal(executed[:, 6], intended[:, 6])
    # What is meant changes from step to step by no more than a hand that is moved smoothly.
    assert np.abs(np.diff(intended[:, :6], axis=0)).max() <= MAX_CHANGE + 1e-9
    assert replay(env, file, "demo_0")


def test_resuming_after_a_kill_makes_no_duplicates(
    demo_file: Path, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a killed run leaves: one finished part, one half-written file, nothing assembled."""
    folder = parts_folder(tmp_path, task)
    write_settings(task, tmp_path, DEFAULTS)
    _copy_demo(demo_file, "demo_0", folder / "00000.hdf5")
    (folder / ".00001.hdf5.999.tmp").write_bytes(b"half")
    asked: list[tuple[int, ...]] = []

    def run_each(function, jobs, workers):
        for job in jobs:
            asked.append(job.slots)
            _copy_demo(demo_file, "demo_1", folder / "00001.hdf5")
            yield job, CollectionReport(1, 0, (), 0)

    monkeypatch.setattr(collection_module, "run_each", run_each)
    done = collect(SUITE, demos=2, out=tmp_path, tasks=[SHORT], size=64)
    assert asked == [(1,)]
    assert (done.recorded, done.kept) == (1, 1)
    with h5py.File(done.files[0]) as file:
        assert [int(demo.attrs["slot"]) for demo in file["data"].values()] == [0, 1]
        assert file["data"].attrs["num_demos"] == 2
    assert not folder.exists()
    again = collect(SUITE, demos=2, out=tmp_path, tasks=[SHORT], size=64)
    assert (again.recorded, again.kept) == (0, 2)
    assert asked == [(1,)]


def test_parts_of_a_killed_run_with_other_options_are_not_mixed_in(
    demo_file: Path, task: Task, tmp_path: Path
) -> None:
    folder = parts_folder(tmp_path, task)
    write_settings(task, tmp_path, replace(DEFAULTS, noise=0.2))
    _copy_demo(demo_file, "demo_0", folder / "00000.hdf5")
    with pytest.raises(StrapError, match=r'parts was collected with .*"noise": 0\.2.*same options'):
        collect(SUITE, demos=2, out=tmp_path, tasks=[SHORT], size=64)
    (folder / "settings.json").unlink()
    with pytest.raises(StrapError, match=r"but no settings\.json with their settings"):
        collect(SUITE, demos=2, out=tmp_path, tasks=[SHORT], size=64)


def test_one_process_at_a_time_collects_into_a_folder(tmp_path: Path) -> None:
    with (
        exclusive_lock(tmp_path / LOCK, "collecting"),
        pytest.raises(StrapError, match="another process is collecting into"),
    ):
        collect(SUITE, demos=1, out=tmp_path, tasks=[SHORT])


def test_more_can_be_added_to_a_file(demo_file: Path, task: Task, tmp_path: Path) -> None:
    shutil.copy(demo_file, tmp_path / demo_file.name)
    folder = parts_folder(tmp_path, task)
    folder.mkdir()
    _copy_demo(demo_file, "demo_1", folder / "00002.hdf5", slot=2)
    assert recorded_slots(task, tmp_path) == {0, 1, 2}
    file = assemble(task, tmp_path, Settings(0, 0.04, 64))
    assert file is not None
    with h5py.File(file) as stored:
        assert set(stored["data"]) == {"demo_0", "demo_1", "demo_2"}
        assert stored["data"].attrs["num_demos"] == 3


def test_other_options_or_foreign_files_are_refused(
    demo_file: Path, task: Task, tmp_path: Path
) -> None:
    shutil.copy(demo_file, tmp_path / demo_file.name)
    with pytest.raises(StrapError, match="use the same options or another --out"):
        collect(SUITE, demos=3, out=tmp_path, tasks=[SHORT], size=128)
    with h5py.File(tmp_path / demo_file.name, "r+") as file:
        del file["data"].attrs["collection"]
    with pytest.raises(StrapError, match="was not made by `strap libero collect`"):
        collect(SUITE, demos=3, out=tmp_path, tasks=[SHORT], size=64)


def test_options_are_checked(tmp_path: Path) -> None:
    with pytest.raises(StrapError, match="demos=0, workers=2"):
        collect(SUITE, demos=0, out=tmp_path)
    with pytest.raises(StrapError, match="noise is 1"):
        collect(SUITE, demos=1, out=tmp_path, noise=1.0)
    with pytest.raises(StrapError, match="unknown labels 'meant'"):
        collect(SUITE, demos=1, out=tmp_path, labels="meant")  # type: ignore[arg-type]


def test_slots_never_share_a_placement() -> None:
    seeds = [seed for slot in range(50) for seed in placement_seeds(0, slot)]
    seeds += [seed for slot in range(50) for seed in placement_seeds(1, slot)]
    assert len(set(seeds)) == len(seeds)


def test_what_a_killed_process_of_a_job_made_is_not_made_again(
    demo_file: Path, task: Task, tmp_path: Path
) -> None:
    folder = parts_folder(tmp_path, task)
    folder.mkdir()
    for slot in range(2):
        _copy_demo(demo_file, f"demo_{slot}", folder / f"0000{slot}.hdf5")
    before = {part: part.stat().st_mtime_ns for part in folder.iterdir()}
    report = run_job(CollectionJob(task, (0, 1), tmp_path, Settings(0, 0.04, 64)))
    assert (report.recorded, report.failed_placements, report.given_up) == (2, 0, ())
    assert {part: part.stat().st_mtime_ns for part in folder.iterdir()} == before


def _copy_demo(source: Path, demo: str, target: Path, *, slot: int | None = None) -> None:
    with h5py.File(source) as file, h5py.File(target, "w") as part:
        file.copy(file[f"data/{demo}"], part, name="demo")
        if slot is not None:
            part["demo"].attrs["slot"] = slot


def test_jobs_get_smaller_towards_the_end_but_not_tiny(tmp_path: Path) -> None:
    tasks = [Task("libero_90", i, f"task {i}", "", tmp_path, ()) for i in range(3)]
    missing = {task: tuple(range(10)) for task in tasks}
    jobs = split_jobs(missing, tmp_path, Settings(0, 0.04, 64), workers=2)
    assert [len(job.slots) for job in jobs] == [10, 10, 5, 3, 2]
    for task in tasks:
        slots = [slot for job in jobs if job.task == task for slot in job.slots]
        assert slots == list(range(10))
