"""Write LeRobot v3.0 datasets, as `LeRobotDataset` loads them; a stopped run can be resumed."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence, Sized
from fractions import Fraction
from importlib import metadata as packages
from itertools import chain
from pathlib import Path
from typing import Any

from strap.atomic import (
    explain_write_errors,
    read_json,
    remove_folder,
    remove_leftovers,
    write_json,
)
from strap.datasets.base import Codec
from strap.datasets.finite import explain_fault
from strap.datasets.labels import Label, labels_of, write_labels
from strap.datasets.lerobot.data_files import CHUNKS_SIZE, DATA_PATH, write_data_files
from strap.datasets.lerobot.description import Placement, write_description
from strap.datasets.lerobot.encoding import GOP, Encoding, join
from strap.datasets.lerobot.features import (
    arrays_left_out,
    cameras_by_key,
    columns_of,
    require_folder_name,
)
from strap.datasets.lerobot.finished_episodes import (
    FinishedEpisode,
    Workspace,
    find_finished,
    partial_folder,
    write_episode,
)
from strap.datasets.lerobot.layout import rational_fps
from strap.datasets.lerobot.reading import episode_id
from strap.errors import StrapError
from strap.locks import exclusive_lock
from strap.progress import Progress, silent
from strap.provenance import fingerprint_json
from strap.types import Trajectory

DATA_MB, VIDEO_MB = 100, 200
ORIGIN = "meta/strap.json"
"""the file with a dataset's source and options, by which a repeated call finds it complete"""
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
    """Write trajectories as one LeRobot v3.0 dataset; return its folder.

    Frames are written upright. Skill labels, if there are any, are written to
    `meta/skills.parquet`. To resume a stopped run, call again with the same arguments and
    trajectories: finished episodes are kept in `.<name>.partial` beside `out`. With other data or
    other arguments the run starts again from the beginning.

    Args:
        out: the folder; it appears when the dataset is complete.
        trajectories: what to write, read one at a time, a few frames at a time.
        fps: the frame rate; by default that of the trajectories.
        codec: `h264`, which every player reads, or `av1`, LeRobot's own default.
        crf: quality, lower is better; by default such that the error stays below 3 grey levels.
        gop: frames from keyframe to keyframe.
        cameras: the cameras to write; by default all of the first trajectory.
        robot_type: the robot's name in `info.json`.
        data_files_size_in_mb: a new parquet file begins at this size.
        video_files_size_in_mb: a new video file begins at this size.
        source: where the trajectories come from, as JSON (a dataset's path and fingerprint, …). A
            call with the same source and arguments returns a finished dataset without writing it
            again.
        total: the number of trajectories, for the progress display.
        progress: called with (what, done, total).
    """
    out = Path(out).expanduser()
    stream = iter(trajectories)
    first = next(stream, None)
    if first is None:
        raise StrapError(f"nothing to write to '{out}': there are no trajectories; choose some")
    if total is None and isinstance(trajectories, Sized):
        total = len(trajectories)
    rate = _choose_fps(first, fps)
    encodings = _encodings(first, cameras, codec, rate, crf, gop)
    columns = columns_of(first, cameras_by_key(first, cameras).values())
    required = {c.name: c.shape for c in columns.values() if not c.optional}
    plan = {
        **_plan(first, rate, encodings),
        "source": source,
        "robot_type": robot_type,
        "data_mb": data_files_size_in_mb,
        "video_mb": video_files_size_in_mb,
    }
    with (
        explain_write_errors(out),
        exclusive_lock(out.with_name(f".{out.name}.lock"), f"writing '{out}'"),
    ):
        remove_leftovers(out.parent, out.name)
        if _is_written(out, plan):
            remove_folder(partial_folder(out))
            return out
        workspace = Workspace(out, plan)
        writer = _Writer(
            workspace,
            required,
            rate,
            encodings,
            cameras,
            video_mb=video_files_size_in_mb,
            require_same_fps=fps is None,
        )
        for trajectory in chain([first], stream):
            writer.add(trajectory)
            progress("writing", len(writer.episodes), total or len(writer.episodes))
        writer.close(robot_type, data_files_size_in_mb)
        if writer.labels:
            write_labels(workspace.dataset, writer.labels)
        write_json(workspace.dataset / ORIGIN, {"plan": fingerprint_json(plan), "source": source})
        workspace.finish(out)
    return out


