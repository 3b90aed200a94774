"""The records of rollouts, as they lie in a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strap.atomic import read_json
from strap.errors import StrapError

FPS = 20
"""of the videos"""
DESCRIPTION = "evaluation.json"
"""which checkpoint, task and settings"""


def read_records(out: Path) -> dict[int, Mapping[str, Any]]:
    """Return finished episodes by initial state; an unfinished last line is left out."""
    file = out / "episodes.jsonl"
    rows = {}
    for line in file.read_text().splitlines() if file.is_file() else ():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        rows[int(row["state"])] = row
    return rows


def require_same_task(first: Path, second: Path) -> None:
    """Raise where two evaluations are not of the same task."""
    one, two = (read_json(out / DESCRIPTION) for out in (first, second))
    for key in ("suite", "task", "horizon"):
        if one.get(key) != two.get(key):
            raise StrapError(
                f"'{first}' and '{second}' differ in {key} ({one.get(key)}, {two.get(key)}): only "
                "evaluations of the same task can be compared"
            )
