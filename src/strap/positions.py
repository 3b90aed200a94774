"""Which proprioception is the end effector's position, and its values."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import Any

import numpy as np

from strap.errors import StrapError, unknown
from strap.types import Array, Trajectory

POSITIONS = (
    "ee_pos",
    "robot0_eef_pos",
    "eef_pos",
    "ee_states[0:3]",
    "cartesian_position[0:3]",
    "observation.ee_pos",
    "observation.cartesian_position[0:3]",
    "observation.state.cartesian_position[0:3]",
)
"""Names under which datasets keep the end-effector's position, tried in this order."""


def positions(trajectory: Trajectory, position: str | None = None) -> Array:
    """The position columns of a trajectory, [t p] float64.

    Args:
        trajectory: whose proprioception is read.
        position: `name`, `name[0:3]`, `name[1:]` or `name[0,2,5]`; by default the first of
            `POSITIONS` that the trajectory has, or columns that the dataset itself names x, y, z.
    """
    name, columns = _position_columns(trajectory, position)
    stored = np.asarray(trajectory.proprioception[name][:])
    if stored.dtype.kind not in "biuf":
        raise StrapError(
            f"trajectory '{trajectory.id}': '{name}' holds {stored.dtype}, not numbers; name "
            "another position"
        )
    values = stored.astype(np.float64).reshape(trajectory.length, _width(trajectory, name))
    values = values if columns is None else values[:, columns]
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if bad.size:
        raise StrapError(
            f"trajectory '{trajectory.id}': '{name}' is not finite at frame {bad[0]}; "
            "mend or leave out that trajectory, or segment by segmentation 'window' or 'full'"
        )
    return values


def position_name(trajectory: Trajectory, position: str | None = None) -> str:
    """The columns that `positions` reads, in the form a user would write them."""
    name, columns = _position_columns(trajectory, position)
    if columns is None:
        return name
    return f"{name}[{','.join(map(str, columns))}]"


def _position_columns(trajectory: Trajectory, position: str | None) -> tuple[str, list[int] | None]:
    known = trajectory.proprioception
    candidates = [position] if position is not None else position_candidates(trajectory)
    if not candidates:
        raise StrapError(
            f"trajectory '{trajectory.id}' has no end-effector position among its proprioception "
            f"({', '.join(known) or 'none'}): say which columns to use with --position NAME or "
            "--position 'NAME[0:3]' (joint angles work too, with their own --epsilon), or segment "
            "by --segmentation window or full"
        )
    name, selection = _split_position(candidates[0], known)
    if name not in known:
        raise StrapError(f"trajectory '{trajectory.id}': {unknown('proprioception', name, known)}")
    width = _width(trajectory, name)
    if selection is None and width:
        return name, None
    try:
        return name, _select_columns(":" if selection is None else selection, width)
    except ValueError as error:
        raise StrapError(
            f"trajectory '{trajectory.id}': position '{candidates[0]}' {error}, but '{name}' has "
            f"{width} columns, counted from 0: write '{name}', '{name}[0:3]', '{name}[1:]' or "
            f"'{name}[0,2]'"
        ) from error


def _width(trajectory: Trajectory, name: str) -> int:
    return math.prod(trajectory.proprioception[name].shape[1:])


def position_candidates(trajectory: Trajectory) -> list[str]:
    """Proprioception that may be the end-effector's position, best first, as `--position` takes it.

    By what the dataset itself says, by usual names, by column names x, y, z; a state whose columns
    have no telling names is not offered: it may be joint angles.
    """
    found = [str(trajectory.attributes["position"])] if "position" in trajectory.attributes else []
    names = trajectory.attributes.get("feature_names") or {}
    arrays = trajectory.proprioception
    found += [name for name in POSITIONS if _split_position(name, arrays)[0] in arrays]
    for key, array in arrays.items():
        width = math.prod(array.shape[1:])
        word = key.rpartition(".")[2].lower()
        columns = _xyz(names.get(key))
        if columns:
            found.append(f"{key}[{','.join(map(str, columns))}]")
        elif width == 3 and any(part in word for part in ("pos", "xyz", "cartesian")):
            found.append(key)
        elif width > 3 and any(p in word for p in ("cartesian", "ee_", "eef", "tcp", "pose")):
            found.append(f"{key}[0:3]")
    return list(dict.fromkeys(found))


def _xyz(names: Any) -> list[int] | None:
    """Columns named x, y, z (alone or at the end: `eef_x`), each once."""
    while isinstance(names, list) and len(names) == 1:
        names = names[0]
    if isinstance(names, dict):
        names = next((v for v in names.values() if isinstance(v, list)), None)
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        return None
    words = [n.lower().replace(".", "_").split("_") for n in names]
    places = [[i for i, word in enumerate(words) if word[-1] == axis] for axis in "xyz"]
    return [p[0] for p in places] if all(len(p) == 1 for p in places) else None


def _split_position(text: str, known: Collection[str]) -> tuple[str, str | None]:
    """`name` -> (name, None), `name[0:3]` -> (name, `0:3`); a known name may hold brackets."""
    name, bracket, selection = text.rpartition("[")
    if text in known or not bracket or not name or not selection.endswith("]"):
        return text, None
    return name, selection[:-1]


def _select_columns(selection: str, width: int) -> list[int]:
    """The columns that `0:3`, `1:`, `-1` or `0,2` select of `width`, as in Python.

    What Python would cut short (`0:9` of 3) or leave empty raises `ValueError`, which says what
    the selection does.
    """
    if ":" in selection:
        columns = _slice_columns(selection, width)
    else:
        columns = [_column(part, width) for part in selection.split(",")]
    if not columns:
        raise ValueError("selects no column")
    return columns


def _slice_columns(selection: str, width: int) -> list[int]:
    bounds = [_whole_number(part) if part.strip() else None for part in selection.split(":")]
    if len(bounds) > 3:
        raise ValueError("is no selection of columns")
    start, stop = bounds[:2]
    if start is not None and not -width <= start <= width:
        raise ValueError(f"asks for column {start}")
    if stop is not None and not -width <= stop <= width:
        raise ValueError(f"asks for column {stop - 1 if stop > 0 else stop}")
    if bounds[2:] == [0]:
        raise ValueError("has a step of 0")
    return list(range(width)[slice(*bounds)])


def _column(text: str, width: int) -> int:
    number = _whole_number(text)
    if not -width <= number < width:
        raise ValueError(f"asks for column {number}")
    return number % width


def _whole_number(text: str) -> int:
    if not re.fullmatch(r"\s*-?[0-9]{1,9}\s*", text):
        raise ValueError("is no selection of columns")
    return int(text)
