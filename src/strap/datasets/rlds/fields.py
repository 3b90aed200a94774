"""Assign roles (camera, action, …) to the fields of a step, by their names or as requested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from strap.datasets.base import natural_sort_key
from strap.datasets.image_arrays import is_image_array
from strap.datasets.rlds.structure import NUMPY_DTYPES, Field, Structure
from strap.datasets.state_names import is_state_name
from strap.errors import StrapError, unknown

OBSERVATION_PREFIX = "observation/"
ROLES = ("camera", "position", "language", "action")
Fields = Mapping[str, str | Sequence[str]]


@dataclass(frozen=True)
class KnownDataset:
    """What is known about a dataset by its name."""

    position: str
    fps: float
    language: tuple[str, ...] = ("language_instruction",)


KNOWN_DATASETS = {
    "droid": KnownDataset(
        position="observation/cartesian_position",
        fps=15.0,
        language=("language_instruction", "language_instruction_2", "language_instruction_3"),
    ),
    "bridge": KnownDataset(position="observation/state", fps=5.0),
}
"""prefix of the dataset's name -> what is known; the first three columns of `position` are x, y, z
in both"""

LANGUAGE_FIELDS = (
    "language_instruction",
    "observation/natural_language_instruction",
    "observation/language_instruction",
    "natural_language_instruction",
    "instruction",
    "task",
)


@dataclass(frozen=True)
class Roles:
    """The fields of a step by their role in a trajectory (name -> field)."""

    cameras: Mapping[str, Field]
    proprioception: Mapping[str, Field]
    actions: Sequence[Field]
    extras: Mapping[str, Field]
    language: Sequence[str]
    position: str | None
    """the columns of proprioception with the end-effector's position, such as `state[0:3]`"""
    fps: float | None


def assign_roles(structure: Structure, fields: Fields | None = None) -> Roles:
    """Return the roles of the fields; `fields` can name the fields of a role by their paths."""
    chosen = {role: _paths(value) for role, value in (fields or {}).items()}
    for role in chosen:
        if role not in ROLES:
            raise unknown("role of a field", role, ROLES)
    known = find_known_dataset(structure.name)
    steps = structure.steps
    cameras = _cameras(structure, chosen.get("camera"))
    actions = _actions(structure, chosen.get("action"))
    position = _position(structure, chosen.get("position"), known)
    taken = {f.path for f in (*cameras.values(), *actions)}
    numeric = [f for f in steps.values() if is_numeric(f) and f.path not in taken]
    position_field = position.partition("[")[0] if position else None
    observed = [f for f in numeric if _is_proprioception(f) or f.path == position_field]
    observed = observed or [f for f in numeric if _is_row(f) and is_state_name(f.path)]
    others = [f for f in numeric if f not in observed]
    return Roles(
        cameras=cameras,
        proprioception={strip_observation(f.path): f for f in observed},
        actions=actions,
        extras={f.path: f for f in others},
        language=_language(structure, chosen.get("language"), known),
        position=strip_observation(position) if position else None,
        fps=known.fps if known else None,
    )


def find_known_dataset(name: str) -> KnownDataset | None:
    """Return what is known about the dataset of this name; None if it is unknown."""
    return next(
        (known for prefix, known in KNOWN_DATASETS.items() if name.startswith(prefix)), None
    )


def strip_observation(path: str) -> str:
    """Return a field's path without `observation/`: `image_0` for `observation/image_0`."""
    return path.removeprefix(OBSERVATION_PREFIX)


def is_numeric(field: Field) -> bool:
    """Return whether the field is an array of numbers, stored unencoded in the record."""
    is_filled = 0 not in field.shape and sum(n is None for n in field.shape) <= 1
    return field.kind == "tensor" and field.is_plain and is_filled


def _paths(value: str | Sequence[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _is_proprioception(field: Field) -> bool:
    return (
        field.path.startswith(OBSERVATION_PREFIX)
        and _is_row(field)
        and "embedding" not in field.path
    )


def _is_row(field: Field) -> bool:
    return len(field.shape) <= 1 and field.dtype.startswith("float")


def _cameras(structure: Structure, paths: list[str] | None) -> dict[str, Field]:
    colour = {p: f for p, f in structure.steps.items() if _is_colour(f)}
    if paths is not None:
        chosen = [_require(structure, "camera", p, colour) for p in paths]
        return {strip_observation(field.path): field for field in chosen}
    return {strip_observation(path): colour[path] for path in sorted(colour, key=natural_sort_key)}


def _is_colour(field: Field) -> bool:
    if field.kind == "image":
        has_colours = len(field.shape) == 3 and field.shape[2] in (3, None)
        return has_colours and field.dtype == "uint8"
    is_fixed = is_numeric(field) and None not in field.shape
    return is_fixed and is_image_array(field.path, field.shape, np.dtype(NUMPY_DTYPES[field.dtype]))


def _actions(structure: Structure, paths: list[str] | None) -> list[Field]:
    numeric = {p: f for p, f in structure.steps.items() if is_numeric(f) and len(f.shape) <= 1}
    if paths is not None:
        return [_require(structure, "action", p, numeric) for p in paths]
    if "action" in numeric:
        return [numeric["action"]]
    # An action in several fields (RT-1: world_vector, rotation_delta, …), joined in name order.
    parts = sorted(p for p in numeric if p.startswith("action/"))
    if not parts:
        raise StrapError(
            f"'{structure.folder}' has no field 'action': name it with fields={{'action': …}}; "
            f"number fields: {', '.join(numeric) or 'none'}"
        )
    return [numeric[p] for p in parts]


def _position(
    structure: Structure, paths: list[str] | None, known: KnownDataset | None
) -> str | None:
    numeric = {p: f for p, f in structure.steps.items() if is_numeric(f)}
    if paths is not None:
        if len(paths) != 1:
            raise StrapError(f"{len(paths)} position fields are named; name one: 'state[0:3]'")
        path, bracket, columns = paths[0].partition("[")
        return _require(structure, "position", path, numeric).path + bracket + columns
    is_known = known is not None and known.position in numeric
    return f"{known.position}[0:3]" if known and is_known else None


def _language(
    structure: Structure, paths: list[str] | None, known: KnownDataset | None
) -> list[str]:
    texts = {p: f for p, f in structure.steps.items() if f.kind == "text"}
    texts |= {p: f for p, f in structure.episode.items() if f.kind == "text"}
    if paths is not None:
        return [_require(structure, "language", p, texts).path for p in paths]
    order = (*(known.language if known else ()), *LANGUAGE_FIELDS)
    inside = [p for p in texts if p.rpartition("/")[2] in ("language_instruction", "instruction")]
    return list(dict.fromkeys(p for p in (*order, *inside) if p in texts))


def _require(structure: Structure, role: str, path: str, among: Mapping[str, Field]) -> Field:
    found = among.get(path) or among.get(OBSERVATION_PREFIX + path)
    if found is None:
        raise StrapError(f"'{structure.folder}': {unknown(f'{role} field', path, among)}")
    return found
