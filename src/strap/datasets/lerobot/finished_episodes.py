"""The finished episodes of a conversion in progress: a table, a video per camera, a record.

.<name>.partial/
  plan.json               the source and the options; with another plan the conversion restarts
  pieces/000007.json      the episode's record, written last: the episode is finished
  pieces/000007.parquet   its rows
  pieces/000007.<key>.mp4 its frames; deleted once they are part of a finished video file
  dataset/                the finished files of the dataset
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from strap.atomic import read_json, remove_folder, replacing, write_json
from strap.datasets.finite import first_fault
from strap.datasets.lerobot.encoding import Encoding, encode
from strap.datasets.lerobot.features import NumericColumn, camera_key, columns_of, to_arrow
from strap.datasets.lerobot.statistics import ImageStats, Stats, number_stats
from strap.errors import StrapError
from strap.types import Array, Trajectory

CHUNK_BYTES = 16 << 20
"""frames held at a time while a video is written"""


@dataclass(frozen=True)
class FinishedEpisode:
    """What is kept in memory of one finished episode."""

    index: int
    length: int
    task: int
    first: int
    """number of frames before the episode in the dataset"""
    sizes: Mapping[str, int]
    """video feature -> bytes of its video"""
    fault: str = ""
    """where its first action or state is that is NaN or infinite"""


class Workspace:
    """The folder of a conversion in progress."""

    def __init__(self, out: Path, plan: Mapping[str, Any]) -> None:
        self.out = out
        self.root = partial_folder(out)
        self.episodes = self.root / "pieces"
        self.dataset = self.root / "dataset"
        plan_file = self.root / "plan.json"
        if plan_file.exists() and read_json(plan_file) != plan:
            warnings.warn(
                f"'{self.root}' holds an unfinished dataset that was started from other data or "
                "with other options: it is removed and written again",
                stacklevel=3,
            )
            remove_folder(self.root)
        elif not plan_file.exists():
            remove_folder(self.root)
        self.episodes.mkdir(parents=True, exist_ok=True)
        self.dataset.mkdir(exist_ok=True)
        for leftover in self.root.rglob(".*.tmp"):  # of a run that was killed while writing
            leftover.unlink()
        write_json(plan_file, plan)

    def record_file(self, index: int) -> Path:
        """Return the file of an episode's record."""
        return self.episodes / f"{index:06d}.json"

    def table_file(self, index: int) -> Path:
        """Return the file of an episode's table."""
        return self.episodes / f"{index:06d}.parquet"

    def video_file(self, index: int, key: str) -> Path:
        """Return the file of an episode's video of one camera."""
        return self.episodes / f"{index:06d}.{key}.mp4"

    def record(self, index: int) -> dict[str, Any]:
        """Return the record of a finished episode."""
        record: dict[str, Any] = read_json(self.record_file(index))
        return record

    def finish(self, out: Path) -> None:
        """Move the finished dataset to its place."""
        self.dataset.rename(out)
        remove_folder(self.root)


def partial_folder(out: Path) -> Path:
    """Return the folder with the finished episodes of an unfinished dataset."""
    return out.with_name(f".{out.name}.partial")


def find_finished(
    workspace: Workspace, trajectory: Trajectory, index: int, task: int, first: int
) -> FinishedEpisode | None:
    """Return the episode of a trajectory if an earlier run finished it, else None."""
    if not workspace.record_file(index).exists():
        return None
    record = workspace.record(index)
    is_same = record["identity"] == trajectory.identity()
    if not is_same or record["first"] != first or record["task"] != task:
        raise StrapError(
            f"'{workspace.root}' holds an unfinished dataset whose episode {index} was made from "
            f"another trajectory ('{record['id']}') than '{trajectory.id}' of "
            f"'{trajectory.source.path}': remove that folder to start again"
        )
    fault = record.get("fault", "")
    return FinishedEpisode(index, trajectory.length, task, first, record["sizes"], fault)


def write_episode(
    workspace: Workspace,
    trajectory: Trajectory,
    index: int,
    task: int,
    first: int,
    encodings: Mapping[str, Encoding],
    fps: Fraction,
) -> FinishedEpisode:
    """Write one episode: its videos, its table, and last the record that marks it as finished.

    `encodings` maps the names of the cameras that are written to their encodings.
    """
    columns = columns_of(trajectory, encodings)
    stats: dict[str, Stats] = {}
    sizes: dict[str, int] = {}
    for camera, encoding in encodings.items():
        key = camera_key(camera)
        file = workspace.video_file(index, key)
        stats[key] = _write_video(file, trajectory, camera, encoding)
        sizes[key] = file.stat().st_size
    file = workspace.table_file(index)
    numbers, fault = _write_table(file, trajectory, columns, index, task, first, fps)
    stats |= numbers
    record = {
        "id": trajectory.id,
        "identity": trajectory.identity(),
        "length": trajectory.length,
        "first": first,
        "task": task,
        "tasks": [trajectory.instruction],
        "sizes": sizes,
        "fault": fault,
        "columns": {c.name: {**c.spec(), "optional": c.optional} for c in columns.values()},
        "stats": {k: {s: v.tolist() for s, v in values.items()} for k, values in stats.items()},
        "provenance": _provenance(trajectory),
    }
    write_json(workspace.record_file(index), record, sweep=False)
    return FinishedEpisode(index, trajectory.length, task, first, sizes, fault)


def _write_video(file: Path, trajectory: Trajectory, camera: str, encoding: Encoding) -> Stats:
    stats = ImageStats(trajectory.length)

    def chunks() -> Iterator[Array]:
        step = max(1, CHUNK_BYTES // (encoding.height * encoding.width * 3))
        for start in range(0, trajectory.length, step):
            frames = trajectory.frames(camera, start, min(start + step, trajectory.length))
            frames = np.ascontiguousarray(frames)
            stats.add(frames)
            yield frames

    encode(file, chunks(), encoding)
    return stats.result()


def _write_table(
    file: Path,
    trajectory: Trajectory,
    columns: Mapping[str, NumericColumn],
    index: int,
    task: int,
    first: int,
    fps: Fraction,
) -> tuple[dict[str, Stats], str]:
    """Write the rows; return their statistics and the first number that is not finite."""
    frames = np.arange(trajectory.length)
    arrays: dict[str, Array] = {name: column.read() for name, column in columns.items()}
    shapes = {name: column.shape for name, column in columns.items()}
    arrays |= {
        "timestamp": (frames / float(fps)).astype(np.float32),
        "frame_index": frames,
        "episode_index": np.full(trajectory.length, index),
        "index": first + frames,
        "task_index": np.full(trajectory.length, task),
    }
    for name, values in arrays.items():
        if len(values) != trajectory.length:
            raise StrapError(
                f"trajectory '{trajectory.id}': '{name}' has {len(values)} rows but the trajectory "
                f"has {trajectory.length} frames"
            )
    table = pa.table({n: to_arrow(v, shapes.get(n, (1,))) for n, v in arrays.items()})
    with replacing(file, sweep=False) as temporary:
        pq.write_table(table, temporary)
    checked = (name for name, column in columns.items() if not column.optional)
    faults = (first_fault(name, arrays[name]) for name in checked)
    stats = {name: number_stats(values) for name, values in arrays.items()}
    return stats, next(filter(None, faults), "")


def _provenance(trajectory: Trajectory) -> dict[str, Any]:
    found = trajectory.attributes.get("provenance") or {}
    plain = (str, int, float, bool, type(None))
    values = {key: getattr(value, "item", lambda v=value: v)() for key, value in found.items()}
    return {key: value if isinstance(value, plain) else str(value) for key, value in values.items()}
