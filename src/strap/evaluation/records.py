"""Read the records of rollouts in an evaluation's folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from strap.atomic import read_json
from strap.errors import StrapError, printable, shorten

FPS = 20
"""frame rate of the videos"""
DESCRIPTION = "evaluation.json"
"""file that names the checkpoint, task and settings"""
OUTCOME = ("state", "success", "partial")
"""fields that an episode must have to be counted"""

RULES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "state": (lambda value: type(value) is int and value >= 0, "a whole number from 0 on"),
    "seed": (lambda value: type(value) is int, "a whole number"),
    "success": (lambda value: type(value) is bool, "true or false"),
    "partial": (
        lambda value: type(value) in (int, float) and 0 <= value <= 1,
        "a number from 0 to 1",
    ),
}
"""field of an episode -> (whether a value is valid, description of valid values)"""


def rollout_seed(seed: int, state: int) -> int:
    """Return the seed of one rollout from its evaluation's seed and its initial state."""
    return seed * 100_000 + state


def read_records(
    out: Path, *, seed: int | None = None, required: Collection[str] = ("state", "success")
) -> dict[int, Mapping[str, Any]]:
    """Return finished episodes by initial state, without a last line that is cut off.

    Args:
        out: an evaluation's folder.
        seed: the evaluation's seed; an episode of another seed is an error.
        required: fields that every episode must have.
    """
    file = out / "episodes.jsonl"
    rows: dict[int, Mapping[str, Any]] = {}
    lines = _read_lines(file)
    for number, line in enumerate(lines, start=1):
        value = _parse(line)
        is_cut_off = value is None and number == len(lines)
        if is_cut_off or not line.strip():
            continue
        try:
            if not isinstance(value, dict):
                raise ValueError(
                    f"'{_shown(line.decode(errors='backslashreplace'))}' is not an episode"
                )
            _check_row(value, seed, required)
            known = rows.setdefault(value["state"], value)
            if {**known, "seconds": 0} != {**value, "seconds": 0}:
                raise ValueError(
                    f"state {value['state']} is also on an earlier line, with other values"
                )
        except ValueError as error:
            raise StrapError(
                f"'{file}' is damaged, line {number}: {error}; restore it from a copy, or remove "
                "it and evaluate again"
            ) from error
    return rows


def _read_lines(file: Path) -> list[bytes]:
    """Return the lines of a file, of which the last is unfinished or empty; [] if it is missing."""
    try:
        return file.read_bytes().split(b"\n") if file.is_file() else []
    except OSError as error:
        raise StrapError(
            f"cannot read '{file}' ({error.strerror}): make it readable, or restore it from a copy"
        ) from error


def _parse(line: bytes) -> Any:
    """Return the JSON value of a line; None if the line is not JSON."""
    try:
        return json.loads(line.decode())
    except (ValueError, RecursionError):
        return None


def _check_row(row: Mapping[str, Any], seed: int | None, required: Collection[str]) -> None:
    """Raise ValueError if a row cannot be from a rollout of the evaluation."""
    for name in required:
        if name not in row:
            raise ValueError(f"it has no {name}")
    for name, (is_valid, description) in RULES.items():
        if name in row and not is_valid(row[name]):
            raise ValueError(f"{name} is {_shown(repr(row[name]))}, not {description}")
    if seed is None or "seed" not in row:
        return
    expected = rollout_seed(seed, row["state"])
    if row["seed"] != expected:
        raise ValueError(
            f"seed is {row['seed']}, but from state {row['state']} an evaluation of seed {seed} "
            f"has {expected}"
        )


def _shown(text: str) -> str:
    return printable(shorten(text))


def read_description(out: Path) -> dict[str, Any]:
    """Read the checkpoint, task and settings of an evaluation."""
    file = out / DESCRIPTION
    about = read_json(file)
    if not isinstance(about, dict) or type(about.get("seed", 0)) is not int:
        raise StrapError(
            f"'{file}' does not describe an evaluation: restore it from a copy, or remove '{out}' "
            "and evaluate again"
        )
    return about


def require_same_task(first: Path, second: Path) -> None:
    """Raise unless two evaluations are of the same task and the same kind of initial states."""
    one, two = (read_description(out) for out in (first, second))
    for key in ("suite", "task", "horizon", "demos"):
        if one.get(key) != two.get(key):
            raise StrapError(
                f"'{first}' and '{second}' differ in {key} ({one.get(key, 'none')}, "
                f"{two.get(key, 'none')}): only evaluations of the same task from the same initial "
                "states can be compared; evaluate one of them again with the other's options"
            )
