"""Small LeRobot datasets, changed in one place and read as a whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import strap

LENGTHS = (5, 1, 7)
INFO = "meta/info.json"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
TASKS = "meta/tasks.parquet"
DATA = "data/chunk-000/file-000.parquet"
FRONT = "videos/observation.images.front/chunk-000/file-000.mp4"

Change = Callable[[pa.Table], pa.Table]


def read_all(root: Path, **options: Any) -> list[strap.Trajectory]:
    """Open the dataset and read every array of every trajectory."""
    found = list(strap.open_dataset(root, **options))
    for trajectory in found:
        arrays = (trajectory.proprioception, trajectory.extras, {"actions": trajectory.actions})
        for array in (array for group in arrays for array in group.values()):
            assert len(array[:]) == trajectory.length
        for name in trajectory.cameras:
            assert len(trajectory.frames(name)) == trajectory.length
    return found


def edit_info(root: Path, path: str, value: object) -> None:
    """Set a value of info.json; `path` has its keys, joined by `|`."""
    info = json.loads((root / INFO).read_text())
    *parents, last = path.split("|")
    node = info
    for key in parents:
        node = node[key]
    node[last] = value
    (root / INFO).write_text(json.dumps(info))


def edit_table(file: Path, change: Change) -> None:
    pq.write_table(change(pq.read_table(file)), file)


def column(name: str, values: object) -> Change:
    """Replace a column by `values`: an array, a value for all rows, or what becomes of the old."""

    def change(table: pa.Table) -> pa.Table:
        new = values(table[name].to_pylist()) if callable(values) else values
        array = new if isinstance(new, pa.Array) else pa.array(_repeated(new, table.num_rows))
        return table.set_column(table.column_names.index(name), name, array)

    return change


def _repeated(values: object, count: int) -> list[object]:
    return values if isinstance(values, list) and len(values) == count else [values] * count


def first(value: object) -> Callable[[list[object]], list[object]]:
    """Another value in the first row."""
    return lambda old: [value, *old[1:]]
