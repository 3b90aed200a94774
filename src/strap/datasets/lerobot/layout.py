"""What `meta/` of a LeRobot dataset says: features, episodes and where their files lie.

v3.0 keeps many episodes per file and one row per episode in `meta/episodes/*.parquet`; v2.x keeps
one file per episode and `meta/episodes.jsonl`. Both end up in one `Layout`; file names always come
from the templates of `info.json`. Whatever is of a wrong kind there is an error when it is opened.
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
    reading,
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
"""of `info.json`: 32 MiB; those in use have a few kilobytes"""
MAX_SECONDS = 1e8
"""into a video file: three years"""
SLOWEST, FASTEST = 1e-3, 1e5
"""frames per second"""
CHUNK_SIZE = 1000
"""episodes per folder of v2.x, where `info.json` does not tell"""
_VERSION = re.compile(r"v[23](\.[0-9]{1,4}){0,2}", re.ASCII)
_TEXT = re.compile(r"(large_)?(string|binary)|str|text|language\w*|json|null", re.ASCII)
_NUMERIC = re.compile(r"bool|u?int(8|16|32|64)?|float(16|32|64)?|double", re.ASCII)


@dataclass(frozen=True)
class Feature:
    """One entry of `features`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    names: Any = None
    is_depth: bool = False

    @property
    def is_image(self) -> bool:
        """Whether its values are pictures, in a video file or in the table."""
        return self.dtype in ("video", "image")

    @property
    def is_camera(self) -> bool:
        """Whether these are colour pictures; depth maps are no camera of a trajectory."""
        return self.is_image and self.shape[2] == 3 and not self.is_depth

    @property
    def camera_name(self) -> str:
        """`observation.images.front` is the camera `front`."""
        return self.name.removeprefix(IMAGES)

    @property
    def is_numeric(self) -> bool:
        """Whether its values are numbers."""
        return _NUMERIC.fullmatch(self.dtype) is not None

    @property
    def is_known(self) -> bool:
        """Whether its kind is; texts are, though they have no place in a trajectory."""
        return self.is_image or self.is_numeric or _TEXT.fullmatch(self.dtype) is not None


@dataclass(frozen=True)
class Layout:
    """The index of a dataset: everything known without opening a data or video file."""

    root: Path
    info: Mapping[str, Any]
    version: str
    fps: Fraction
    features: Mapping[str, Feature]
    columns: Mapping[str, Any]
    """per-episode columns: `episode_index`, `length`, `tasks`, `dataset_from_index`, and in v3.0
    the file columns"""
    tasks: Mapping[int, str]
    rows: Mapping[int, int]
    """episode index -> its row in `columns`"""
    templates: Mapping[str, Template]
    """`data_path` and, where there are videos, `video_path`"""
    chunk_size: int
    """episodes per folder (v2.x)"""
    notes: tuple[str, ...] = ()
    """where files were found elsewhere than `info.json` says"""
    snapshot: Snapshot | None = None
    """the commit of the hub that this is, where it is one: files that are not here are fetched"""

    @property
    def folders(self) -> frozenset[str]:
        """The folders that hold the dataset's files."""
        named = (template.folder for template in self.templates.values())
        return frozenset({"meta", "data", "videos", "images", *named} - {""})

    @property
    def per_episode_files(self) -> bool:
        """v2.x: every episode has files of its own, which start at frame 0."""
        return self.version.startswith("v2")

    def data_file(self, row: int) -> Path:
        """Return the parquet file of the episode in that row."""
        return self._path("data_path", row, "data")

    def video_file(self, row: int, key: str) -> Path:
        """Return the video file of a camera for the episode in that row."""
        return self._path("video_path", row, f"videos/{key}", video_key=key)

    def files(self, row: int, videos: Collection[str] | None = None) -> tuple[Path, ...]:
        """Return the files of the episode in that row: its table, and its videos, all or named."""
        if videos is None:
            videos = [
                feature.name for feature in self.features.values() if feature.dtype == "video"
            ]
        return self.data_file(row), *(self.video_file(row, key) for key in videos)

    def ensure_local(self, file: Path) -> Path:
        """Return the file; one of the hub's that is not in its cache is fetched first."""
        if self.snapshot is not None and not file.exists():
            self.snapshot.fetch([file.relative_to(self.root).as_posix()])
        return file

    def video_start(self, row: int, key: str) -> float:
        """Return the seconds into the video file at which the episode's frame 0 lies."""
        if self.per_episode_files:
            return 0.0
        start = float(self.columns[f"videos/{key}/from_timestamp"][row])
        if not 0 <= start <= MAX_SECONDS:
            raise StrapError(
                f"'{self.root}': meta/episodes says that 'videos/{key}/from_timestamp' of episode "
                f"{self.columns['episode_index'][row]} is {start}; it must be seconds from 0 on: "
                "download the meta folder again"
            )
        return start

    def _path(self, template: str, row: int, place: str, **names: str) -> Path:
        index = int(self.columns["episode_index"][row])
        values: dict[str, int | str] = {
            **names,
            "episode_index": index,
            "episode_chunk": index // self.chunk_size,
            "chunk_index": index // self.chunk_size,  # so v2.x is written at times
        }
        if not self.per_episode_files:
            values["chunk_index"] = self._place(f"{place}/chunk_index", row)
            values["file_index"] = self._place(f"{place}/file_index", row)
        return self.templates[template].path(self.root, values)

    def _place(self, column: str, row: int) -> int:
        place = int(self.columns[column][row])
        if place < 0:
            raise StrapError(
                f"'{self.root}': meta/episodes has no '{column}' for episode "
                f"{self.columns['episode_index'][row]}; the dataset is incomplete: download its "
                "meta folder again"
            )
        return place


