"""Write and replay demonstrations in LIBERO's HDF5 layout, one file per task.

A finished demonstration is first written to its own file in `.<task>_demo.parts/` and renamed, so
that a killed process leaves no unfinished one. `settings.json` in this folder contains the options
of the collection. `assemble` joins the parts in the task's file, which is also renamed when it is
complete. Skill labels are in `data/demo_i/skills`, next to the observations; training code ignores
them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import h5py
import numpy as np
from numpy.typing import NDArray

from strap.atomic import read_json, remove_folder, write_json
from strap.datasets.creation import creating_hdf5
from strap.errors import StrapError
from strap.libero.distribution import import_libero
from strap.libero.environment import CAMERAS, CONTROL_HZ, LiberoEnv
from strap.libero.expert.attempts import Attempt
from strap.libero.rendering.renderer import SequenceRenderer
from strap.libero.tasks import Task

Labels: TypeAlias = Literal["executed", "intended"]
"""the recorded actions: the executed ones, or those without the noise added to them"""
SETTINGS_FILE = "settings.json"
COMPRESSION = {"compression": "gzip", "compression_opts": 2, "shuffle": False}


@dataclass(frozen=True)
class Settings:
    """The options that all demonstrations of a file share."""

    seed: int
    noise: float
    size: int
    antialias: bool = False
    arm_noise: float = 0.0
    labels: Labels = "executed"


@dataclass(frozen=True)
class Recording:
    """One demonstration of T frames, ready to be written."""

    attempt: Attempt
    slot: int  # the demonstration's number in the collection
    failures: int  # placements given up before this one
    labels: Labels
    model_xml: str
    observations: dict[str, NDArray[Any]]  # each [T, ...]
    robot_states: NDArray[np.float64]  # [T, 9]


def record(
    env: LiberoEnv, solved: Attempt, *, slot: int, failures: int, labels: Labels = "executed"
) -> Recording:
    """Render the states of a solved attempt; `env` must still have its placement.

    Observation t, like state t, is from before action t.
    """
    states = [frame.state for frame in solved.frames]
    columns: dict[str, list[NDArray[Any]]] = {}
    # One camera after the other, so that static meshes stay compiled for its view.
    for name, camera in CAMERAS.items():
        renderer = SequenceRenderer(env.renderer, camera, states)
        for state in states:
            env.show(state)
            columns.setdefault(f"{name}_rgb", []).append(renderer.render())
    robot_states = []
    for state in states:
        env.show(state)
        observation = env.proprioception()
        for key in ("ee_pos", "ee_ori", "ee_states", "gripper_states", "joint_states"):
            columns.setdefault(key, []).append(getattr(observation, key))
        robot_states.append(observation.robot_states)
    observations = {key: np.stack(values) for key, values in columns.items()}
    return Recording(
        solved, slot, failures, labels, env.model_xml(), observations, np.stack(robot_states)
    )


def replay(env: LiberoEnv, file: str | Path, demo: str) -> bool:
    """Return whether the actions of `data/<demo>` solve the task again; simulate only physics.

    If a file has intended actions, the executed ones are replayed.
    """
    with h5py.File(file, "r") as stored:
        if demo not in stored["data"]:
            raise StrapError(f"{file} has no '{demo}': it has {', '.join(stored['data'])}")
        group = stored["data"][demo]
        executed = group["executed_actions" if "executed_actions" in group else "actions"]
        actions, state = executed[()], group["states"][0]
        model_xml = str(group.attrs["model_file"])
    env.place_fixtures(model_xml)
    env.restore(state)
    solved = False
    for action in actions:
        solved = env.step(action)
    return solved


def write_part(recording: Recording, folder: Path) -> Path:
    """Write one demonstration to its own file, completely or not at all."""
    final = folder / f"{recording.slot:05d}.hdf5"
    with creating_hdf5(final) as file:
        _write_demo(file.create_group("demo"), recording)
    return final


def parts_folder(out: Path, task: Task) -> Path:
    """Return the folder of a task's parts before they are assembled."""
    return out / f".{task.bddl.stem}_demo.parts"  # hidden: not part of the dataset yet


def assemble(task: Task, out: Path, settings: Settings) -> Path | None:
    """Join a task's parts and its existing file in a new file; return None if there are neither."""
    final, folder = out / task.file_name, parts_folder(out, task)
    parts = sorted(folder.glob("[0-9]*.hdf5"))
    if not parts:
        remove_folder(folder)
        return final if final.exists() else None
    with creating_hdf5(final) as file:
        data = file.create_group("data")
        with ExitStack() as opened:
            sources = _open_sources([*([final] if final.exists() else []), *parts], opened)
            for number, slot in enumerate(sorted(sources)):
                group = sources[slot]
                group.file.copy(group, data, name=f"demo_{number}")
                file.check()
        _write_header(data, task, settings)
    remove_folder(folder)
    return final


def recorded_slots(task: Task, out: Path) -> frozenset[int]:
    """Return the numbers of the recorded demonstrations, assembled or not."""
    final, folder = out / task.file_name, parts_folder(out, task)
    slots = {int(path.stem) for path in folder.glob("[0-9]*.hdf5")}
    if final.exists():
        with h5py.File(final, "r") as file:
            slots |= {int(group.attrs["slot"]) for group in file["data"].values()}
    return frozenset(slots)