def _is_written(out: Path, plan: Mapping[str, Any]) -> bool:
    """Return whether `out` was written with this plan; raise if it is another dataset."""
    if not out.exists():
        return False
    origin = read_json(out / ORIGIN) if (out / ORIGIN).is_file() else {}
    if plan["source"] is None or origin.get("plan") != fingerprint_json(plan):
        raise StrapError(f"'{out}' exists already: choose another output or remove it first")
    return True


class _Writer:
    """A writer of episodes; it joins their videos as soon as a video file is full."""

    def __init__(
        self,
        workspace: Workspace,
        required: Mapping[str, tuple[int, ...]],
        fps: Fraction,
        encodings: Mapping[str, Encoding],
        cameras: Sequence[str] | None,
        *,
        video_mb: float,
        require_same_fps: bool,
    ) -> None:
        self.workspace = workspace
        self.fps = fps
        self.encodings = encodings
        self.episodes: list[FinishedEpisode] = []
        self.tasks: dict[str, int] = {}
        self.labels: dict[str, Sequence[Label]] = {}
        self.placements: dict[str, list[Placement]] = {key: [] for key in encodings}
        self._required = required
        self._cameras = cameras
        self._left_out: dict[str, str] = {}
        self._is_told = False
        self._groups: dict[str, list[FinishedEpisode]] = {key: [] for key in encodings}
        self._files = dict.fromkeys(encodings, 0)
        self._video_mb = video_mb
        self._require_same_fps = require_same_fps

    def add(self, trajectory: Trajectory) -> None:
        """Write an episode unless an earlier run has finished it."""
        cameras = cameras_by_key(trajectory, self._cameras)
        self._check(trajectory, cameras)
        index = len(self.episodes)
        first = self.episodes[-1].first + self.episodes[-1].length if self.episodes else 0
        task = self.tasks.setdefault(trajectory.instruction, len(self.tasks))
        encodings = {cameras[key]: encoding for key, encoding in self.encodings.items()}
        episode = find_finished(self.workspace, trajectory, index, task, first) or write_episode(
            self.workspace, trajectory, index, task, first, encodings, self.fps
        )
        if episode.fault and not self._is_told:
            self._is_told = True
            fault = f"episode {index}, {episode.fault}"
            warnings.warn(explain_fault(self.workspace.out, trajectory.id, fault), stacklevel=3)
        self.episodes.append(episode)
        if labels := labels_of(trajectory):
            self.labels[episode_id(index)] = labels
        for key, group in self._groups.items():
            size = sum(member.sizes[key] for member in group)
            if group and size + episode.sizes[key] > self._video_mb * 2**20:
                self._join(key)
            self._groups[key].append(episode)

    def close(self, robot_type: str | None, data_mb: float) -> None:
        """Write the last video files, the tables and `meta/`."""
        for key in self._groups:
            self._join(key)
        if self._left_out:
            listing = ", ".join(f"{name} ({why})" for name, why in self._left_out.items())
            warnings.warn(f"left out of the dataset: {listing}", stacklevel=3)
        columns, dropped = _common_columns(self.workspace, self.episodes)
        if dropped:
            warnings.warn(
                f"left out of the dataset, because not all trajectories have the same: "
                f"{', '.join(dropped)}",
                stacklevel=3,
            )
        placements = {
            "data": write_data_files(self.workspace, self.episodes, columns, data_mb * 2**20)
        }
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
        write_description(self.workspace, info, features, self.episodes, self.tasks, placements)

    def _join(self, key: str) -> None:
        """Join the videos of the finished episodes into one file, and delete them."""
        group, self._groups[key] = self._groups[key], []
        number = self._files[key]
        self._files[key] += 1
        chunk, file = divmod(number, CHUNKS_SIZE)
        before = 0
        for episode in group:
            begin, end = before / self.fps, (before + episode.length) / self.fps
            self.placements[key].append(Placement(chunk, file, float(begin), float(end)))
            before += episode.length
        name = VIDEO_PATH.format(video_key=key, chunk_index=chunk, file_index=file)
        target = self.workspace.dataset / name
        videos = [self.workspace.video_file(episode.index, key) for episode in group]
        if group and not target.exists():
            join(target, videos, [episode.length for episode in group], self.fps)
        for video in videos:
            video.unlink(missing_ok=True)

    def _check(self, trajectory: Trajectory, cameras: Mapping[str, str]) -> None:
        """Raise if a trajectory differs from the first in its features or its frame rate."""
        if trajectory.length < 1:
            raise StrapError(f"trajectory '{trajectory.id}' has no frames; leave it out")
        rate = trajectory.fps
        if self._require_same_fps and rate is not None and rational_fps(rate) != self.fps:
            raise StrapError(
                f"trajectory '{trajectory.id}' runs at {rate:g} Hz, the first at "
                f"{float(self.fps):g}: a LeRobot dataset has one frame rate; write robomimic's "
                "format, or give one rate for all trajectories (strap convert --fps)"
            )
        sizes = {key: trajectory.camera(name).shape[1:3] for key, name in cameras.items()}
        for key, e in self.encodings.items():
            if sizes.get(key) != (e.height, e.width):
                raise _differs(trajectory, key, sizes.get(key), (e.height, e.width))
        columns = columns_of(trajectory, cameras.values())
        for name, shape in self._required.items():
            found = columns[name].shape if name in columns else None
            if found != shape:
                raise _differs(trajectory, name, found, shape)
        self._left_out |= arrays_left_out(trajectory, columns)


