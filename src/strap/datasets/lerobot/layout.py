"""The layout of a LeRobot dataset, read from `meta/`: features, episodes and their files.

v3.0 stores many episodes per file and one row per episode in `meta/episodes/*.parquet`. v2.x stores
one file per episode and lists the episodes in `meta/episodes.jsonl`. Both become a `Layout`. File
names always come from the templates in `info.json`. Metadata of a wrong type raises an error when
the dataset is opened.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from strap.datasets.hub import Snapshot, find_snapshot
from strap.datasets.hub.snapshots import INFO
from strap.datasets.lerobot.episodes import PROVENANCE, list_episodes, list_tasks
from strap.datasets.lerobot.templates import Template, find_videos, read_templates
from strap.datasets.lerobot.values import (
    expect_text,
    expect_whole_number,
    parse_json,
    short_repr,
)
from strap.datasets.untrusted import (
    MAX_FRAME_BYTES,
    MAX_IMAGE_PIXELS,
    explain_read_errors,
    require_at_most,
)
from strap.errors import StrapError

__all__ = [
    "BOOKKEEPING",
    "IMAGES",
    "INFO",
    "PROVENANCE",
    "Feature",
    "Layout",
    "is_folder_name",
    "load_layout",
    "rational_fps",
]

BOOKKEEPING = ("timestamp", "frame_index", "episode_index", "index", "task_index")
IMAGES = "observation.images."
MAX_INFO_BYTES = 1 << 25
"""the largest `info.json`: 32 MiB; usual ones have a few kilobytes"""
MAX_SECONDS = 1e8
"""the latest start of an episode within a video file: three years"""
MIN_FPS, MAX_FPS = 1e-3, 1e5
CHUNK_SIZE = 1000
"""episodes per folder in v2.x, if `info.json` does not say"""
_VERSION = re.compile(r"v[23](\.[0-9]{1,4}){0,2}", re.ASCII)
_TEXT = re.compile(r"(large_)?(string|binary)|str|text|language\w*|json|null", re.ASCII)
_NUMERIC = re.compile(r"bool|u?int(8|16|32|64)?|float(16|32|64)?|double", re.ASCII)


@dataclass(frozen=True)
class Feature:
    """One entry of `features` in `info.json`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    names: Any = None
    is_depth: bool = False

    @property
    def is_image(self) -> bool:
        """Whether its values are images, in a video file or in the table."""
        return self.dtype in ("video", "image")

    @property
    def is_camera(self) -> bool:
        """Whether its values are colour images; depth maps are not cameras of a trajectory."""
        return self.is_image and self.shape[2] == 3 and not self.is_depth

    @property
    def camera_name(self) -> str:
        """The name without its prefix: `front` for `observation.images.front`."""
        return self.name.removeprefix(IMAGES)

    @property
    def is_numeric(self) -> bool:
        """Whether its values are numbers."""
        return _NUMERIC.fullmatch(self.dtype) is not None

    @property
    def is_known(self) -> bool:
        """Whether its dtype is known; texts are known, although trajectories do not hold them."""
        return self.is_image or self.is_numeric or _TEXT.fullmatch(self.dtype) is not None