def load_layout(root: Path) -> Layout:
    """Read `meta/`."""
    file = root / INFO
    with reading(file, "LeRobot"):
        info = _read_info(file)
        version = _version(info, root)
        features = {name: _feature(name, spec, file) for name, spec in info["features"].items()}
        _require_distinct_cameras(features, file)
        fps = _fps(info, file)
        chunk_size = expect_whole_number(
            info.get("chunks_size", CHUNK_SIZE), f"'{file}': chunks_size", least=1
        )
    with reading(root / "meta", "LeRobot"):
        old = version.startswith("v2")
        videos = [feature.name for feature in features.values() if feature.dtype == "video"]
        columns = list_episodes(root, per_episode_files=old, videos=videos)
        _require_total(info, file, len(columns["episode_index"]))
        tasks = list_tasks(root, per_episode_files=old)
        named = dict(read_templates(info, file, columns, videos, per_episode_files=old))
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
    with reading(file, "JSON"):
        info = parse_json(file.read_bytes())
    if not isinstance(info, dict) or not isinstance(info.get("features"), dict):
        raise StrapError(f"'{file}' has no 'features'; it is no LeRobot dataset's info")
    return info


def _require_total(info: Mapping[str, Any], file: Path, listed: int) -> None:
    """Raise where episodes have got lost, or too many were found."""
    total = expect_whole_number(info.get("total_episodes", listed), f"'{file}': total_episodes")
    if total != listed:
        raise StrapError(
            f"'{file}' declares {total} episodes but meta/ lists {listed}: download the meta "
            "folder again, or correct total_episodes"
        )


def _version(info: Mapping[str, Any], root: Path) -> str:
    version = info.get("codebase_version", "v2.1")
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise StrapError(
            f"'{root}' is LeRobot {short_repr(version)}: v2.x and v3.0 are read; convert it with "
            "LeRobot's own scripts first"
        )
    return version


def rational_fps(fps: float) -> Fraction:
    """Return the fraction that a frame rate stands for: 29.97 is 2997/100, 29.97003 30000/1001."""
    return Fraction(fps).limit_denominator(1001)


def _fps(info: Mapping[str, Any], file: Path) -> Fraction:
    fps = info.get("fps")
    is_number = isinstance(fps, int | float) and not isinstance(fps, bool)
    if fps is None or not is_number or not SLOWEST <= fps <= FASTEST:
        raise StrapError(
            f"'{file}': fps is {short_repr(fps)}; it must be a positive number, {SLOWEST:g} to "
            f"{FASTEST:g}"
        )
    return rational_fps(fps)


def _feature(name: str, spec: Any, file: Path) -> Feature:
    where = f"'{file}': feature {expect_text(name, f'{file}: the name of a feature')!r}"
    if not isinstance(spec, dict) or not {"dtype", "shape"} <= spec.keys():
        raise StrapError(f"{where} lacks a dtype or shape; it is {short_repr(spec)}: mend the file")
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
            f"{where} is a video, so its name is that of a folder; it must have no slashes: "
            "rename it"
        )
    feature = Feature(name, dtype, shape, spec.get("names"), _is_depth(where, spec))
    if feature.is_numeric:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        require_at_most(size, MAX_FRAME_BYTES, f"bytes per frame in {name!r}", file)
    return feature


def is_folder_name(name: str) -> bool:
    """Return whether a video feature may have the name: the folder of its files has it too."""
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
    told = [described.get(key) for key in ("is_depth_map", "video.is_depth_map")]
    if wrong := [value for value in told if not isinstance(value, bool | None)]:
        raise StrapError(
            f"{where}: is_depth_map is {short_repr(wrong[0])}; it must be true or false"
        )
    return any(told)


def _height_width_channels(where: str, shape: tuple[int, ...], names: Any) -> tuple[int, ...]:
    # Some writers list (channels, height, width); the names say so, or the place of the 3.
    first = names[0] if isinstance(names, list) and names else None
    if len(shape) == 3 and (first in ("channel", "channels") or (shape[0] <= 4 < shape[2])):
        shape = (shape[1], shape[2], shape[0])
    if len(shape) != 3 or min(shape) < 1:
        raise StrapError(
            f"{where}: a camera of shape {list(shape)}; it must be [height, width, channels]"
        )
    return shape
