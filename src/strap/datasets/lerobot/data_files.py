"""The data files of a LeRobot dataset: finished episodes' tables, many in a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from strap.atomic import replacing
from strap.datasets.lerobot.description import Placement
from strap.datasets.lerobot.finished_episodes import FinishedEpisode, Workplace

CHUNKS_SIZE = 1000
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"


def write_data_files(
    workplace: Workplace,
    episodes: Sequence[FinishedEpisode],
    columns: Mapping[str, Any],
    limit: float,
) -> list[Placement]:
    """Write the data files, a row group per episode, a new file when the rows reach the limit."""
    placements: list[Placement] = []
    groups: list[list[FinishedEpisode]] = [[]]
    size = 0
    for episode in episodes:
        n_bytes = _row_bytes(workplace, episode, columns)
        if groups[-1] and size + n_bytes > limit:
            groups.append([])
            size = 0
        groups[-1].append(episode)
        size += n_bytes
    for number, group in enumerate(groups):
        chunk, file = divmod(number, CHUNKS_SIZE)
        target = workplace.dataset / DATA_PATH.format(chunk_index=chunk, file_index=file)
        _write_data_file(target, (_rows(workplace, episode, columns) for episode in group))
        placements += [Placement(chunk, file)] * len(group)
    return placements


def _rows(workplace: Workplace, episode: FinishedEpisode, columns: Mapping[str, Any]) -> pa.Table:
    bookkeeping = ["timestamp", "frame_index", "episode_index", "index", "task_index"]
    return pq.read_table(workplace.table_file(episode.index), columns=[*columns, *bookkeeping])


def _row_bytes(workplace: Workplace, episode: FinishedEpisode, columns: Mapping[str, Any]) -> int:
    return int(_rows(workplace, episode, columns).nbytes)


def _write_data_file(target: Path, tables: Iterator[pa.Table]) -> None:
    writer: pq.ParquetWriter | None = None
    with replacing(target) as temporary:
        for table in tables:
            writer = writer or pq.ParquetWriter(temporary, table.schema, compression="snappy")
            writer.write_table(table)
        if writer:
            writer.close()
