"""The proprioception to measure movement by: the end effector's position, or joint angles."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import Any, Literal

import numpy as np

from strap.errors import StrapError, unknown
from strap.lazy_arrays import LazyArray
from strap.types import Array, Trajectory

Kind = Literal["end effector", "joints", "columns"]
"""What the columns are: an end effector's position, joint angles, or unknown columns."""
PREFIXES = ("observation.", "observations.", "obs.")
"""Optional prefixes of the names below."""
POSITIONS = (
    "ee_pos",
    "robot0_eef_pos",
    "eef_pos",
    "ee_states[0:3]",
    "cartesian_position[0:3]",
    "state.cartesian_position[0:3]",
)
"""Usual names of the end effector's position in datasets, tried in this order."""
JOINTS = ("joint", "qpos")
"""Parts of the names of joint angles."""
STATES = (
    "state",
    "states",
    "robot_state",
    "robot_states",
    "proprio",
    "proprioception",
    "agent_pos",
)
"""Names of states that are used as joint angles if no position or joints are found."""
NOT_ARM = ("grip", "hand", "finger", "thumb", "claw", "jaw")
"""Parts of the names of columns that move while the arm rests, such as the gripper's."""
NOT_ANGLES = ("vel", "acc", "torque", "effort", "current", "force")
"""Parts of the names of columns that are not angles."""


def positions(trajectory: Trajectory, position: str | None = None) -> Array:
    """Return the position columns of a trajectory, [t p] float64.

    Args:
        trajectory: the trajectory to read.
        position: `name`, `name[0:3]`, `name[1:]` or `name[0,2,5]`; by default the first of
            `POSITIONS` that the trajectory has, or columns that the dataset itself names x, y, z.
    """
    name, columns = _position_columns(trajectory, position)
    stored = np.asarray(_named_arrays(trajectory)[name][:])
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
            f"trajectory '{trajectory.id}': '{name}' is not finite (NaN or infinite) at frame "
            f"{bad[0]}; correct that trajectory or leave it out, or segment with --segmentation "
            "window or full"
        )
    return values


def position_name(trajectory: Trajectory, position: str | None = None) -> str:
    """Return the columns that `positions` reads, in the form a user would write them."""
    name, columns = _position_columns(trajectory, position)
    if columns is None:
        return name
    return f"{name}[{','.join(map(str, columns))}]"


def moving_columns(trajectory: Trajectory, position: str | None = None) -> tuple[str, Kind]:
    """Return the columns to measure movement by, in the form of `--position`, and their kind.

    These are the columns that `position` names, else the end effector's position, else joint
    angles.
    """
    found = position_candidates(trajectory)
    joints = joint_candidates(trajectory)
    if position is None and not found and joints:
        return joints[0], "joints"
    name, _ = _position_columns(trajectory, position)
    text = found[0] if position is None else position
    if name in {_split_position(candidate, _named_arrays(trajectory))[0] for candidate in found}:
        return text, "end effector"
    return text, "joints" if _is_joints(name) else "columns"


def _position_columns(trajectory: Trajectory, position: str | None) -> tuple[str, list[int] | None]:
    candidates = [position] if position is not None else position_candidates(trajectory)
    if not candidates:
        raise StrapError(
            f"trajectory '{trajectory.id}' has no end-effector position among its proprioception "
            f"({', '.join(trajectory.proprioception) or 'none'}): say which columns to use with "
            "--position NAME or --position 'NAME[0:3]' (joint angles work too, with --epsilon "
            "auto), or segment with --segmentation window or full"
        )
    known = _named_arrays(trajectory)
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


def _named_arrays(trajectory: Trajectory) -> dict[str, LazyArray]:
    """Return the arrays that a position can name: proprioception and other vectors per frame."""
    others = trajectory.extras.items()
    rows = {n: a for n, a in others if len(a.shape) == 2 and a.dtype.kind in "biuf"}
    return {**trajectory.proprioception, **rows}


def _width(trajectory: Trajectory, name: str) -> int:
    return math.prod(_named_arrays(trajectory)[name].shape[1:])


def position_candidates(trajectory: Trajectory) -> list[str]:
    """Return the columns that can be the end effector's position, most likely first.

    They are found by the dataset's own attribute, by usual names, and by columns named x, y, z. A
    state whose columns have no such names is left out, because it can hold joint angles.
    """
    found = [str(trajectory.attributes["position"])] if "position" in trajectory.attributes else []
    names = trajectory.attributes.get("feature_names") or {}
    arrays = trajectory.proprioception
    for usual in POSITIONS:
        name, bracket, selection = usual.partition("[")
        found += [key + bracket + selection for key in arrays if _without_prefix(key) == name]
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


