"""Convert a trajectory's arrays to LeRobot features: their names, types and columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from strap.datasets.labels import OBJECT, SKILL
from strap.datasets.lerobot.layout import BOOKKEEPING, IMAGES, is_folder_name
from strap.errors import StrapError, shorten
from strap.lazy_arrays import LazyArray
from strap.types import Array, Trajectory

STATE = "observation.state"
MAX_KEY_BYTES = 220
"""the longest name of a video feature; file systems allow 255, and the names of unfinished videos
are longer than the feature's"""
_BOOKKEEPING_TYPES = dict.fromkeys(BOOKKEEPING, "int64") | {"timestamp": "float32"}


@dataclass(frozen=True)
class NumericColumn:
    """A numeric feature: its entry in `info.json` and a function that reads its values."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    names: Any
    optional: bool
    """whether the feature is left out of the dataset if it is not the same in all trajectories"""
    read: Callable[[], Array]

    def spec(self) -> dict[str, Any]:
        """Return the feature's entry in `info.json`."""
        return {"dtype": self.dtype, "shape": list(self.shape), "names": self.names}


def camera_key(name: str) -> str:
    """Return a camera's feature: `observation.images.wrist` for `wrist`; a feature name stays."""
    plain = _dotted(name).removeprefix(IMAGES)
    return plain if plain.startswith("observation.") else IMAGES + plain


def cameras_by_key(trajectory: Trajectory, chosen: Iterable[str] | None) -> dict[str, str]:
    """Return feature -> camera for the chosen cameras, by default all.

    Two cameras that become the same feature are an error.
    """
    names = trajectory.cameras if chosen is None else chosen
    return _by_key(trajectory, "cameras", names, camera_key)


def require_folder_name(key: str, camera: str) -> None:
    """Raise if the name of a video feature cannot be the name of a folder."""
    if not is_folder_name(key) or len(key.encode()) > MAX_KEY_BYTES:
        raise StrapError(
            f"camera '{shorten(camera)}' becomes the folder '{shorten(key)}': in LeRobot datasets "
            f"its name must have no backslash and at most {MAX_KEY_BYTES} bytes; rename the camera "
            "or leave it out"
        )


def columns_of(trajectory: Trajectory, cameras: Iterable[str]) -> dict[str, NumericColumn]:
    """Return the numeric features of a trajectory that is written with these cameras.

    - Actions become `action`.
    - Proprioception `ee_pos` becomes `observation.ee_pos`; a name that begins with `observation.`
      stays. If there is no `observation.state`, it is added as the concatenation of all
      proprioception, because LeRobot's policies need it.
    - Other per-frame arrays keep their names, with `.` for `/`. Arrays whose name is taken and
      arrays of more than one dimension per frame have no column.
    """
    names = _labels_by_key(trajectory)
    videos = cameras_by_key(trajectory, cameras)
    states = _states_by_key(trajectory, videos)
    found: dict[str, NumericColumn] = {}
    if states and STATE not in states:
        found[STATE] = _joined(states)
    for name, array in states.items():
        found[name] = _column(name, array, names.get(name), optional=False)
    found["action"] = _column("action", trajectory.actions, names.get("action"), optional=False)
    taken = {*videos, *BOOKKEEPING}
    for name, array in trajectory.extras.items():
        key = _dotted(name)
        if _fits_column(array) and key not in found and key not in taken:
            found[key] = _column(key, array, names.get(name), optional=True)
    return found


def arrays_left_out(trajectory: Trajectory, columns: Mapping[str, NumericColumn]) -> dict[str, str]:
    """Return array -> reason for the arrays that are in none of the trajectory's columns.

    Skill labels are not listed: they are written to their own table.
    """
    arrays = [*trajectory.proprioception.items(), *trajectory.extras.items()]
    unfit = [name for name, array in arrays if not _fits_column(array)]
    found = dict.fromkeys(unfit, "not one row of numbers per frame")
    unclaimed = {column.name for column in columns.values() if column.optional}
    for name in trajectory.extras:
        if name in found:
            continue
        if _dotted(name) in unclaimed:
            unclaimed.remove(_dotted(name))  # of two arrays with this name the first is written
        else:
            found[name] = "its name is taken: rename it"
    labels = {SKILL, OBJECT} if trajectory.extras.keys() >= {SKILL, OBJECT} else ()
    return {name: reason for name, reason in found.items() if name not in labels}


