"""Demonstrations on disk in LIBERO's own HDF5 layout, one file per task.

A finished demonstration is first a file of its own in `.<task>_demo.parts/`, put there by a rename:
a process that dies leaves none half written. `settings.json` beside them says how they are made.
`assemble` makes the task's file of the parts, again by a rename. Skill labels lie beside the
observations, in `data/demo_i/skills`, where training code doesn't look.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import h5py
import numpy as np
from numpy.typing import NDArray

from strap.artifacts import read_json, replacing, write_json
from strap.errors import StrapError
from strap.libero.environment import CAMERAS, CONTROL_HZ, LiberoEnv
from strap.libero.expert.attempts import Attempt
from strap.libero.rendering.renderer import Film
from strap.libero.tasks import Task

Labels: TypeAlias = Literal["executed", "intended"]
"""What is recorded as actions: what the arm was told, or that without the error added to it."""
IMAGES = {"agentview": "agentview_rgb", "eye_in_hand": "eye_in_hand_rgb"}
NOTE = "settings.json"
COMPRESSION = {"compression": "gzip", "compression_opts": 2, "shuffle": False}


@dataclass(frozen=True)
class Settings:
    """What must be the same for all demonstrations of a file."""

    seed: int
    noise: float
    size: int
    antialias: bool = False
    arm_noise: float = 0.0
    labels: Labels = "executed"


@dataclass(frozen=True)
class Recording:
    """One demonstration, ready to be written; T frames."""

    slot: int  # its number in the collection
    seed: int  # of its placement
    failures: int  # placements given up before this one
    model_xml: str
    observations: dict[str, NDArray[Any]]  # each [T ...]
    actions: NDArray[np.float64]  # [T 7]
    executed: NDArray[np.float64] | None  # [T 7], where that isn't what `actions` holds
    states: NDArray[np.float64]  # [T D], before each action
    robot_states: NDArray[np.float64]  # [T 9]
    skills: tuple[str, ...]  # [T]
    things: tuple[str, ...]  # [T]


def record(
    env: LiberoEnv, solved: Attempt, *, slot: int, failures: int, labels: Labels = "executed"
) -> Recording:
    """Render a solved attempt by showing its states again; the placement must still be in `env`.

    Observation t is what was to be seen before action t, as state t is.
    """
    executed = np.stack([frame.action for frame in solved.frames])
    intended = np.stack([frame.intended for frame in solved.frames])
    states = [frame.state for frame in solved.frames]
    films = {name: Film(env.painter, camera, states) for name, camera in CAMERAS.items()}
    columns: dict[str, list[NDArray[Any]]] = {}
    robot_states = []
    # One camera after the other: what doesn't move before a camera stays compiled for it.
    for name, film in films.items():
        for state in states:
            env.show(state)
            columns.setdefault(IMAGES[name], []).append(film.render())
    for state in states:
        env.show(state)
        seen = env.proprioception()
        for key in ("ee_pos", "ee_ori", "ee_states", "gripper_states", "joint_states"):
            columns.setdefault(key, []).append(getattr(seen, key))
        robot_states.append(seen.robot_states)
    return Recording(
        slot=slot,
        seed=solved.seed,
        failures=failures,
        model_xml=env.model_xml(),
        observations={key: np.stack(values) for key, values in columns.items()},
        actions=executed if labels == "executed" else intended,
        executed=None if labels == "executed" else executed,
        states=np.stack(states),
        robot_states=np.stack(robot_states),
        skills=tuple(frame.skill for frame in solved.frames),
        things=tuple(frame.thing for frame in solved.frames),
    )


def write_part(recording: Recording, folder: Path) -> Path:
    """Write one demonstration as a file of its own, whole or not at all."""
    final = part_path(folder, recording.slot)
    with replacing(final) as temporary, h5py.File(temporary, "w", locking=False) as file:
        _write_demo(file.create_group("demo"), recording)
    return final


def part_path(folder: Path, slot: int) -> Path:
    """Where the part with a number lies."""
    return folder / f"{slot:05d}.hdf5"


def parts_folder(out: Path, task: Task) -> Path:
    """Where the parts of a task lie until they are assembled."""
    return out / f".{task.bddl.stem}_demo.parts"  # hidden: not part of the dataset yet


def assemble(task: Task, out: Path, settings: Settings) -> Path | None:
    """Make a task's file of its parts and of the file there is; None when there are neither."""
    final, folder = out / task.file_name, parts_folder(out, task)
    parts = sorted(folder.glob("[0-9]*.hdf5"))
    if not parts:
        shutil.rmtree(folder, ignore_errors=True)
        return final if final.exists() else None
    with replacing(final) as temporary, h5py.File(temporary, "w", locking=False) as file:
        data = file.create_group("data")
        with ExitStack() as opened:
            sources = _open_sources([*([final] if final.exists() else []), *parts], opened)
            for number, slot in enumerate(sorted(sources)):
                group = sources[slot]
                group.file.copy(group, data, name=f"demo_{number}")
        _write_header(data, task, settings)
    shutil.rmtree(folder, ignore_errors=True)
    return final


