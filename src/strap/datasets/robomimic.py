"""Write robomimic HDF5 files, as robomimic's `SequenceDataset` reads them."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from strap.atomic import (
    explain_write_errors,
    read_json,
    remove_folder,
    remove_leftovers,
    write_json,
)
from strap.datasets.creation import creating_hdf5
from strap.datasets.finite import explain_fault, first_fault
from strap.datasets.image_arrays import find_pixel_rows
from strap.errors import StrapError
from strap.lazy_arrays import LazyArray
from strap.locks import exclusive_lock
from strap.progress import Progress, silent
from strap.provenance import fingerprint_json
from strap.types import Orientation, Trajectory

PLAN = "strap_plan"
"""the attribute of the file with a fingerprint of its source and options"""
FRAMES_PER_COPY = 256
"""frames copied at a time, so that memory stays bounded for trajectories of any length"""


def write_robomimic(
    out: Path,
    trajectories: Iterable[Trajectory],
    *,
    total: int | None = None,
    masks: Mapping[str, Sequence[int]] | None = None,
    metadata: Mapping[str, Any] | None = None,
    orientation: Orientation = "upright",
    source: Mapping[str, Any] | None = None,
    progress: Progress = silent,
) -> Path:
    """Write trajectories as `demo_0`, `demo_1`, … into one file.

    Args:
        out: the file; it appears only when it is complete.
        trajectories: what to write, read one at a time.
        total: the number of trajectories, for the progress display.
        masks: filter keys: name -> indices of trajectories. `all` is always written.
        metadata: attributes of `/data`; `env_args` is added if it is missing.
        orientation: how to store the images; images of the other orientation are flipped.
        source: where the trajectories come from, as JSON. With a source, a killed call resumes
            when it is repeated: each finished trajectory is kept in `.<name>.partial` beside `out`
            until the file is complete, which needs twice the space. A complete file with the same
            source and options is not written again.
        progress: called with (what, done, total).
    """
    with (
        explain_write_errors(out),
        exclusive_lock(out.with_name(f".{out.name}.lock"), f"writing '{out}'"),
    ):
        remove_leftovers(out.parent, out.name)
        if source is None:
            return _write(out, trajectories, None, total, masks, metadata, orientation, progress)
        parts = out.with_name(f".{out.name}.partial")
        members = masks and {name: list(indices) for name, indices in masks.items()}
        plan = fingerprint_json([source, members, orientation])
        if not _is_written(out, plan):
            _prepare_parts(parts, plan)
            _write(out, trajectories, parts, total, masks, metadata, orientation, progress)
        remove_folder(parts)
    return out


def _is_written(out: Path, plan: str) -> bool:
    """Return whether `out` was written with this plan; raise if it is another file."""
    if not out.exists():
        return False
    try:
        with h5py.File(out) as file:
            known = file.attrs.get(PLAN)
    except OSError:
        known = None
    if known != plan:
        raise StrapError(f"'{out}' exists already: choose another output or remove it first")
    return True


def _prepare_parts(folder: Path, plan: str) -> None:
    """Keep the finished trajectories of a killed call if it had the same plan; else remove them."""
    file = folder / "plan.json"
    if not file.exists() or read_json(file) != plan:
        remove_folder(folder)
        write_json(file, plan)
    remove_leftovers(folder)


def _write(
    out: Path,
    trajectories: Iterable[Trajectory],
    parts: Path | None,
    total: int | None,
    masks: Mapping[str, Sequence[int]] | None,
    metadata: Mapping[str, Any] | None,
    orientation: Orientation,
    progress: Progress,
) -> Path:
    with creating_hdf5(out) as file:
        if parts is not None:
            file.attrs[PLAN] = read_json(parts / "plan.json")
        data = file.create_group("data")
        count = frames = 0
        rates: dict[float, str] = {}
        is_told = False
        for count, trajectory in enumerate(trajectories, 1):
            progress("writing", count - 1, total or count)
            name = f"demo_{count - 1}"
            if parts is None:
                fault = _write_demo(data, name, trajectory, orientation)
            else:
                with h5py.File(_part(parts, name, trajectory, orientation)) as part:
                    part.copy("demo", data, name)
                    fault = str(part.attrs.get("fault", ""))
            file.check()
            if fault and not is_told:
                is_told = True
                warnings.warn(explain_fault(out, trajectory.id, f"{name}, {fault}"), stacklevel=3)
            frames += trajectory.length
            if trajectory.fps:
                rates.setdefault(trajectory.fps, trajectory.id)
        if not count:
            raise StrapError(f"nothing to write to '{out}': there are no trajectories; choose some")
        _write_metadata(data, metadata or {}, frames, count, orientation, next(iter(rates), None))
        if len(rates) > 1:
            listing = ", ".join(f"{rate:g} Hz ('{key}')" for rate, key in rates.items())
            warnings.warn(
                f"'{out}' holds trajectories of several frame rates but stores only the first "
                f"rate: {listing}",
                stacklevel=3,
            )
        for name, members in {**(masks or {}), "all": range(count)}.items():
            file[f"mask/{name}"] = np.array([f"demo_{i}".encode() for i in members], dtype="S16")
        progress("writing", count, count)
    return out


def _part(folder: Path, name: str, trajectory: Trajectory, orientation: Orientation) -> Path:
    """Return the file of a single trajectory, written now or by an earlier call."""
    file = folder / f"{name}.hdf5"
    identity = trajectory.identity()
    if file.is_file():
        with h5py.File(file) as known:
            if known.attrs.get("identity") == identity:
                return file
    with creating_hdf5(file, sweep=False) as part:
        part.attrs["identity"] = identity
        part.attrs["fault"] = _write_demo(part, "demo", trajectory, orientation)
    return file


def _write_metadata(
    data: h5py.Group,
    metadata: Mapping[str, Any],
    frames: int,
    count: int,
    orientation: Orientation,
    fps: float | None,
) -> None:
    for key, value in metadata.items():
        try:
            data.attrs[key] = value
        except OSError:  # HDF5 limits attributes to 64 kB
            warnings.warn(
                f"'{key}' of the dataset's metadata is left out: it is too large for an HDF5 "
                "attribute",
                stacklevel=2,
            )
    if "env_args" not in metadata:
        data.attrs["env_args"] = json.dumps({"env_name": "", "type": 1, "env_kwargs": {}})
    data.attrs["total"] = frames
    data.attrs["num_demos"] = count
    data.attrs["image_orientation"] = orientation
    if fps is not None:
        data.attrs["fps"] = fps


def _write_demo(
    data: h5py.Group, key: str, trajectory: Trajectory, orientation: Orientation
) -> str:
    """Write a trajectory; return where its first number is that is not finite, else ""."""
    demo = data.create_group(key)
    turn = trajectory.orientation != orientation
    faults = [_copy(demo, "actions", trajectory.actions)]
    keys = observation_keys([*trajectory.cameras, *trajectory.proprioception])
    for name, array in trajectory.cameras.items():
        _copy(demo, f"obs/{keys[name]}", array, turned=1 if turn else None)
    for name, array in trajectory.proprioception.items():
        faults.append(_copy(demo, f"obs/{keys[name]}", array))
    sizes = {array.shape[1:3] for array in trajectory.cameras.values()}
    for name, array in trajectory.extras.items():
        if name in demo or name == "obs" or name.startswith("actions/"):
            warnings.warn(
                f"'{name}' is left out: robomimic's format uses this name for something else",
                stacklevel=4,
            )
            continue
        rows = find_pixel_rows(name, array.shape[1:], sizes)
        _copy(demo, name, array, turned=rows if turn else None)
    _fill_missing(demo, trajectory)
    _write_attributes(demo, trajectory)
    return next(filter(None, faults), "")


def observation_keys(names: Sequence[str]) -> dict[str, str]:
    """Return the keys of robomimic's `obs` group: LeRobot's prefixes are removed from the names.

    >>> observation_keys(["observation.images.wrist", "observation.ee_pos"])
    {'observation.images.wrist': 'wrist', 'observation.ee_pos': 'ee_pos'}
    """
    short = {n: n.removeprefix("observation.").removeprefix("images.") for n in names}
    counts = Counter(short.values())
    return {name: key if key and counts[key] == 1 else name for name, key in short.items()}


def _copy(demo: h5py.Group, name: str, array: LazyArray, *, turned: int | None = None) -> str:
    """Copy an array; return where its first number is that is not finite, else "".

    If `turned` is given, reverse that axis, which runs over pixel rows.
    """
    fault = ""
    target = demo.create_dataset(name, shape=array.shape, dtype=array.dtype)
    for start in range(0, len(array), FRAMES_PER_COPY):
        rows = array[start : start + FRAMES_PER_COPY]
        target[start : start + FRAMES_PER_COPY] = rows if turned is None else np.flip(rows, turned)
        fault = fault or first_fault(name, rows, start)
    return fault


def _fill_missing(demo: h5py.Group, trajectory: Trajectory) -> None:
    """Write the rewards and dones that robomimic's loader needs, if they are missing.

    They are copied from LeRobot's `next.reward` and `next.done`. Without those, rewards are 0 and
    only the last frame is done.
    """
    is_last = np.arange(trajectory.length) == trajectory.length - 1
    for name, lerobot_name, default in (
        ("rewards", "next.reward", np.zeros(trajectory.length, np.float32)),
        ("dones", "next.done", is_last.astype(np.uint8)),
    ):
        if name in demo:
            continue
        known = trajectory.extras.get(lerobot_name)
        if known is None or not trajectory.length:
            demo[name] = default
        else:
            values = known[:].reshape(trajectory.length, -1)[:, 0]
            demo[name] = values.astype(default.dtype)


def _write_attributes(demo: h5py.Group, trajectory: Trajectory) -> None:
    attributes = dict(trajectory.attributes)
    provenance = attributes.pop("provenance", {})
    for key, value in {"instruction": trajectory.instruction, **attributes}.items():
        if isinstance(value, str) and "\0" in value:
            raise StrapError(
                f"trajectory '{trajectory.id}': its {key} holds a NUL character, which HDF5 texts "
                "cannot hold; correct the dataset, or leave the trajectory out with --ids"
            )
    for key, value in attributes.items():
        if isinstance(value, str | int | float | np.ndarray):
            _set_attribute(demo, key, value)
    demo.attrs["num_samples"] = trajectory.length
    demo.attrs["ep_meta"] = json.dumps({**_ep_meta(trajectory), "lang": trajectory.instruction})
    demo.attrs["language_instruction"] = trajectory.instruction
    for key, value in provenance.items():
        demo.attrs[f"source_{key}"] = value


def _ep_meta(trajectory: Trajectory) -> dict[str, Any]:
    try:
        known = json.loads(trajectory.attributes.get("ep_meta", "{}"))
    except (TypeError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _set_attribute(demo: h5py.Group, key: str, value: Any) -> None:
    # HDF5's older file layout limits attributes to 64 kB. Simulator XML can be longer; it is
    # then written as a dataset of that name.
    try:
        demo.attrs[key] = value
    except OSError:
        demo[key] = value
