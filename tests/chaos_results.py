"""Whether a disturbed command's folder holds what an undisturbed one's does, and nothing else.

Files are equal byte for byte, but for what follows from when and how often a command was started:

    manifest.json       `seconds` (a run), `shards` (a store: a killed writer's work is a shard of
                        its own)
    a store's shards/   the same trajectories with the same vectors, however they lie
    report.html         the seconds that its run took
    log.jsonl           `steps_per_second`, `time`
    events.out.tfevents…  of TensorBoard: named after the start; as many of them
    episodes.jsonl      `seconds`, and the order
    *.hdf5              of `libero collect`: the same objects, values and attributes
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from strap.store import open_store

EVENTS = re.compile(r"events\.out\.tfevents\..*")


@dataclass
class Differences:
    """What sets two folders apart, by relative path."""

    left_over: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.left_over or self.missing or self.changed)

    def __str__(self) -> str:
        parts = {
            "left over": self.left_over,
            "missing": self.missing,
            "different": self.changed,
        }
        return "; ".join(f"{what}: {', '.join(names)}" for what, names in parts.items() if names)


def compare(found: Path, expected: Path) -> Differences:
    """Every file and folder, hidden ones included."""
    ours, theirs = listing(found), listing(expected)
    differences = Differences(
        sorted(name for name in ours if len(ours[name]) > len(theirs.get(name, ()))),
        sorted(name for name in theirs if len(theirs[name]) > len(ours.get(name, ()))),
    )
    for name in sorted(ours.keys() & theirs.keys()):
        for one, other in zip(ours[name], theirs[name], strict=False):
            if not _is_equal(one, other):
                differences.changed.append(name)
    for store in sorted(expected.rglob("store.json")):
        name = store.parent.relative_to(expected)
        if (found / name / "store.json").is_file():
            differences.left_over += _orphans(found / name)
            differences.changed += _compare_stores(found / name, store.parent)
    return differences


def listing(folder: Path) -> dict[str, list[Path]]:
    """Everything below a folder by its name, less what a name says of when it was made."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        if _is_shard(path):
            continue
        name = EVENTS.sub("events.out.tfevents", path.relative_to(folder).as_posix())
        found.setdefault(name, []).append(path)
    return found


def _is_shard(path: Path) -> bool:
    return path.parent.name == "shards" and (path.parent.parent / "store.json").is_file()


def _is_equal(one: Path, other: Path) -> bool:
    if one.is_dir() or other.is_dir():
        return one.is_dir() and other.is_dir()
    if one.read_bytes() == other.read_bytes():
        return True
    if EVENTS.fullmatch(one.name):
        return True
    look = CONTENTS.get(one.name) or CONTENTS.get(one.suffix)
    try:
        return look is not None and look(one) == look(other)
    except (OSError, ValueError, KeyError):  # one of them is no such file
        return False


def _manifest(path: Path) -> Any:
    value = json.loads(path.read_text())
    return {key: own for key, own in value.items() if key not in ("seconds", "shards")}


def _report(path: Path) -> str:
    return re.sub(r'\["retrieved in", "[^"]*"\]', "", path.read_text())


def _log(path: Path) -> Any:
    rows = map(json.loads, path.read_text().splitlines())
    return [{k: v for k, v in row.items() if k not in ("steps_per_second", "time")} for row in rows]


def _episodes(path: Path) -> Any:
    rows = sorted(map(json.loads, path.read_text().splitlines()), key=lambda row: row["state"])
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def _hdf5(path: Path) -> Any:
    """Every object of a file with its value and attributes."""
    found: dict[str, Any] = {}

    def visit(name: str, thing: Any) -> None:
        value = thing[()] if isinstance(thing, h5py.Dataset) else None
        attributes = {key: _plain(own) for key, own in thing.attrs.items()}
        found[name] = (_plain(value), attributes)

    with h5py.File(path) as file:
        visit("/", file)
        file.visititems(visit)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tolist()
    return value


CONTENTS: dict[str, Callable[[Path], Any]] = {
    "manifest.json": _manifest,
    "report.html": _report,
    "log.jsonl": _log,
    "episodes.jsonl": _episodes,
    ".hdf5": _hdf5,
}
"""by name or ending: how files are compared whose bytes differ"""


def _orphans(store: Path) -> list[str]:
    """Files among the shards that belong to none."""
    shards = open_store(store).shards
    named = {file for shard in shards.values() for file in shard.files}
    named |= {f"{name}.json" for name in shards}
    there = sorted(file.name for file in (store / "shards").iterdir())
    return [f"{store.name}/shards/{name}" for name in there if name not in named]


def _compare_stores(found: Path, expected: Path) -> list[str]:
    """What is damaged, missing or different in a store's vectors."""
    ours, theirs = open_store(found), open_store(expected)
    problems = [str(damage) for damage in ours.verify()]
    if ours.ids != theirs.ids or ours.config != theirs.config:
        problems.append("other trajectories or configuration")
    for key in set(ours.ids) & set(theirs.ids):
        for camera in theirs.config.cameras:
            if not np.array_equal(ours.of_camera(key, camera), theirs.of_camera(key, camera)):
                problems.append(f"other vectors of {key}")
    return [f"{found.name}: {problem}" for problem in problems]
