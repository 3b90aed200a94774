"""Read the lists in `meta/`, episodes and tasks, from tables (v3.0) or lines of JSON (v2.x).

The types of all values are checked here: whole numbers, seconds, lists of texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from strap.datasets.lerobot.parquet import (
    Table,
    open_table,
    read_whole_column,
    to_seconds,
    to_whole_numbers,
    type_name,
)
from strap.datasets.lerobot.values import (
    expect_text,
    expect_texts,
    expect_whole_number,
    parse_json,
    short_repr,
)
from strap.datasets.untrusted import (
    MAX_METADATA_BYTES,
    MAX_TRAJECTORIES,
    explain_read_errors,
    require_at_most,
)
from strap.errors import StrapError
from strap.types import Array

PROVENANCE = "provenance/"
MAX_FRAMES = 100_000_000
"""the most frames of one episode: 38 days at 30 Hz"""
MAX_LINE_BYTES = 1 << 24
"""the longest line of JSON"""
TEXT_COLUMNS = ("task", "__index_level_0__")
"""the names under which pandas writes the texts of `tasks.parquet`, which are its index"""

Columns = dict[str, Any]
"""name -> one value per episode, an array or a list"""


def list_episodes(root: Path, *, per_episode_files: bool, videos: Sequence[str]) -> Columns:
    """Return the columns of `meta/` on episodes, sorted by `episode_index`.

    They are `episode_index`, `length`, `tasks` and `dataset_from_index`. v3.0 also has
    `provenance/…` and the columns that locate the files of the data and of each of `videos` (−1 or
    NaN if a value is missing).
    """
    if per_episode_files:
        columns = _from_lines(root / "meta/episodes.jsonl")
    else:
        columns = _from_tables(root, videos)
    longest = int(np.max(columns["length"], initial=0))
    require_at_most(longest, MAX_FRAMES, "frames of an episode", root / "meta")
    index = columns["episode_index"]
    if len(np.unique(index)) != len(index):
        raise StrapError(f"'{root}': meta/ lists an episode twice; download its meta folder again")
    order = np.argsort(index, kind="stable")
    ordered: Columns = {
        name: values[order] if isinstance(values, np.ndarray) else [values[i] for i in order]
        for name, values in columns.items()
    }
    lengths = ordered["length"]
    first = ordered.get("dataset_from_index", np.full(len(lengths), -1))
    ordered["dataset_from_index"] = np.where(first < 0, np.cumsum(lengths) - lengths, first)
    return ordered


def list_tasks(root: Path, *, per_episode_files: bool) -> dict[int, str]:
    """Return the text of every task by its `task_index`; empty if there is no list of tasks."""
    file = root / ("meta/tasks.jsonl" if per_episode_files else "meta/tasks.parquet")
    if not file.exists():
        return {}
    found: dict[int, str] = {}
    for index, task in _task_lines(file) if per_episode_files else _task_rows(file):
        if found.setdefault(index, task) != task:
            raise StrapError(f"'{file}' has two texts for task {index}; download it again")
    return found


# --- v2.x: lines of JSON -----------------------------------------------------------------------


def _from_lines(file: Path) -> Columns:
    index, length, tasks = [], [], []
    for where, row in read_json_lines(file):
        index.append(_field(row, "episode_index", where))
        length.append(_field(row, "length", where))
        tasks.append(expect_texts(row.get("tasks"), f"{where}: 'tasks'"))
        require_at_most(len(index), MAX_TRAJECTORIES, "episodes", file)
    numbers = {"episode_index": index, "length": length}
    return {name: np.array(values, np.int64) for name, values in numbers.items()} | {"tasks": tasks}


def _task_lines(file: Path) -> Iterator[tuple[int, str]]:
    for where, row in read_json_lines(file):
        yield _field(row, "task_index", where), expect_text(row.get("task"), f"{where}: 'task'")


def _field(row: dict[str, Any], name: str, where: str) -> int:
    if name not in row:
        raise StrapError(f"{where} lacks '{name}'; download the file again")
    return expect_whole_number(row[name], f"{where}: '{name}'")


def read_json_lines(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (file and line for errors, object) of every line of a .jsonl file."""
    with explain_read_errors(file, "JSON lines"):
        require_at_most(_size(file), MAX_METADATA_BYTES, "bytes of metadata", file)
        with file.open("rb") as lines:
            for number, line in enumerate(iter(lambda: lines.readline(MAX_LINE_BYTES), b""), 1):
                where = f"'{file}', line {number}"
                if len(line) == MAX_LINE_BYTES:
                    raise StrapError(
                        f"{where}: longer than {MAX_LINE_BYTES:,} bytes; the file is damaged: "
                        "download it again"
                    )
                if line.strip():
                    yield where, _parse_object(line, where)


