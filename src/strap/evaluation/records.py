"""The records of rollouts, as they lie in a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read_records(out: Path) -> dict[int, Mapping[str, Any]]:
    """Finished episodes by initial state; an unfinished last line is left out."""
    file = out / "episodes.jsonl"
    rows = {}
    for line in file.read_text().splitlines() if file.is_file() else ():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        rows[int(row["state"])] = row
    return rows
