"""Write the data files of a LeRobot dataset: the tables of many finished episodes per file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from strap.datasets.lerobot.description import Placement, write_tables
from strap.datasets.lerobot.finished_episodes import FinishedEpisode, Workspace
from strap.datasets.lerobot.layout import BOOKKEEPING

CHUNKS_SIZE = 1000
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"


def write_data_files(
    workspace: Workspace,
    episodes: Sequence[FinishedEpisode],
    columns: Mapping[str, Any],
    limit: float,
) -> list[Placement]:
    """Write the data files, one row group per episode.

    A new file begins when the next episode's rows would exceed `limit` bytes.
    """
    placements: list[Placement] = []
    groups: list[list[FinishedEpisode]] = [[]]
    size = 0
    for episode in episodes:
        n_bytes = _read_rows(workspace, episode, columns).nbytes
        if groups[-1] and size + n_bytes > limit:
            groups.append([])
            size = 0
        groups[-1].append(episode)
        size += n_bytes
    for number, group in enumerate(groups):
        chunk, file = divmod(number, CHUNKS_SIZE)
        target = workspace.dataset / DATA_PATH.format(chunk_index=chunk, file_index=file)
        write_tables(target, (_read_rows(workspace, episode, columns) for episode in group))
        placements += [Placement(chunk, file)] * len(group)
    return placements


def _read_rows(
    workspace: Workspace, episode: FinishedEpisode, columns: Mapping[str, Any]
) -> pa.Table:
    file = workspace.table_file(episode.index)
    return pq.read_table(file, columns=[*columns, *BOOKKEEPING])