def _parse_object(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = parse_json(line)
    except (ValueError, RecursionError) as error:
        raise StrapError(f"{where}: not JSON ({error}); download the file again") from error
    if not isinstance(row, dict):
        raise StrapError(f"{where}: expected an object, found {short_repr(row)}; download it again")
    return row


# --- v3.0: tables ------------------------------------------------------------------------------


def _from_tables(root: Path, videos: Sequence[str]) -> Columns:
    files = sorted((root / "meta/episodes").glob("*/*.parquet"))
    if not files:
        raise StrapError(f"'{root}' has no meta/episodes/*/*.parquet; download its meta folder")
    parts, rows = [], 0
    for file in files:
        with explain_read_errors(file, "LeRobot"):
            table = _open_meta(file)
            rows += table.rows
            require_at_most(rows, MAX_TRAJECTORIES, "episodes", file)
            parts.append(_episode_columns(table, videos))
    # Files written at different times can have different provenance columns.
    names = dict.fromkeys(name for part in parts for name in part)
    return {
        name: _joined([part.get(name, [None] * len(part["length"])) for part in parts])
        for name in names
    }


def _open_meta(file: Path) -> Table:
    require_at_most(_size(file), MAX_METADATA_BYTES, "bytes of metadata", file)
    return open_table(file)


def _size(file: Path) -> int:
    if not file.is_file():
        raise StrapError(f"'{file}' is missing or not a file; download the meta folder again")
    return file.stat().st_size


def _episode_columns(table: Table, videos: Sequence[str]) -> Columns:
    for name in ("episode_index", "length"):
        if name not in table.names:
            raise StrapError(
                f"'{table.file}' has no column '{name}'; it is not a LeRobot v3.0 table"
            )
    places = ("data", *(f"videos/{key}" for key in videos))
    files = [f"{place}/{part}" for place in places for part in ("chunk_index", "file_index")]
    found: Columns = {
        name: to_whole_numbers(read_whole_column(table, name), f"'{table.file}': '{name}'")
        for name in ("episode_index", "length")
    }
    for name in (*files, "dataset_from_index"):
        found[name] = _column(table, name, _optional_whole_numbers, np.full(table.rows, -1))
    for name in (f"videos/{key}/from_timestamp" for key in videos):
        found[name] = _column(table, name, to_seconds, np.full(table.rows, np.nan))
    found["tasks"] = _column(table, "tasks", _task_lists, [[]] * table.rows)
    provenance = [name for name in table.names if name.startswith(PROVENANCE)]
    return found | {name: _column(table, name, _plain_values, None) for name in provenance}


def _column(
    table: Table, name: str, convert: Callable[[pa.ChunkedArray, str], Any], absent: Any
) -> Any:
    if name not in table.names:
        return absent
    return convert(read_whole_column(table, name), f"'{table.file}': '{name}'")


def _optional_whole_numbers(values: pa.ChunkedArray, what: str) -> Array:
    return to_whole_numbers(values, what, missing=True)


def _task_lists(values: pa.ChunkedArray, what: str) -> list[list[str]]:
    return [expect_texts(value, what) for value in values.to_pylist()]


def _plain_values(values: pa.ChunkedArray, what: str) -> list[Any]:
    kind = values.type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if not (is_text or is_number):
        raise StrapError(f"{what} is of type {type_name(kind)}; it must be texts or numbers")
    found: list[Any] = values.to_pylist()
    return found


def _task_rows(file: Path) -> Iterable[tuple[int, str]]:
    with explain_read_errors(file, "LeRobot"):
        table = _open_meta(file)
        require_at_most(table.rows, MAX_TRAJECTORIES, "tasks", file)
        named = [name for name in TEXT_COLUMNS if name in table.names]
        others = [name for name in table.names if name != "task_index"]
        if "task_index" not in table.names or not others:
            raise StrapError(f"'{file}' has no columns 'task_index' and 'task'; download it again")
        column = (named or others)[0]
        index = to_whole_numbers(read_whole_column(table, "task_index"), f"'{file}': 'task_index'")
        found = read_whole_column(table, column).to_pylist()
        return [
            (int(i), expect_text(task, f"'{file}': '{column}'"))
            for i, task in zip(index, found, strict=True)
        ]


def _joined(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return [value for part in parts for value in part]
