"""What `meta/` of a LeRobot dataset says: features, episodes and where their files lie.

v3.0 keeps many episodes per file and one row per episode in `meta/episodes/*.parquet`; v2.x keeps
one file per episode and `meta/episodes.jsonl`. Both end up in one `Layout`; file names always come
from the templates of `info.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from strap.artifacts import read_json
from strap.errors import StrapError

INFO = "meta/info.json"
BOOKKEEPING = ("timestamp", "frame_index", "episode_index", "index", "task_index")
IMAGES = "observation.images."
PROVENANCE = "provenance/"


@dataclass(frozen=True)
class Feature:
    """One entry of `features`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    names: Any = None
    is_depth: bool = False

    @property
    def is_picture(self) -> bool:
        """Whether its values are pictures, in a video file or in the table."""
        return self.dtype in ("video", "image")

    @property
    def is_camera(self) -> bool:
        """Whether these are colour pictures; depth maps are no camera of a trajectory."""
        return self.is_picture and self.shape[2] == 3 and not self.is_depth


@dataclass(frozen=True)
class Layout:
    """The index of a dataset: everything known without opening a data or video file."""

    root: Path
    info: Mapping[str, Any]
    version: str
    fps: Fraction
    features: Mapping[str, Feature]
    columns: Mapping[str, Any]
    """per-episode columns: `episode_index`, `length`, `tasks`, and in v3.0 the file columns"""
    tasks: Mapping[int, str]
    rows: Mapping[int, int]
    """episode index -> its row in `columns`"""

    @property
    def per_episode_files(self) -> bool:
        """v2.x: every episode has files of its own, which start at frame 0."""
        return self.version.startswith("v2")

    def data_file(self, row: int) -> Path:
        """The parquet file of the episode in that row."""
        return self._path("data_path", row, "data")

    def video_file(self, row: int, key: str) -> Path:
        """The video file of a camera for the episode in that row."""
        return self._path("video_path", row, f"videos/{key}", video_key=key)

    def video_start(self, row: int, key: str) -> float:
        """Seconds into the video file at which the episode's frame 0 lies."""
        if self.per_episode_files:
            return 0.0
        return float(self._value(f"videos/{key}/from_timestamp", row))

    def _path(self, template: str, row: int, place: str, **names: str) -> Path:
        index = int(self.columns["episode_index"][row])
        chunk_size = int(self.info.get("chunks_size", 1000)) or 1000
        values: dict[str, Any] = {
            **names,
            "episode_index": index,
            "episode_chunk": index // chunk_size,
        }
        if not self.per_episode_files:
            values["chunk_index"] = int(self._value(f"{place}/chunk_index", row))
            values["file_index"] = int(self._value(f"{place}/file_index", row))
        try:
            return self.root / str(self.info[template]).format(**values)
        except (KeyError, IndexError, ValueError) as error:
            raise StrapError(
                f"'{self.root / INFO}': cannot make a file name from {template} "
                f"{self.info.get(template)!r} ({error}); known names: {', '.join(values)}"
            ) from error

    def _value(self, column: str, row: int) -> Any:
        if column not in self.columns or self.columns[column][row] is None:
            index = int(self.columns["episode_index"][row])
            raise StrapError(
                f"'{self.root}': meta/episodes has no '{column}' for episode {index}; "
                "the dataset is incomplete: download its meta folder again"
            )
        return self.columns[column][row]


def load_layout(root: Path) -> Layout:
    """Read `meta/`."""
    info = read_json(root / INFO)
    if not isinstance(info, dict) or not isinstance(info.get("features"), dict):
        raise StrapError(f"'{root / INFO}' has no 'features'; it is no LeRobot dataset's info")
    version = str(info.get("codebase_version", "v2.1"))
    if not version.startswith(("v2", "v3")):
        raise StrapError(
            f"'{root}' is LeRobot {version}: v2.x and v3.0 are read; convert it with "
            "LeRobot's own scripts first"
        )
    old = version.startswith("v2")
    columns = _episodes_v2(root) if old else _episodes_v3(root)
    columns = _in_episode_order(columns, root)
    return Layout(
        root=root,
        info=info,
        version=version,
        fps=_fps(info, root),
        features={name: _feature(name, spec, root) for name, spec in info["features"].items()},
        columns=columns,
        tasks=_tasks_v2(root) if old else _tasks_v3(root),
        rows={int(index): row for row, index in enumerate(columns["episode_index"])},
    )


def rational_fps(fps: float) -> Fraction:
    """The frame rate as the fraction it stands for: 29.97 is 2997/100, 29.97003 is 30000/1001."""
    return Fraction(fps).limit_denominator(1001)


def _fps(info: Mapping[str, Any], root: Path) -> Fraction:
    fps = info.get("fps")
    if not isinstance(fps, int | float) or not 0 < fps < 1e5:
        raise StrapError(f"'{root / INFO}': fps is {fps!r}; it must be a positive number")
    return rational_fps(fps)


