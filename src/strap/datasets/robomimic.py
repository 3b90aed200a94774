"""Writing robomimic HDF5: what robomimic's `SequenceDataset` reads, whole or not at all."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from strap.atomic import discard, read_json, remove_leftovers, write_json, writing
from strap.datasets.creation import creating_hdf5
from strap.datasets.image_arrays import find_pixel_rows
from strap.errors import StrapError
from strap.lazy_arrays import LazyArray
from strap.locks import alone
from strap.progress import Progress, silent
from strap.provenance import fingerprint_json
from strap.types import Orientation, Trajectory

PLAN = "strap_plan"
"""the attribute of the file that tells from what and how it was written"""
FRAMES_PER_COPY = 256
"""Frames copied at a time, so that memory stays bounded whatever the trajectory's length."""


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
    """Write trajectories as `demo_0`, `demo_1`, … of one file.

    Args:
        out: the file; it appears only when it is whole.
        trajectories: what to write, read one at a time.
        total: how many there are, for the progress display.
        masks: filter keys: name -> indices of trajectories. `all` is always written.
        metadata: attributes of `/data`; `env_args` is added where it is missing.
        orientation: how the images are stored; they are turned where they lie otherwise.
        source: what the trajectories come from, as JSON. Where it is given, each finished
            trajectory is kept in `.<name>.partial` beside `out` until the file is whole, so that a
            killed call goes on when it is made again (needs twice the space), and a file that was
            written from the same is left as it is.
        progress: called with (what, done, total).
    """
    with writing(out), alone(out.with_name(f".{out.name}.lock"), f"writing '{out}'"):
        remove_leftovers(out.parent, out.name)
        if source is None:
            return _write(out, trajectories, None, total, masks, metadata, orientation, progress)
        parts = out.with_name(f".{out.name}.partial")
        plan = fingerprint_json([source, masks and _listed(masks), orientation])
        if not _is_written(out, plan):
            _open_parts(parts, plan)
            _write(out, trajectories, parts, total, masks, metadata, orientation, progress)
        discard(parts)
    return out