def recorded_slots(task: Task, out: Path) -> frozenset[int]:
    """Numbers of the demonstrations that are there, assembled or not."""
    final, folder = out / task.file_name, parts_folder(out, task)
    slots = {int(path.stem) for path in folder.glob("[0-9]*.hdf5")}
    if final.exists():
        with h5py.File(final, "r") as file:
            slots |= {int(group.attrs["slot"]) for group in file["data"].values()}
    return frozenset(slots)


def check_settings(task: Task, out: Path, settings: Settings) -> None:
    """Refuse to mix demonstrations that were made differently, assembled or not."""
    final, note = out / task.file_name, parts_folder(out, task) / NOTE
    if final.exists():
        with h5py.File(final, "r") as file:
            stored = file["data"].attrs.get("collection")
        if stored is None:
            raise StrapError(
                f"{final} was not made by `strap libero collect`: it won't be added to. "
                "Choose another --out"
            )
        _check(final, json.loads(stored), settings)
    if note.is_file():
        _check(note.parent, read_json(note), settings)
    elif any(note.parent.glob("[0-9]*.hdf5")):
        raise StrapError(
            f"{note.parent} holds demonstrations and no {note.name} that says how they were made: "
            "remove it, or choose another --out"
        )


def note_settings(task: Task, out: Path, settings: Settings) -> None:
    """Say how the parts are made, before there is one."""
    write_json(parts_folder(out, task) / NOTE, asdict(settings))


def _check(where: Path, stored: dict[str, Any], settings: Settings) -> None:
    before = {"arm_noise": 0.0, "labels": "executed"}  # of files that don't say
    if {**before, **stored} != asdict(settings):
        raise StrapError(
            f"{where} was collected with {json.dumps(stored)}, not "
            f"{json.dumps(asdict(settings))}: use the same options or another --out"
        )


def _open_sources(paths: Sequence[Path], opened: ExitStack) -> dict[int, Any]:
    """Every demonstration of some files, by its number."""
    sources = {}
    for path in paths:
        file = opened.enter_context(h5py.File(path, "r"))
        for group in file["data"].values() if "data" in file else [file["demo"]]:
            sources[int(group.attrs["slot"])] = group
    return sources


def _write_demo(group: Any, recording: Recording) -> None:
    length = len(recording.actions)
    last = np.zeros(length, np.uint8)
    last[-1] = 1
    observations = group.create_group("obs")
    for key, values in recording.observations.items():
        options = {"chunks": (1, *values.shape[1:]), **COMPRESSION} if values.ndim == 4 else {}
        observations.create_dataset(key, data=values, **options)
    group.create_dataset("actions", data=recording.actions)
    if recording.executed is not None:
        group.create_dataset("executed_actions", data=recording.executed)
    group.create_dataset("states", data=recording.states)
    group.create_dataset("robot_states", data=recording.robot_states)
    group.create_dataset("rewards", data=last)
    group.create_dataset("dones", data=last)
    labels = group.create_group("skills")
    text = h5py.string_dtype()
    labels.create_dataset("skill", data=list(recording.skills), dtype=text)
    labels.create_dataset("object", data=list(recording.things), dtype=text)
    group.attrs["num_samples"] = length
    group.attrs["model_file"] = recording.model_xml
    group.attrs["init_state"] = recording.states[0]
    group.attrs["slot"] = recording.slot
    group.attrs["seed"] = recording.seed
    group.attrs["failed_placements"] = recording.failures


def _write_header(data: Any, task: Task, settings: Settings) -> None:
    from strap.libero.rendering.backend import import_libero

    parser = import_libero("libero.libero.envs.bddl_utils")
    envs = import_libero("libero.libero.envs.bddl_base_domain")
    info = parser.get_problem_info(str(task.bddl))
    problem = str(info["problem_name"])
    name = envs.TASK_MAPPING[problem].__name__
    # The path within the distribution: where it is installed is no property of the data.
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