def _differs(
    trajectory: Trajectory, name: str, shape: tuple[int, ...] | None, first: tuple[int, ...]
) -> StrapError:
    fault = f"has '{name}' of shape {shape}" if shape else f"lacks '{name}'"
    return StrapError(
        f"trajectory '{trajectory.id}' {fault}, the first one has {first} per frame: LeRobot "
        "datasets have the same features in all episodes; leave it out, or choose the cameras to "
        "write"
    )


def _choose_fps(first: Trajectory, fps: float | None) -> Fraction:
    rate = fps if fps is not None else first.fps
    if rate is None or not 0 < rate < 1e5:
        raise StrapError(
            f"trajectory '{first.id}' has frame rate {rate}: give the frame rate of the recording "
            "(--fps)"
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
    for key, name in cameras_by_key(first, cameras).items():
        require_folder_name(key, name)
        height, width = first.camera(name).shape[1:3]
        found[key] = Encoding(codec, fps, height, width, crf, gop)
    return found


def _plan(first: Trajectory, fps: Fraction, encodings: Mapping[str, Encoding]) -> dict[str, Any]:
    """Return the settings that must be the same for an unfinished dataset to be resumed."""
    return {
        "first": first.identity(),
        "fps": str(fps),
        "videos": {key: [e.spec(), e.quality, e.gop] for key, e in encodings.items()},
        "av": packages.version("av") if encodings else None,
    }


def _common_columns(
    workspace: Workspace, episodes: Sequence[FinishedEpisode]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the features that are the same in all episodes, and the names of the others."""
    common: dict[str, dict[str, Any]] = {}
    seen: dict[str, None] = {}
    for episode in episodes:
        columns = workspace.record(episode.index)["columns"]
        specs = {name: dict(spec) for name, spec in columns.items()}
        seen |= dict.fromkeys(specs)
        if episode.index == 0:
            common = specs
        common = {n: s for n, s in common.items() if n in specs and _alike(s, specs[n])}
    for spec in common.values():
        spec.pop("optional", None)
    return common, [name for name in seen if name not in common]


def _alike(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return bool(a["dtype"] == b["dtype"] and a["shape"] == b["shape"])
