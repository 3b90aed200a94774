"""Writing LeRobot v3.0 datasets: what `LeRobotDataset` loads, resumable, whole or not at all."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from fractions import Fraction
from importlib import metadata as packages
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from strap.atomic import discard, read_json, remove_leftovers, replacing, write_json, writing
from strap.datasets.lerobot.description import Placement, write_description
from strap.datasets.lerobot.encoding import GOP, Codec, Encoding, join
from strap.datasets.lerobot.features import camera_key, columns_of
from strap.datasets.lerobot.layout import rational_fps
from strap.datasets.lerobot.pieces import (
    Piece,
    Workplace,
    finished_piece,
    partial_folder,
    write_piece,
)
from strap.errors import StrapError
from strap.locks import alone
from strap.progress import Progress, silent
from strap.provenance import fingerprint_json
from strap.types import Trajectory

CHUNKS_SIZE = 1000
DATA_MB, VIDEO_MB = 100, 200
ORIGIN = "meta/strap.json"
"""from what a dataset was written, so that the same call again finds it done"""
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"


def write_lerobot(
    out: str | Path,
    trajectories: Iterable[Trajectory],
    *,
    fps: float | None = None,
    codec: Codec = "h264",
    crf: int | None = None,
    gop: int = GOP,
    cameras: Sequence[str] | None = None,
    robot_type: str | None = None,
    data_files_size_in_mb: float = DATA_MB,
    video_files_size_in_mb: float = VIDEO_MB,
    source: Mapping[str, Any] | None = None,
    total: int | None = None,
    progress: Progress = silent,
) -> Path:
    """Write trajectories as one LeRobot v3.0 dataset; returns its folder.

    Frames are written upright. A run that was stopped is continued by calling again with the same
    arguments and trajectories: finished episodes are kept in `.<name>.partial` beside `out`. Other
    data or other arguments begin afresh.

    Args:
        out: the folder; it appears when the dataset is whole.
        trajectories: what to write, read one at a time, a few frames at a time.
        fps: the frame rate; by default that of the trajectories.
        codec: `h264`, which everything reads, or `av1`, LeRobot's own default.
        crf: quality, lower is better; by default such that the error stays below 3 grey levels.
        gop: frames from keyframe to keyframe.
        cameras: which to write; by default all of the first trajectory.
        robot_type: goes into `info.json`.
        data_files_size_in_mb: a new parquet file begins at this size.
        video_files_size_in_mb: a new video file begins at this size.
        source: what the trajectories come from, as JSON (a dataset's path and fingerprint, …): a
            call with the same source and arguments finds a finished dataset and returns it.
        total: how many trajectories there are, for the progress display.
        progress: called with (what, done, total).
    """
    out = Path(out).expanduser()
    stream = iter(trajectories)
    first = next(stream, None)
    if first is None:
        raise StrapError(f"nothing to write to '{out}': there is no trajectory")
    if total is None and isinstance(trajectories, Sized):
        total = len(trajectories)
    rate = _rate(first, fps)
    encodings = _encodings(first, cameras, codec, rate, crf, gop)
    plan = {
        **_plan(first, rate, encodings),
        "source": source,
        "robot_type": robot_type,
        "data_mb": data_files_size_in_mb,
        "video_mb": video_files_size_in_mb,
    }
    with writing(out), alone(out.with_name(f".{out.name}.lock"), f"writing '{out}'"):
        remove_leftovers(out.parent, out.name)
        if _is_written(out, plan):
            discard(partial_folder(out))
            return out
        place = Workplace(out, plan)
        job = _Job(place, first, rate, encodings, video_files_size_in_mb, fps is None)
        for trajectory in _chain(first, stream):
            job.add(trajectory)
            progress("writing", len(job.pieces), total or len(job.pieces))
        job.close(robot_type, data_files_size_in_mb)
        write_json(place.dataset / ORIGIN, {"plan": fingerprint_json(plan), "source": source})
        place.finish(out)
    return out


def _is_written(out: Path, plan: Mapping[str, Any]) -> bool:
    """Whether `out` is what this plan makes; an error where it is something else."""
    if not out.exists():
        return False
    origin = read_json(out / ORIGIN) if (out / ORIGIN).is_file() else {}
    if plan["source"] is None or origin.get("plan") != fingerprint_json(plan):
        raise StrapError(f"'{out}' exists already: choose another output or remove it first")
    return True


class _Job:
    """Episodes as they come: pieces, then video files as soon as one is full."""

    def __init__(
        self,
        place: Workplace,
        first: Trajectory,
        fps: Fraction,
        encodings: Mapping[str, Encoding],
        video_mb: float,
        one_rate: bool,
    ) -> None:
        self.place = place
        self.fps = fps
        self.encodings = encodings
        self.pieces: list[Piece] = []
        self.tasks: dict[str, int] = {}
        self.placements: dict[str, list[Placement]] = {key: [] for key in encodings}
        self._required = {c.name: c.shape for c in columns_of(first).values() if not c.optional}
        self._groups: dict[str, list[Piece]] = {key: [] for key in encodings}
        self._files = dict.fromkeys(encodings, 0)
        self._video_bytes = video_mb * 2**20
        self._video_mb = video_mb
        self._one_rate = one_rate

    def add(self, trajectory: Trajectory) -> None:
        """Write an episode, or find it written."""
        self._check(trajectory)
        index = len(self.pieces)
        first = self.pieces[-1].first + self.pieces[-1].length if self.pieces else 0
        task = self.tasks.setdefault(trajectory.instruction, len(self.tasks))
        piece = finished_piece(self.place, trajectory, index, task, first) or write_piece(
            self.place, trajectory, index, task, first, self.encodings, self.fps
        )
        self.pieces.append(piece)
        for key, group in self._groups.items():
            size = sum(member.sizes[key] for member in group)
            if group and size + piece.sizes[key] > self._video_bytes:
                self._join(key)
            self._groups[key].append(piece)

    def close(self, robot_type: str | None, data_mb: float) -> None:
        """Write what is left: the last video files, the tables, the description."""
        for key in self._groups:
            self._join(key)
        columns, dropped = _common_columns(self.place, self.pieces)
        if dropped:
            warnings.warn(
                f"{', '.join(dropped)}: not alike in all trajectories, left out of the dataset",
                stacklevel=3,
            )
        placements = {"data": _write_data(self.place, self.pieces, columns, data_mb * 2**20)}
        placements |= {f"videos/{key}": found for key, found in self.placements.items()}
        info = {
            "codebase_version": "v3.0",
            "robot_type": robot_type,
            "chunks_size": CHUNKS_SIZE,
            "data_files_size_in_mb": data_mb,
            "video_files_size_in_mb": self._video_mb,
            "fps": int(self.fps) if self.fps.denominator == 1 else float(self.fps),
            "data_path": DATA_PATH,
            "video_path": VIDEO_PATH if self.encodings else None,
        }
        features = columns | {key: e.spec() for key, e in self.encodings.items()}
        write_description(self.place, info, features, self.pieces, self.tasks, placements)

    def _join(self, key: str) -> None:
        """Make one video file of the pieces at hand, and remove them."""
        group, self._groups[key] = self._groups[key], []
        number = self._files[key]
        self._files[key] += 1
        chunk, file = divmod(number, CHUNKS_SIZE)
        before = 0
        for piece in group:
            begin, end = before / self.fps, (before + piece.length) / self.fps
            self.placements[key].append(Placement(chunk, file, float(begin), float(end)))
            before += piece.length
        name = VIDEO_PATH.format(video_key=key, chunk_index=chunk, file_index=file)
        target = self.place.dataset / name
        pieces = [self.place.video_file(piece.index, key) for piece in group]
        if group and not target.exists():
            join(target, pieces, [piece.length for piece in group], self.fps)
        for file_of_piece in pieces:
            file_of_piece.unlink(missing_ok=True)

    def _check(self, trajectory: Trajectory) -> None:
        """Every episode needs the features of the first."""
        if trajectory.length < 1:
            raise StrapError(f"trajectory '{trajectory.id}' has no frames; leave it out")
        rate = trajectory.fps
        if self._one_rate and rate is not None and rational_fps(rate) != self.fps:
            raise StrapError(
                f"trajectory '{trajectory.id}' runs at {rate:g} Hz, the first at "
                f"{float(self.fps):g}: LeRobot keeps one rate; give fps to write all at that"
            )
        cameras = {camera_key(name): array.shape for name, array in trajectory.cameras.items()}
        for key, e in self.encodings.items():
            if cameras.get(key, ())[1:3] != (e.height, e.width):
                raise _differs(trajectory, key, cameras.get(key), (e.height, e.width))
        columns = columns_of(trajectory)
        for name, shape in self._required.items():
            own = columns[name].shape if name in columns else None
            if own != shape:
                raise _differs(trajectory, name, own, shape)


def _differs(
    trajectory: Trajectory, name: str, own: tuple[int, ...] | None, first: tuple[int, ...]
) -> StrapError:
    found = f"has '{name}' of shape {own}" if own else f"lacks '{name}'"
    return StrapError(
        f"trajectory '{trajectory.id}' {found}, the first one has {first} per frame: LeRobot "
        "keeps the same features for all episodes; leave it out, or choose the cameras to write"
    )


def _rate(first: Trajectory, fps: float | None) -> Fraction:
    rate = fps if fps is not None else first.fps
    if rate is None or not 0 < rate < 1e5:
        raise StrapError(
            f"trajectory '{first.id}' has frame rate {rate}: give the recording's rate with fps=…"
        )
    return rational_fps(rate)


def _encodings(
    first: Trajectory,
    cameras: Sequence[str] | None,
    codec: Codec,
    fps: Fraction,
    crf: int | None,
    gop: int,
) -> dict[str, Encoding]:
    found: dict[str, Encoding] = {}
    for name in first.cameras if cameras is None else cameras:
        height, width = first.camera(name).shape[1:3]
        found[camera_key(name)] = Encoding(codec, fps, height, width, crf, gop)
    return found


def _plan(first: Trajectory, fps: Fraction, encodings: Mapping[str, Encoding]) -> dict[str, Any]:
    """What must be the same for an unfinished dataset to be continued."""
    return {
        "first": first.identity(),
        "fps": str(fps),
        "videos": {key: [e.spec(), e.quality, e.gop] for key, e in encodings.items()},
        "av": packages.version("av") if encodings else None,
    }


def _common_columns(
    place: Workplace, pieces: Sequence[Piece]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The features that all episodes have alike, and the names of those that they do not."""
    common: dict[str, dict[str, Any]] = {}
    seen: dict[str, None] = {}
    for piece in pieces:
        own = {n: dict(spec) for n, spec in (place.record(piece.index) or {})["columns"].items()}
        seen |= dict.fromkeys(own)
        if piece.index == 0:
            common = own
        common = {n: s for n, s in common.items() if n in own and _alike(s, own[n])}
    for spec in common.values():
        spec.pop("optional", None)
    return common, [name for name in seen if name not in common]


def _alike(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return bool(a["dtype"] == b["dtype"] and a["shape"] == b["shape"])


def _write_data(
    place: Workplace, pieces: Sequence[Piece], columns: Mapping[str, Any], limit: float
) -> list[Placement]:
    """Data files, one row group per episode, a new file when the rows reach the limit."""
    placements: list[Placement] = []
    groups: list[list[Piece]] = [[]]
    size = 0
    for piece in pieces:
        own = _row_bytes(place, piece, columns)
        if groups[-1] and size + own > limit:
            groups.append([])
            size = 0
        groups[-1].append(piece)
        size += own
    for number, group in enumerate(groups):
        chunk, file = divmod(number, CHUNKS_SIZE)
        target = place.dataset / DATA_PATH.format(chunk_index=chunk, file_index=file)
        _write_data_file(target, (_rows(place, piece, columns) for piece in group))
        placements += [Placement(chunk, file)] * len(group)
    return placements


def _rows(place: Workplace, piece: Piece, columns: Mapping[str, Any]) -> pa.Table:
    bookkeeping = ["timestamp", "frame_index", "episode_index", "index", "task_index"]
    return pq.read_table(place.table_file(piece.index), columns=[*columns, *bookkeeping])


def _row_bytes(place: Workplace, piece: Piece, columns: Mapping[str, Any]) -> int:
    return int(_rows(place, piece, columns).nbytes)


def _write_data_file(target: Path, tables: Iterator[pa.Table]) -> None:
    writer: pq.ParquetWriter | None = None
    with replacing(target) as temporary:
        for table in tables:
            writer = writer or pq.ParquetWriter(temporary, table.schema, compression="snappy")
            writer.write_table(table)
        if writer:
            writer.close()


def _chain(first: Trajectory, rest: Iterator[Trajectory]) -> Iterator[Trajectory]:
    yield first
    yield from rest