def _listed(masks: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    return {name: list(members) for name, members in masks.items()}


def _is_written(out: Path, plan: str) -> bool:
    """Return whether `out` is what this plan makes; raise where it is something else."""
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


def _open_parts(folder: Path, plan: str) -> None:
    """Keep the finished trajectories of a killed call with the same plan; discard others."""
    file = folder / "plan.json"
    if not file.exists() or read_json(file) != plan:
        discard(folder)
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
        for count, trajectory in enumerate(trajectories, 1):
            progress("writing", count - 1, total or count)
            name = f"demo_{count - 1}"
            if parts is None:
                _write_demo(data, name, trajectory, orientation)
            else:
                with h5py.File(_part(parts, name, trajectory, orientation)) as part:
                    part.copy("demo", data, name)
            file.check()
            frames += trajectory.length
            if trajectory.fps:
                rates.setdefault(trajectory.fps, trajectory.id)
        if not count:
            raise StrapError(f"nothing to write to '{out}': there is no trajectory")
        _write_metadata(data, metadata or {}, frames, count, orientation, next(iter(rates), None))
        if len(rates) > 1:
            listing = ", ".join(f"{rate:g} Hz ('{key}')" for rate, key in rates.items())
            warnings.warn(
                f"'{out}' holds trajectories of several frame rates and names the first alone: "
                f"{listing}",
                stacklevel=3,
            )
        for name, members in {**(masks or {}), "all": range(count)}.items():
            file[f"mask/{name}"] = np.array([f"demo_{i}".encode() for i in members], dtype="S16")
        progress("writing", count, count)
    return out


def _part(folder: Path, name: str, trajectory: Trajectory, orientation: Orientation) -> Path:
    """Return the file with this trajectory alone, written now or by an earlier call."""
    file = folder / f"{name}.hdf5"
    identity = trajectory.identity()
    if file.is_file():
        with h5py.File(file) as known:
            if known.attrs.get("identity") == identity:
                return file
    with creating_hdf5(file, sweep=False) as part:
        part.attrs["identity"] = identity
        _write_demo(part, "demo", trajectory, orientation)
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
        except OSError:  # HDF5 keeps attributes of up to 64 kB
            warnings.warn(f"'{key}' of the dataset is too large for HDF5, left out", stacklevel=2)
    if "env_args" not in metadata:
        data.attrs["env_args"] = json.dumps({"env_name": "", "type": 1, "env_kwargs": {}})
    data.attrs["total"] = frames
    data.attrs["num_demos"] = count
    data.attrs["image_orientation"] = orientation
    if fps is not None:
        data.attrs["fps"] = fps


def _write_demo(
    data: h5py.Group, key: str, trajectory: Trajectory, orientation: Orientation
) -> None:
    demo = data.create_group(key)
    turn = trajectory.orientation != orientation
    _copy(demo, "actions", trajectory.actions)
    keys = observation_keys([*trajectory.cameras, *trajectory.proprioception])
    for name, array in trajectory.cameras.items():
        _copy(demo, f"obs/{keys[name]}", array, turned=1 if turn else None)
    for name, array in trajectory.proprioception.items():
        _copy(demo, f"obs/{keys[name]}", array)
    sizes = {array.shape[1:3] for array in trajectory.cameras.values()}
    for name, array in trajectory.extras.items():
        if name in demo or name == "obs" or name.startswith("actions/"):
            warnings.warn(
                f"'{name}' is left out: robomimic's layout has something else there", stacklevel=4
            )
            continue
        rows = find_pixel_rows(name, array.shape[1:], sizes)
        _copy(demo, name, array, turned=rows if turn else None)
    _fill_missing(demo, trajectory)
    _write_attributes(demo, trajectory)


def observation_keys(names: Sequence[str]) -> dict[str, str]:
    """Return the keys of robomimic's `obs` group: names as LeRobot spells them lose their prefix.

    >>> observation_keys(["observation.images.wrist", "observation.ee_pos"])
    {'observation.images.wrist': 'wrist', 'observation.ee_pos': 'ee_pos'}
    """
    short = {n: n.removeprefix("observation.").removeprefix("images.") for n in names}
    counts = Counter(short.values())
    return {name: key if key and counts[key] == 1 else name for name, key in short.items()}


def _copy(demo: h5py.Group, name: str, array: LazyArray, *, turned: int | None = None) -> None:
    """Copy an array; `turned` is the axis of pixel rows that are turned over."""
    target = demo.create_dataset(name, shape=array.shape, dtype=array.dtype)
    for start in range(0, len(array), FRAMES_PER_COPY):
        rows = array[start : start + FRAMES_PER_COPY]
        target[start : start + FRAMES_PER_COPY] = rows if turned is None else np.flip(rows, turned)


def _fill_missing(demo: h5py.Group, trajectory: Trajectory) -> None:
    """Write the rewards and dones that robomimic's loader needs, by LeRobot's where it has them.

    Else no rewards, and the last frame is done.
    """
    ends = np.arange(trajectory.length) == trajectory.length - 1
    for name, lerobots, absent in (
        ("rewards", "next.reward", np.zeros(trajectory.length, np.float32)),
        ("dones", "next.done", ends.astype(np.uint8)),
    ):
        if name not in demo:
            known = trajectory.extras.get(lerobots)
            if known is None or not trajectory.length:
                demo[name] = absent
            else:
                values = known[:].reshape(trajectory.length, -1)[:, 0]
                demo[name] = values.astype(absent.dtype)


def _write_attributes(demo: h5py.Group, trajectory: Trajectory) -> None:
    attributes = dict(trajectory.attributes)
    provenance = attributes.pop("provenance", {})
    for key, value in {"instruction": trajectory.instruction, **attributes}.items():
        if isinstance(value, str) and "\0" in value:
            raise StrapError(
                f"trajectory '{trajectory.id}': its {key} holds a NUL character, which HDF5 texts "
                "cannot; mend the dataset, or leave the trajectory out with --ids"
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
    # HDF5 keeps attributes of up to 64 kB in the object's header; simulator XML can be larger
    # than that only in the newer file layout, so such a text becomes a dataset of that name.
    try:
        demo.attrs[key] = value
    except OSError:
        demo[key] = value
