"""Writing robomimic HDF5: what robomimic's `SequenceDataset` reads, whole or not at all."""

from __future__ import annotations

import errno
import json
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from strap.artifacts import Progress, replacing, silent
from strap.errors import StrapError
from strap.types import LazyArray, Orientation, Trajectory

SPARE_BYTES = 1 << 20
ROWS = 256
"""Frames copied at a time, so that memory stays bounded whatever the trajectory's length."""


def write_robomimic(
    out: Path,
    trajectories: Iterable[Trajectory],
    *,
    total: int | None = None,
    masks: Mapping[str, Sequence[int]] | None = None,
    metadata: Mapping[str, Any] | None = None,
    orientation: Orientation = "upright",
    resume: bool = False,
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
        resume: keep each finished trajectory in `.<name>.partial` beside `out` until the file is
            whole, so that a killed call goes on when it is made again (needs twice the space).
        progress: called with (what, done, total).
    """
    parts = out.with_name(f".{out.name}.partial") if resume else None
    with replacing(out) as temporary, h5py.File(temporary, "w") as file:
        data = file.create_group("data")
        count = frames = 0
        rate: float | None = None
        for count, trajectory in enumerate(trajectories, 1):
            progress("writing", count - 1, total or count)
            _require_space(temporary, trajectory)
            name = f"demo_{count - 1}"
            if parts is None:
                _write_demo(data, name, trajectory, orientation)
            else:
                with h5py.File(_part(parts, name, trajectory, orientation)) as part:
                    part.copy("demo", data, name)
            frames += trajectory.length
            rate = rate or trajectory.fps
        if not count:
            raise StrapError(f"nothing to write to '{out}': there is no trajectory")
        _write_metadata(data, metadata or {}, frames, count, orientation, rate)
        for name, members in {**(masks or {}), "all": range(count)}.items():
            file[f"mask/{name}"] = np.array([f"demo_{i}".encode() for i in members], dtype="S16")
        progress("writing", count, count)
    if parts is not None:
        shutil.rmtree(parts, ignore_errors=True)
    return out


def _part(folder: Path, name: str, trajectory: Trajectory, orientation: Orientation) -> Path:
    """The file with this trajectory alone, written now or by a call before."""
    file = folder / f"{name}.hdf5"
    identity = json.dumps([trajectory.id, trajectory.source.stamp(), orientation])
    if file.is_file():
        with h5py.File(file) as known:
            if known.attrs.get("identity") == identity:
                return file
    with replacing(file) as temporary, h5py.File(temporary, "w") as part:
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
        data.attrs[key] = value
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
    for name, array in trajectory.cameras.items():
        _copy(demo, f"obs/{name}", array, flip=turn)
    for name, array in trajectory.proprioception.items():
        _copy(demo, f"obs/{name}", array)
    for name, array in trajectory.extras.items():
        _copy(demo, name, array, flip=turn and _is_image(array))
    _fill_missing(demo, trajectory)
    _write_attributes(demo, trajectory)


def _require_space(file: Path, trajectory: Trajectory) -> None:
    """Refuse before HDF5 meets a full disk: it would report that in pages of its own."""
    arrays = chain(
        [trajectory.actions],
        trajectory.cameras.values(),
        trajectory.proprioception.values(),
        trajectory.extras.values(),
    )
    needed = sum(math.prod(array.shape) * array.dtype.itemsize for array in arrays)
    if shutil.disk_usage(file.parent).free < needed + SPARE_BYTES:
        raise OSError(errno.ENOSPC, "No space left on device")


def _is_image(array: LazyArray) -> bool:
    """Cameras and depth maps lie along rows, so they are turned with the cameras."""
    return len(array.shape) >= 3


def _copy(demo: h5py.Group, name: str, array: LazyArray, *, flip: bool = False) -> None:
    target = demo.create_dataset(name, shape=array.shape, dtype=array.dtype)
    for start in range(0, len(array), ROWS):
        rows = array[start : start + ROWS]
        target[start : start + ROWS] = rows[:, ::-1] if flip else rows


def _fill_missing(demo: h5py.Group, trajectory: Trajectory) -> None:
    """rewards and dones, which robomimic's loader asks for: none, and the last frame."""
    if "rewards" not in demo:
        demo["rewards"] = np.zeros(trajectory.length, np.float32)
    if "dones" not in demo:
        demo["dones"] = (np.arange(trajectory.length) == trajectory.length - 1).astype(np.uint8)


def _write_attributes(demo: h5py.Group, trajectory: Trajectory) -> None:
    attributes = dict(trajectory.attributes)
    provenance = attributes.pop("provenance", {})
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