@dataclass(frozen=True)
class Layout:
    """Everything about a dataset that is known without opening a data or video file."""

    root: Path
    info: Mapping[str, Any]
    version: str
    fps: Fraction
    features: Mapping[str, Feature]
    columns: Mapping[str, Any]
    """per-episode columns: `episode_index`, `length`, `tasks`, `dataset_from_index`, and in v3.0
    the columns that locate the files"""
    tasks: Mapping[int, str]
    rows: Mapping[int, int]
    """episode index -> its row in `columns`"""
    templates: Mapping[str, Template]
    """`data_path` and, if there are videos, `video_path`"""
    chunk_size: int
    """episodes per folder (v2.x)"""
    notes: tuple[str, ...] = ()
    """notes about files that are not in the place that `info.json` names"""
    snapshot: Snapshot | None = None
    """the commit, if the dataset is from the hub: missing files are fetched from it"""

    @property
    def folders(self) -> frozenset[str]:
        """The folders that hold the dataset's files."""
        named = (template.folder for template in self.templates.values())
        return frozenset({"meta", "data", "videos", "images", *named} - {""})

    @property
    def per_episode_files(self) -> bool:
        """Whether every episode has its own files, as in v2.x."""
        return self.version.startswith("v2")

    def data_file(self, row: int) -> Path:
        """Return the parquet file of the episode in a row."""
        return self._path("data_path", row, "data")

    def video_file(self, row: int, key: str) -> Path:
        """Return the video file of a camera for the episode in a row."""
        return self._path("video_path", row, f"videos/{key}", video_key=key)

    def files(self, row: int, videos: Collection[str] | None = None) -> tuple[Path, ...]:
        """Return the files of the episode in a row: its table, and the given videos or all."""
        if videos is None:
            videos = [
                feature.name for feature in self.features.values() if feature.dtype == "video"
            ]
        return self.data_file(row), *(self.video_file(row, key) for key in videos)

    def ensure_local(self, file: Path) -> Path:
        """Return the file; if the dataset is from the hub and the file is missing, fetch it."""
        if self.snapshot is not None and not file.exists():
            self.snapshot.fetch([file.relative_to(self.root).as_posix()])
        return file

    def video_start(self, row: int, key: str) -> float:
        """Return the time of the episode's frame 0 in the video file, in seconds."""
        if self.per_episode_files:
            return 0.0
        start = float(self.columns[f"videos/{key}/from_timestamp"][row])
        if not 0 <= start <= MAX_SECONDS:
            raise StrapError(
                f"'{self.root}': meta/episodes says that 'videos/{key}/from_timestamp' of episode "
                f"{self.columns['episode_index'][row]} is {start}; it must be seconds, 0 or more: "
                "download the meta folder again"
            )
        return start

    def _path(self, template: str, row: int, columns: str, **names: str) -> Path:
        """Return the file of an episode; `columns` is the prefix of the columns that locate it."""
        index = int(self.columns["episode_index"][row])
        values: dict[str, int | str] = {
            **names,
            "episode_index": index,
            "episode_chunk": index // self.chunk_size,
            "chunk_index": index // self.chunk_size,  # some v2.x datasets use this name
        }
        if not self.per_episode_files:
            values["chunk_index"] = self._file_number(f"{columns}/chunk_index", row)
            values["file_index"] = self._file_number(f"{columns}/file_index", row)
        return self.templates[template].path(self.root, values)

    def _file_number(self, column: str, row: int) -> int:
        number = int(self.columns[column][row])
        if number < 0:
            raise StrapError(
                f"'{self.root}': meta/episodes has no '{column}' for episode "
                f"{self.columns['episode_index'][row]}; the dataset is incomplete: download its "
                "meta folder again"
            )
        return number


def load_layout(root: Path) -> Layout:
    """Return the layout of the dataset in a folder, read from its `meta/`."""
    file = root / INFO
    with explain_read_errors(file, "LeRobot"):
        info = _read_info(file)
        version = _parse_version(info, root)
        specs = info["features"].items()
        features = {name: _parse_feature(name, spec, file) for name, spec in specs}
        _require_distinct_cameras(features, file)
        fps = _parse_fps(info, file)
        chunk_size = expect_whole_number(
            info.get("chunks_size", CHUNK_SIZE), f"'{file}': chunks_size", least=1
        )
    with explain_read_errors(root / "meta", "LeRobot"):
        is_v2 = version.startswith("v2")
        videos = [feature.name for feature in features.values() if feature.dtype == "video"]
        columns = list_episodes(root, per_episode_files=is_v2, videos=videos)
        _require_total(info, file, len(columns["episode_index"]))
        tasks = list_tasks(root, per_episode_files=is_v2)
        named = dict(read_templates(info, file, columns, videos, per_episode_files=is_v2))
        templates, notes = find_videos(named, root)
    return Layout(
        root=root,
        info=info,
        version=version,
        fps=fps,
        features=features,
        columns=columns,
        tasks=tasks,
        rows={index: row for row, index in enumerate(columns["episode_index"].tolist())},
        templates=templates,
        chunk_size=chunk_size,
        notes=notes,
        snapshot=find_snapshot(root),
    )