def _states_by_key(trajectory: Trajectory, videos: Mapping[str, str]) -> dict[str, LazyArray]:
    fitting = [name for name, array in trajectory.proprioception.items() if _fits_column(array)]
    found = _by_key(trajectory, "proprioception", fitting, state_key)
    for key in found.keys() & videos:
        raise _collision(trajectory, "camera and proprioception", videos[key], found[key], key)
    return {key: trajectory.proprioception[name] for key, name in found.items()}


def _by_key(
    trajectory: Trajectory, kind: str, names: Iterable[str], key_of: Callable[[str], str]
) -> dict[str, str]:
    """Return feature -> name; raise if two names become the same feature."""
    found: dict[str, str] = {}
    for name in names:
        key = key_of(name)
        if found.setdefault(key, name) != name:
            raise _collision(trajectory, kind, found[key], name, key)
    return found


def _collision(trajectory: Trajectory, kind: str, one: str, other: str, key: str) -> StrapError:
    return StrapError(
        f"trajectory '{trajectory.id}': {kind} '{one}' and '{other}' both become LeRobot's feature "
        f"'{key}': leave one out, or rename it"
    )


def _labels_by_key(trajectory: Trajectory) -> dict[str, Any]:
    """Return the column names of every feature that has them, by the feature's name."""
    labels = trajectory.attributes.get("feature_names") or {}
    keys = {name: state_key(name) for name in trajectory.proprioception}
    found = {keys.get(name, name): names for name, names in labels.items()}
    return {"action": labels.get("actions"), **found}


def state_key(name: str) -> str:
    """Return the feature of proprioception: `observation.ee_pos` for `ee_pos`."""
    plain = _dotted(name)
    return plain if plain.startswith("observation.") else f"observation.{plain}"


def _dotted(name: str) -> str:
    """Return the name with dots for slashes, which LeRobot features may not have."""
    return name.replace("/", ".")


def _fits_column(array: LazyArray) -> bool:
    """Return whether an array is [t] or [t d] and numeric."""
    is_narrow = len(array.shape) == 1 or (len(array.shape) == 2 and array.shape[1] > 0)
    return is_narrow and array.dtype.kind in "biuf"


def _column(name: str, array: LazyArray, names: Any, *, optional: bool) -> NumericColumn:
    if not _fits_column(array):
        raise StrapError(
            f"'{name}' has shape {array.shape} and type {array.dtype}: LeRobot tables take numbers "
            "of at most one dimension per frame"
        )
    dtype = array.dtype.newbyteorder("=")
    dtype = np.dtype(np.float32) if dtype == np.float16 else dtype
    return NumericColumn(
        name,
        dtype=str(dtype),
        shape=array.shape[1:] or (1,),
        names=names if optional or names else _numbered(name, array),
        optional=optional,
        read=lambda: np.asarray(array[:], dtype),
    )


def _numbered(name: str, array: LazyArray) -> list[str]:
    width = array.shape[1] if len(array.shape) == 2 else 1
    short = name.removeprefix("observation.")
    return [f"{short}_{i}" for i in range(width)] if width > 1 else [short]


def _joined(states: Mapping[str, LazyArray]) -> NumericColumn:
    """Return the concatenation of all proprioception, as float32."""

    def read() -> Array:
        parts = [np.asarray(array[:], np.float32) for array in states.values()]
        return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)

    names = [label for name, array in states.items() for label in _numbered(name, array)]
    return NumericColumn(STATE, "float32", (len(names),), names, optional=False, read=read)


def to_arrow(values: Array, shape: tuple[int, ...]) -> pa.Array:
    """Return a column for a data file: numbers for shape (1,), else fixed-size lists."""
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    return flat if shape == (1,) else pa.FixedSizeListArray.from_arrays(flat, shape[0])


def bookkeeping_specs() -> dict[str, dict[str, Any]]:
    """Return the `info.json` entries of the five features that every LeRobot dataset has."""
    return {
        name: {"dtype": dtype, "shape": [1], "names": None}
        for name, dtype in _BOOKKEEPING_TYPES.items()
    }