def check_settings(task: Task, out: Path, settings: Settings) -> None:
    """Raise if recorded demonstrations, assembled or not, have other settings."""
    final, folder = out / task.file_name, parts_folder(out, task)
    if final.exists():
        with h5py.File(final, "r") as file:
            stored = file["data"].attrs.get("collection")
        if stored is None:
            raise StrapError(
                f"{final} was not made by `strap libero collect`, so nothing is added to it: "
                "choose another --out"
            )
        _check(final, json.loads(stored), settings)
    if (folder / SETTINGS_FILE).is_file():
        _check(folder, read_json(folder / SETTINGS_FILE), settings)
    elif any(folder.glob("[0-9]*.hdf5")):
        raise StrapError(
            f"{folder} holds demonstrations but no {SETTINGS_FILE} with their settings: remove it, "
            "or choose another --out"
        )


def write_settings(task: Task, out: Path, settings: Settings) -> None:
    """Write the settings of a task's parts, before the first part is written."""
    write_json(parts_folder(out, task) / SETTINGS_FILE, asdict(settings))


def _check(where: Path, stored: dict[str, Any], settings: Settings) -> None:
    defaults = {"arm_noise": 0.0, "labels": "executed"}  # for files without them
    if {**defaults, **stored} != asdict(settings):
        raise StrapError(
            f"{where} was collected with {json.dumps(stored)}, not "
            f"{json.dumps(asdict(settings))}: use the same options or another --out"
        )


def _open_sources(paths: Sequence[Path], opened: ExitStack) -> dict[int, Any]:
    """Return the HDF5 groups of all demonstrations in some files, by number."""
    sources = {}
    for path in paths:
        file = opened.enter_context(h5py.File(path, "r"))
        for group in file["data"].values() if "data" in file else [file["demo"]]:
            sources[int(group.attrs["slot"])] = group
    return sources


def _write_demo(group: Any, recording: Recording) -> None:
    frames = recording.attempt.frames
    states = np.stack([frame.state for frame in frames])
    executed = np.stack([frame.action for frame in frames])
    last = np.zeros(len(frames), np.uint8)
    last[-1] = 1
    observations = group.create_group("obs")
    for key, values in recording.observations.items():
        options = {"chunks": (1, *values.shape[1:]), **COMPRESSION} if values.ndim == 4 else {}
        observations.create_dataset(key, data=values, **options)
    if recording.labels == "intended":
        group.create_dataset("actions", data=np.stack([frame.intended for frame in frames]))
        group.create_dataset("executed_actions", data=executed)
    else:
        group.create_dataset("actions", data=executed)
    group.create_dataset("states", data=states)
    group.create_dataset("robot_states", data=recording.robot_states)
    group.create_dataset("rewards", data=last)
    group.create_dataset("dones", data=last)
    labels = group.create_group("skills")
    text = h5py.string_dtype()
    labels.create_dataset("skill", data=[frame.skill for frame in frames], dtype=text)
    labels.create_dataset("object", data=[frame.object_name for frame in frames], dtype=text)
    group.attrs["num_samples"] = len(frames)
    group.attrs["model_file"] = recording.model_xml
    group.attrs["init_state"] = states[0]
    group.attrs["slot"] = recording.slot
    group.attrs["seed"] = recording.attempt.seed
    group.attrs["failed_placements"] = recording.failures


def _write_header(data: Any, task: Task, settings: Settings) -> None:
    parser = import_libero("libero.libero.envs.bddl_utils")
    envs = import_libero("libero.libero.envs.bddl_base_domain")
    info = parser.get_problem_info(str(task.bddl))
    problem = str(info["problem_name"])
    name = envs.TASK_MAPPING[problem].__name__
    # The path within the distribution: the place of installation is not a property of the data.
    bddl = f"libero/libero/bddl_files/{task.bddl.parent.name}/{task.bddl.name}"
    data.attrs["env_name"] = name
    data.attrs["problem_info"] = json.dumps({**info, "language_instruction": task.instruction})
    data.attrs["macros_image_convention"] = "opengl"
    data.attrs["bddl_file_name"] = bddl
    data.attrs["bddl_file_content"] = task.bddl.read_text(encoding="utf-8")
    data.attrs["env_args"] = json.dumps(_env_args(name, problem, bddl, settings.size))
    data.attrs["num_demos"] = len(data)
    data.attrs["total"] = int(sum(group.attrs["num_samples"] for group in data.values()))
    data.attrs["collection"] = json.dumps(asdict(settings))
    data.attrs["failed_placements"] = int(
        sum(group.attrs["failed_placements"] for group in data.values())
    )


def _env_args(name: str, problem: str, bddl: str, size: int) -> dict[str, Any]:
    return {
        "type": 1,
        "env_name": name,
        "problem_name": problem,
        "bddl_file": bddl,
        "env_kwargs": {
            "robots": ["Panda"],
            "env_configuration": "single-arm-opposed",
            "controller_configs": {"type": "OSC_POSE", "control_delta": True},
            "bddl_file_name": bddl,
            "has_renderer": False,
            "has_offscreen_renderer": True,
            "ignore_done": True,
            "use_camera_obs": True,
            "camera_depths": False,
            "camera_names": list(reversed(CAMERAS.values())),
            "reward_shaping": True,
            "control_freq": CONTROL_HZ,
            "camera_heights": size,
            "camera_widths": size,
            "camera_segmentations": None,
        },
    }
