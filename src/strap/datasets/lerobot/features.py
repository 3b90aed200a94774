"""Which LeRobot features a trajectory becomes, under which names and with which columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from strap.datasets.lerobot.layout import BOOKKEEPING, IMAGES
from strap.errors import StrapError
from strap.lazy_arrays import LazyArray
from strap.types import Array, Trajectory

STATE = "observation.state"
_BOOKKEEPING_TYPES = dict.fromkeys(BOOKKEEPING, "int64") | {"timestamp": "float32"}


@dataclass(frozen=True)
class NumericColumn:
    """A numeric feature: what `info.json` says of it, and how its values are read."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    names: Any
    optional: bool
    """an extra: left out of the dataset when not every trajectory has it alike"""
    read: Callable[[], Array]

    def spec(self) -> dict[str, Any]:
        """Return the entry of `features`."""
        return {"dtype": self.dtype, "shape": list(self.shape), "names": self.names}


def camera_key(name: str) -> str:
    """Return `observation.images.wrist` for `wrist`; a name that is a key already stays."""
    plain = name.replace("/", ".")
    return plain if plain.startswith("observation.") else IMAGES + plain


def columns_of(trajectory: Trajectory) -> dict[str, NumericColumn]:
    """Return the numeric features of a trajectory.

    Actions become `action`. Proprioception `ee_pos` becomes `observation.ee_pos` (a name that
    begins with `observation.` stays), and where there is no `observation.state` yet, all of it side
    by side becomes that, since LeRobot's policies ask for it. Other per-frame arrays keep their
    names, `/` written as `.`; arrays of more than one dimension per frame have no column.
    """
    names = _labels_by_key(trajectory)
    states = {
        state_key(name): array for name, array in trajectory.proprioception.items() if _fits(array)
    }
    found: dict[str, NumericColumn] = {}
    if states and STATE not in states:
        found[STATE] = _joined(states)
    for name, array in states.items():
        found[name] = _column(name, array, names.get(name), optional=False)
    found["action"] = _column("action", trajectory.actions, names.get("action"), optional=False)
    for name, array in trajectory.extras.items():
        plain = name.replace("/", ".")
        if _fits(array) and plain not in found and plain not in BOOKKEEPING:
            found[plain] = _column(plain, array, names.get(name), optional=True)
    return found


def _labels_by_key(trajectory: Trajectory) -> dict[str, Any]:
    """Return the names of columns by the key that their feature is written under."""
    labels = trajectory.attributes.get("feature_names") or {}
    keys = {name: state_key(name) for name in trajectory.proprioception}
    found = {keys.get(name, name): names for name, names in labels.items()}
    return {"action": labels.get("actions"), **found}


def state_key(name: str) -> str:
    """Return `observation.ee_pos` for `ee_pos`; a name that is a key already stays."""
    plain = name.replace("/", ".")
    return plain if plain.startswith("observation.") else f"observation.{plain}"


def _fits(array: LazyArray) -> bool:
    narrow = len(array.shape) == 1 or (len(array.shape) == 2 and array.shape[1] > 0)
    return narrow and array.dtype.kind in "biuf"


def _column(name: str, array: LazyArray, names: Any, *, optional: bool) -> NumericColumn:
    if not _fits(array):
        raise StrapError(
            f"'{name}' has shape {array.shape} and type {array.dtype}: LeRobot tables take numbers "
            "of at most one dimension per frame"
        )
    dtype = np.dtype(np.float32) if array.dtype == np.float16 else array.dtype
    return NumericColumn(
        name,
        dtype=str(dtype.newbyteorder("=")),
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
    """Return all proprioception side by side, as float32."""

    def read() -> Array:
        parts = [np.asarray(array[:], np.float32) for array in states.values()]
        return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)

    names = [label for name, array in states.items() for label in _numbered(name, array)]
    return NumericColumn(STATE, "float32", (len(names),), names, optional=False, read=read)


def to_arrow(values: Array, shape: tuple[int, ...]) -> pa.Array:
    """Return a data file's column: numbers where there is one per frame, else fixed-size lists."""
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    return flat if shape == (1,) else pa.FixedSizeListArray.from_arrays(flat, shape[0])


def bookkeeping_specs() -> dict[str, dict[str, Any]]:
    """Return the five features that every LeRobot dataset has."""
    return {
        name: {"dtype": dtype, "shape": [1], "names": None}
        for name, dtype in _BOOKKEEPING_TYPES.items()
    }