def _read_info(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise StrapError(f"no such file: '{file}'; a LeRobot dataset has one: check the path")
    require_at_most(file.stat().st_size, MAX_INFO_BYTES, "bytes of metadata", file)
    with explain_read_errors(file, "JSON"):
        info = parse_json(file.read_bytes())
    if not isinstance(info, dict) or not isinstance(info.get("features"), dict):
        raise StrapError(f"'{file}' has no 'features'; it is not the info of a LeRobot dataset")
    return info


def _require_total(info: Mapping[str, Any], file: Path, listed: int) -> None:
    """Raise if `meta/` lists fewer or more episodes than `info.json` declares."""
    total = expect_whole_number(info.get("total_episodes", listed), f"'{file}': total_episodes")
    if total != listed:
        raise StrapError(
            f"'{file}' declares {total} episodes but meta/ lists {listed}: download the meta "
            "folder again, or correct total_episodes"
        )


def _parse_version(info: Mapping[str, Any], root: Path) -> str:
    version = info.get("codebase_version", "v2.1")
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise StrapError(
            f"'{root}' is LeRobot {short_repr(version)}: v2.x and v3.0 are read; convert it with "
            "LeRobot's own scripts first"
        )
    return version


def rational_fps(fps: float) -> Fraction:
    """Return a frame rate as a fraction: 29.97 is 2997/100, 29.97003 is 30000/1001."""
    return Fraction(fps).limit_denominator(1001)


def _parse_fps(info: Mapping[str, Any], file: Path) -> Fraction:
    fps = info.get("fps")
    is_number = isinstance(fps, int | float) and not isinstance(fps, bool)
    if fps is None or not is_number or not MIN_FPS <= fps <= MAX_FPS:
        raise StrapError(
            f"'{file}': fps is {short_repr(fps)}; it must be a positive number, {MIN_FPS:g} to "
            f"{MAX_FPS:g}"
        )
    return rational_fps(fps)


def _parse_feature(name: str, spec: Any, file: Path) -> Feature:
    where = f"'{file}': feature {expect_text(name, f'{file}: the name of a feature')!r}"
    if not isinstance(spec, dict) or not {"dtype", "shape"} <= spec.keys():
        raise StrapError(f"{where} lacks a dtype or shape; it is {short_repr(spec)}: correct it")
    dtype = expect_text(spec["dtype"], f"{where}: dtype")
    if not isinstance(spec["shape"], list) or len(spec["shape"]) > 8:
        raise StrapError(
            f"{where}: shape is {short_repr(spec['shape'])}; it must be a list of sizes"
        )
    shape = tuple(expect_whole_number(n, f"{where}: a size in shape") for n in spec["shape"])
    if dtype in ("video", "image"):
        shape = _height_width_channels(where, shape, spec.get("names"))
        require_at_most(shape[0] * shape[1], MAX_IMAGE_PIXELS, f"pixels in {name!r}", file)
    if dtype == "video" and not is_folder_name(name):
        raise StrapError(
            f"{where} is a video, so a folder has its name; the name must not contain slashes: "
            "rename it"
        )
    feature = Feature(name, dtype, shape, spec.get("names"), _is_depth(where, spec))
    if feature.is_numeric:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        require_at_most(size, MAX_FRAME_BYTES, f"bytes per frame in {name!r}", file)
    return feature


def is_folder_name(name: str) -> bool:
    """Return whether a video feature may have this name: it is also the name of a folder."""
    return re.search(r"[/\\\0]|^\.{0,2}$", name) is None


def _require_distinct_cameras(features: Mapping[str, Feature], file: Path) -> None:
    cameras = [f for f in features.values() if f.is_camera]
    by_name = {feature.camera_name: feature.name for feature in cameras}
    hidden = [f for f in cameras if by_name[f.camera_name] != f.name]
    if hidden:
        raise StrapError(
            f"'{file}': features {hidden[0].name!r} and {by_name[hidden[0].camera_name]!r} are the "
            "same camera; rename one"
        )


def _is_depth(where: str, spec: Mapping[str, Any]) -> bool:
    described: dict[str, Any] = {}
    for key in ("video_info", "info"):
        part = spec.get(key)
        if part is not None and not isinstance(part, dict):
            raise StrapError(f"{where}: {key} is {short_repr(part)}; it must be an object or null")
        described |= part or {}
    flags = [described.get(key) for key in ("is_depth_map", "video.is_depth_map")]
    if wrong := [value for value in flags if not isinstance(value, bool | None)]:
        raise StrapError(
            f"{where}: is_depth_map is {short_repr(wrong[0])}; it must be true or false"
        )
    return any(flags)


def _height_width_channels(where: str, shape: tuple[int, ...], names: Any) -> tuple[int, ...]:
    # Some writers list (channels, height, width); the names or the sizes show it.
    first = names[0] if isinstance(names, list) and names else None
    if len(shape) == 3 and (first in ("channel", "channels") or (shape[0] <= 4 < shape[2])):
        shape = (shape[1], shape[2], shape[0])
    if len(shape) != 3 or min(shape) < 1:
        raise StrapError(
            f"{where}: a camera of shape {list(shape)}; it must be [height, width, channels]"
        )
    return shape