def _feature(name: str, spec: Any, root: Path) -> Feature:
    try:
        shape = tuple(int(n) for n in spec["shape"])
        dtype = str(spec["dtype"])
    except (KeyError, TypeError, ValueError) as error:
        raise StrapError(
            f"'{root / INFO}': feature '{name}' lacks a dtype or shape ({error}); mend the file"
        ) from error
    if dtype in ("video", "image"):
        shape = _height_width_channels(name, shape, spec.get("names"), root)
    described = {**(spec.get("video_info") or {}), **(spec.get("info") or {})}
    depth = bool(described.get("is_depth_map") or described.get("video.is_depth_map"))
    return Feature(name, dtype, shape, spec.get("names"), depth)


def _height_width_channels(
    name: str, shape: tuple[int, ...], names: Any, root: Path
) -> tuple[int, ...]:
    # Some writers list (channels, height, width); the names say so, or the place of the 3.
    first = names[0] if isinstance(names, list) and names else None
    if len(shape) == 3 and (first in ("channel", "channels") or (shape[0] <= 4 < shape[2])):
        shape = (shape[1], shape[2], shape[0])
    if len(shape) != 3 or min(shape) < 1:
        raise StrapError(
            f"'{root / INFO}': camera '{name}' has shape {list(shape)}; "
            "it must be [height, width, channels]"
        )
    return shape


def _episodes_v2(root: Path) -> dict[str, Any]:
    rows = read_json_lines(root / "meta/episodes.jsonl")
    try:
        return {
            "episode_index": [int(row["episode_index"]) for row in rows],
            "length": [int(row["length"]) for row in rows],
            "tasks": [row.get("tasks") or [] for row in rows],
        }
    except (KeyError, TypeError, ValueError) as error:
        raise StrapError(
            f"'{root / 'meta/episodes.jsonl'}': a line lacks {error}; download it again"
        ) from error


def _episodes_v3(root: Path) -> dict[str, Any]:
    files = sorted((root / "meta/episodes").glob("*/*.parquet"))
    if not files:
        raise StrapError(f"'{root}' has no meta/episodes/*/*.parquet; download its meta folder")
    tables = [_read_episode_table(file) for file in files]
    # Files written at different times may differ in their statistics columns, never in these.
    table = pa.concat_tables(tables, promote_options="permissive")
    for name in ("episode_index", "length"):
        if name not in table.column_names:
            raise StrapError(f"'{files[0]}' has no column '{name}'; it is no LeRobot v3.0 table")
    return {
        name: table[name].to_pylist() if _listed(table[name].type) else table[name].to_numpy()
        for name in table.column_names
    }


def _read_episode_table(file: Path) -> pa.Table:
    try:
        names = [n for n in pq.read_schema(file).names if not n.startswith("stats/")]
        return pq.read_table(file, columns=names)
    except (OSError, pa.ArrowException) as error:
        raise StrapError(f"cannot read '{file}': {error}; download it again") from error


def _listed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind) or pa.types.is_string(kind) or pa.types.is_null(kind))


def _in_episode_order(columns: dict[str, Any], root: Path) -> dict[str, Any]:
    index = np.asarray(columns["episode_index"], np.int64)
    if len(np.unique(index)) != len(index):
        raise StrapError(f"'{root}': meta/ lists an episode twice; download its meta folder again")
    order = np.argsort(index, kind="stable")
    return {
        name: values[order] if isinstance(values, np.ndarray) else [values[i] for i in order]
        for name, values in columns.items()
    }


def _tasks_v2(root: Path) -> dict[int, str]:
    file = root / "meta/tasks.jsonl"
    rows = read_json_lines(file) if file.exists() else []
    return {int(row["task_index"]): str(row["task"]) for row in rows if "task" in row}


def _tasks_v3(root: Path) -> dict[int, str]:
    file = root / "meta/tasks.parquet"
    if not file.exists():
        return {}
    try:
        table = pq.read_table(file)
    except (OSError, pa.ArrowException) as error:
        raise StrapError(f"cannot read '{file}': {error}; download it again") from error
    # pandas wrote the task strings as its index: `task` or, unnamed, `__index_level_0__`.
    texts = [name for name in table.column_names if name != "task_index"]
    if not texts or "task_index" not in table.column_names:
        return {}
    pairs = zip(table["task_index"].to_pylist(), table[texts[0]].to_pylist(), strict=True)
    return {int(index): str(task) for index, task in pairs}


def read_json_lines(file: Path) -> list[dict[str, Any]]:
    """The objects of a .jsonl file, with an error that names file and line."""
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StrapError(f"cannot read '{file}': {error}; download it again") from error
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise StrapError(f"'{file}', line {number}: {error}; download it again") from error
        if not isinstance(row, dict):
            raise StrapError(f"'{file}', line {number}: expected an object, found {row!r}")
        rows.append(row)
    return rows
