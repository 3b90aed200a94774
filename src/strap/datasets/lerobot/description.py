"""Write `meta/` of a LeRobot v3.0 dataset: info, tasks, episodes and statistics."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from strap.atomic import replacing, write_json
from strap.datasets.lerobot.features import bookkeeping_specs
from strap.datasets.lerobot.finished_episodes import FinishedEpisode, Workspace
from strap.datasets.lerobot.layout import INFO, PROVENANCE
from strap.datasets.lerobot.statistics import STATISTICS, aggregate

EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
EPISODES_PER_FILE = 10_000
EPISODES_PER_BATCH = 256
"""episodes described at a time, so that the statistics of all episodes are never in memory"""
_PROVENANCE_TYPES = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}


@dataclass(frozen=True)
class Placement:
    """The place of an episode: chunk and file, and for videos its time span in seconds."""

    chunk: int
    file: int
    begin: float | None = None
    end: float | None = None


def write_description(
    workspace: Workspace,
    info: Mapping[str, Any],
    features: Mapping[str, Mapping[str, Any]],
    episodes: Sequence[FinishedEpisode],
    tasks: Mapping[str, int],
    placements: Mapping[str, Sequence[Placement]],
) -> None:
    """Write all files of `meta/`, `info.json` last."""
    root = workspace.dataset
    features = {**features, **bookkeeping_specs()}
    provenance = _provenance_types(workspace, episodes)
    for number, start in enumerate(range(0, len(episodes), EPISODES_PER_FILE)):
        chunk, file = divmod(number, int(info["chunks_size"]))
        group = episodes[start : start + EPISODES_PER_FILE]
        meta_file = Placement(chunk, file)
        target = root / EPISODES_PATH.format(chunk_index=chunk, file_index=file)
        batches = _episode_tables(workspace, group, meta_file, features, placements, provenance)
        write_tables(target, batches)
    _write_tasks(root / "meta/tasks.parquet", tasks)
    stats = aggregate(_stats(workspace.record(e.index), features) for e in episodes)
    write_json(
        root / "meta/stats.json",
        {k: {s: v.tolist() for s, v in values.items()} for k, values in stats.items()},
    )
    frames = episodes[-1].first + episodes[-1].length
    totals = {
        "total_episodes": len(episodes),
        "total_frames": frames,
        "total_tasks": len(tasks),
        "splits": {"train": f"0:{len(episodes)}"},
    }
    write_json(root / INFO, {**info, **totals, "features": features})


def _stats(record: Mapping[str, Any], features: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    stats = record["stats"]
    return {name: stats[name] for name in features if name in stats}


def _episode_tables(
    workspace: Workspace,
    episodes: Sequence[FinishedEpisode],
    meta_file: Placement,
    features: Mapping[str, Any],
    placements: Mapping[str, Sequence[Placement]],
    provenance: Mapping[str, pa.DataType],
) -> Iterator[pa.Table]:
    for start in range(0, len(episodes), EPISODES_PER_BATCH):
        group = episodes[start : start + EPISODES_PER_BATCH]
        rows = [
            _row(workspace, episode, meta_file, features, placements, provenance)
            for episode in group
        ]
        columns = {
            name: pa.array([row[name] for row in rows], _row_type(name, provenance))
            for name in rows[0]
        }
        yield pa.table(columns)


def _row_type(name: str, provenance: Mapping[str, pa.DataType]) -> pa.DataType | None:
    """Return a column's type if its values might not determine it, since they can be null."""
    if name.startswith(PROVENANCE):
        return provenance[name.removeprefix(PROVENANCE)]
    return pa.list_(pa.string()) if name == "tasks" else None


def _row(
    workspace: Workspace,
    episode: FinishedEpisode,
    meta_file: Placement,
    features: Mapping[str, Any],
    placements: Mapping[str, Sequence[Placement]],
    provenance: Mapping[str, pa.DataType],
) -> dict[str, Any]:
    record = workspace.record(episode.index)
    row: dict[str, Any] = {
        "episode_index": episode.index,
        "tasks": record["tasks"],
        "length": episode.length,
        "dataset_from_index": episode.first,
        "dataset_to_index": episode.first + episode.length,
    }
    for name, placed in placements.items():
        at = placed[episode.index]
        row |= {f"{name}/chunk_index": at.chunk, f"{name}/file_index": at.file}
        if at.begin is not None:
            row |= {f"{name}/from_timestamp": at.begin, f"{name}/to_timestamp": at.end}
    for feature, stats in _stats(record, features).items():
        row |= {f"stats/{feature}/{name}": stats[name] for name in STATISTICS}
    row |= {
        "meta/episodes/chunk_index": meta_file.chunk,
        "meta/episodes/file_index": meta_file.file,
    }
    values = record["provenance"]
    return row | {
        PROVENANCE + key: _convert(values.get(key), kind) for key, kind in provenance.items()
    }


def _provenance_types(
    workspace: Workspace, episodes: Sequence[FinishedEpisode]
) -> dict[str, pa.DataType]:
    """Return a column type for every provenance key: one that can hold all its values."""
    kinds: dict[str, set[type]] = {}
    for episode in episodes:
        for key, value in workspace.record(episode.index)["provenance"].items():
            kinds.setdefault(key, set())
            if value is not None:
                kinds[key].add(type(value))
    types: dict[str, pa.DataType] = {}
    for key, found in kinds.items():
        mixed = float if found == {int, float} else str
        kind = next(iter(found)) if len(found) == 1 else mixed
        types[key] = _PROVENANCE_TYPES[kind]
    return types


def _convert(value: Any, kind: pa.DataType) -> Any:
    """Return a value for a column of type `kind`; in a text column, other values become JSON."""
    if value is None:
        return None
    if pa.types.is_string(kind) and not isinstance(value, str):
        return json.dumps(value)
    return float(value) if pa.types.is_floating(kind) else value


def write_tables(target: Path, tables: Iterator[pa.Table]) -> None:
    """Write tables as one parquet file with the first one's schema, a row group per table."""
    writer: pq.ParquetWriter | None = None
    with replacing(target) as temporary:
        for table in tables:
            writer = writer or pq.ParquetWriter(temporary, table.schema, compression="snappy")
            writer.write_table(table.cast(writer.schema))
        if writer:
            writer.close()


def _write_tasks(target: Path, tasks: Mapping[str, int]) -> None:
    """Write the tasks as the index of a pandas data frame, where LeRobot reads them."""
    table = pa.table({"task_index": list(tasks.values()), "task": list(tasks)})
    index = {"name": "task", "field_name": "task", "pandas_type": "unicode"}
    column = {"name": "task_index", "field_name": "task_index", "pandas_type": "int64"}
    described = {
        "index_columns": ["task"],
        "column_indexes": [
            {"name": None, "field_name": None, "pandas_type": "unicode", "numpy_type": "object"}
            | {"metadata": {"encoding": "UTF-8"}}
        ],
        "columns": [
            {**column, "numpy_type": "int64", "metadata": None},
            {**index, "numpy_type": "object", "metadata": None},
        ],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.2.0",
    }
    table = table.replace_schema_metadata({"pandas": json.dumps(described)})
    with replacing(target) as temporary:
        pq.write_table(table, temporary)