def joint_candidates(trajectory: Trajectory) -> list[str]:
    """Return the columns that can be joint angles, most likely first.

    These are names such as `joint_states`, then states, then the only proprioception of the
    dataset. Columns named after a gripper, a hand or a velocity are left out.
    """
    wide = {k: a for k, a in trajectory.proprioception.items() if math.prod(a.shape[1:]) > 0}
    named = [key for key in wide if _is_joints(key)]
    states = [key for key in wide if _without_prefix(key).lower() in STATES]
    only = [key for key in wide if len(wide) == 1 and not any(p in key.lower() for p in NOT_ARM)]
    labels = trajectory.attributes.get("feature_names") or {}
    found = dict.fromkeys((*named, *states, *only))
    return [key + _arm_columns(labels.get(key), _width(trajectory, key)) for key in found]


def _is_joints(name: str) -> bool:
    word = name.lower()
    return any(part in word for part in JOINTS) and not any(
        part in word for part in (*NOT_ARM, *NOT_ANGLES)
    )


def _arm_columns(names: Any, width: int) -> str:
    """Return the arm's columns, such as `[0:5]` if the last of six is the gripper's; "" for all."""
    labels = _flat_names(names)
    if labels is None or len(labels) != width:
        return ""
    others = (*NOT_ARM, *NOT_ANGLES)
    arm = [i for i, n in enumerate(labels) if not any(part in n.lower() for part in others)]
    if not arm or len(arm) == width:
        return ""
    is_range = arm == list(range(arm[0], arm[-1] + 1))
    return f"[{arm[0]}:{arm[-1] + 1}]" if is_range else f"[{','.join(map(str, arm))}]"


def _without_prefix(name: str) -> str:
    prefix = next((prefix for prefix in PREFIXES if name.startswith(prefix)), "")
    return name.removeprefix(prefix)


def _flat_names(names: Any) -> list[str] | None:
    """Return the columns' names as a flat list, which some writers nest; None if they are not."""
    while isinstance(names, list) and len(names) == 1 and not isinstance(names[0], str):
        names = names[0]
    if isinstance(names, dict):
        names = next((v for v in names.values() if isinstance(v, list)), None)
    is_flat = isinstance(names, list) and all(isinstance(n, str) for n in names)
    return list(names) if is_flat else None


def _xyz(names: Any) -> list[int] | None:
    """Return the columns named x, y, z (also as an ending: `eef_x`); None unless each is unique."""
    labels = _flat_names(names)
    if labels is None:
        return None
    words = [n.lower().replace(".", "_").split("_") for n in labels]
    places = [[i for i, word in enumerate(words) if word[-1] == axis] for axis in "xyz"]
    return [p[0] for p in places] if all(len(p) == 1 for p in places) else None


def _split_position(text: str, known: Collection[str]) -> tuple[str, str | None]:
    """Split `name[0:3]` into name and columns (or None); a known name can contain brackets."""
    name, bracket, selection = text.rpartition("[")
    if text in known or not bracket or not name or not selection.endswith("]"):
        return text, None
    return name, selection[:-1]


def _select_columns(selection: str, width: int) -> list[int]:
    """Return the columns that `0:3`, `1:`, `-1` or `0,2` select out of `width`, as in Python.

    A range beyond the columns (`0:9` of 3) or an empty selection raises `ValueError`. Its text
    continues a sentence that starts with the selection.
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
        raise ValueError("is not a selection of columns")
    start, stop = bounds[:2]
    if start is not None and not -width <= start <= width:
        raise ValueError(f"selects column {start}")
    if stop is not None and not -width <= stop <= width:
        raise ValueError(f"selects column {stop - 1 if stop > 0 else stop}")
    if bounds[2:] == [0]:
        raise ValueError("has a step of 0")
    return list(range(width)[slice(*bounds)])


def _column(text: str, width: int) -> int:
    number = _whole_number(text)
    if not -width <= number < width:
        raise ValueError(f"selects column {number}")
    return number % width


def _whole_number(text: str) -> int:
    if not re.fullmatch(r"\s*-?[0-9]{1,9}\s*", text):
        raise ValueError("is not a selection of columns")
    return int(text)
