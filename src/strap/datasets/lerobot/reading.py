"""LeRobot v3.0 and v2.x datasets, read lazily: tables by column, videos by frame range."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from strap.datasets.lerobot.layout import (
    BOOKKEEPING,
    IMAGES,
    INFO,
    PROVENANCE,
    Feature,
    Layout,
    load_layout,
)
from strap.datasets.lerobot.tables import read_column, read_images
from strap.datasets.lerobot.video import pool
from strap.datasets.pictures import decode_pictures
from strap.errors import StrapError, unknown
from strap.types import Array, LazyArray, Orientation, Source, Trajectory

ACTIONS = ("action", "actions")


@dataclass(frozen=True)
class LeRobotReader:
    """Reads one dataset folder; ids are `episode_000000`, `episode_000001`, …"""

    layout: Layout
    ids: Sequence[str]
    orientation: Orientation
    action: str
    skipped: Sequence[str] = ()
    """ids left out because their files are missing (`missing="skip"`)"""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """`meta/info.json`."""
        return self.layout.info

    @cached_property
    def files(self) -> Sequence[Path]:
        """Every file of meta/, data/, videos/ and images/."""
        return tuple(_files(self.layout.root))

    @property
    def lengths(self) -> Sequence[int]:
        """Frames of each trajectory, in the order of `ids`."""
        column = self.layout.columns["length"]
        return [int(column[self._row(name)]) for name in self.ids]

    @property
    def instructions(self) -> Sequence[str] | None:
        """The instruction of each trajectory, in the order of `ids`, where meta/ lists them."""
        tasks = self.layout.columns.get("tasks")
        if tasks is None:
            return None
        listed = [tasks[self._row(name)] for name in self.ids]
        return [str(names[0]) for names in listed] if all(listed) else None

    @property
    def summary(self) -> str:
        """One line about what was left out; empty when nothing was."""
        if not self.skipped:
            return ""
        total = len(self.ids) + len(self.skipped)
        return (
            f"skipped {len(self.skipped)} of {total} episodes whose files are missing "
            f"({_some(self.skipped)})"
        )

    def read(self, trajectory_id: str) -> Trajectory:
        """The trajectory, its arrays unread."""
        row = self._row(trajectory_id)
        episode = _Episode(self.layout, row, trajectory_id)
        cameras: dict[str, LazyArray] = {}
        proprioception: dict[str, LazyArray] = {}
        extras: dict[str, LazyArray] = {}
        for feature in self.layout.features.values():
            if feature.is_camera:
                cameras[feature.name.removeprefix(IMAGES)] = episode.camera(feature)
            elif feature.name == self.action or not _is_numeric(feature):
                continue
            elif feature.name.startswith("observation.") and len(feature.shape) == 1:
                proprioception[feature.name] = episode.column(feature)
            else:
                extras[feature.name] = episode.column(feature, scalar=feature.shape == (1,))
        return Trajectory(
            id=trajectory_id,
            length=episode.length,
            instruction=episode.instruction(),
            cameras=cameras,
            proprioception=proprioception,
            actions=episode.column(self.layout.features[self.action]),
            source=Source(self.layout.root, trajectory_id, self._files_of(row)),
            fps=float(self.layout.fps),
            orientation=self.orientation,
            extras=extras,
            attributes=_attributes(self.layout, row),
        )

    def _files_of(self, row: int) -> tuple[Path, ...]:
        videos = [f.name for f in self.layout.features.values() if f.dtype == "video"]
        return (
            self.layout.data_file(row),
            *(self.layout.video_file(row, key) for key in videos),
        )

    def _row(self, trajectory_id: str) -> int:
        index = trajectory_id.removeprefix("episode_")
        if not index.isdigit() or trajectory_id != episode_id(int(index)):
            raise KeyError(trajectory_id)
        if trajectory_id in self._left_out:
            raise KeyError(trajectory_id)
        return self.layout.rows[int(index)]

    @cached_property
    def _left_out(self) -> frozenset[str]:
        return frozenset(self.skipped)


def episode_id(index: int) -> str:
    """`episode_000012`"""
    return f"episode_{index:06d}"


def is_lerobot(path: Path) -> bool:
    """Whether `path` is a folder with a LeRobot `meta/info.json`."""
    return (path / INFO).is_file()


def open_lerobot(
    path: Path,
    *,
    orientation: Orientation | None = None,
    missing: Literal["error", "skip"] = "error",
    action: str | None = None,
) -> tuple[str, LeRobotReader]:
    """The reader of a LeRobot folder, and its format's name (`lerobot-v3.0`, `lerobot-v2.1`).

    Args:
        path: the dataset's folder, which has `meta/info.json`.
        orientation: how images lie on disk; LeRobot's are upright.
        missing: what to do about episodes whose video or parquet file is absent: an error when
            they are read, or leave them out (`reader.skipped` and `reader.summary` tell).
        action: the feature with the actions, when it is not called `action`.
    """
    if missing not in ("error", "skip"):
        raise unknown("value of missing", missing, ("error", "skip"))
    layout = load_layout(path)
    rows = range(len(layout.columns["episode_index"]))
    absent = _absent(layout, rows) if missing == "skip" else frozenset()
    ids = [episode_id(int(index)) for index in layout.columns["episode_index"]]
    reader = LeRobotReader(
        layout,
        ids=tuple(ids[row] for row in rows if row not in absent),
        orientation=orientation or "upright",
        action=_action(layout, action),
        skipped=tuple(ids[row] for row in rows if row in absent),
    )
    return f"lerobot-{layout.version}", reader


@dataclass(frozen=True)
class _Episode:
    """One row of the layout, and how its arrays are read."""

    layout: Layout
    row: int
    id: str

    @property
    def index(self) -> int:
        return int(self.layout.columns["episode_index"][self.row])

    @property
    def length(self) -> int:
        return int(self.layout.columns["length"][self.row])

    def instruction(self) -> str:
        tasks = self.layout.columns.get("tasks")
        listed = tasks[self.row] if tasks is not None else None
        if listed:
            return str(listed[0])
        if "task_index" not in self.layout.features or not self.layout.tasks or not self.length:
            return ""
        file = self.layout.data_file(self.row)
        first = read_column(file, self.index, self.length, "task_index", 8)[0]
        return self.layout.tasks.get(int(first), "")

    def column(self, feature: Feature, *, scalar: bool = False) -> LazyArray:
        """A numeric feature, [length, *shape]; `scalar`: [length]."""
        shape = (self.length,) if scalar else (self.length, *feature.shape)
        dtype = np.dtype(feature.dtype)

        def read(start: int, stop: int) -> Array:
            file = self.layout.data_file(self.row)
            row_bytes = dtype.itemsize * int(np.prod(feature.shape, dtype=np.int64))
            values = read_column(file, self.index, self.length, feature.name, row_bytes)
            if values.ndim == 1 and feature.shape == (1,) and not scalar:
                values = values[:, None]
            elif scalar and values.shape == (self.length, 1):
                values = values[:, 0]
            if values.shape != shape:
                raise StrapError(
                    f"'{file}', {self.id}: '{feature.name}' is {list(values.shape[1:])} per frame "
                    f"but meta/info.json says {list(feature.shape)}; correct the shape there"
                )
            return values[start:stop].astype(dtype, copy=False)

        return LazyArray(shape, dtype, read)

    def camera(self, feature: Feature) -> LazyArray:
        """Frames of a camera, uint8 [length h w 3]."""
        shape = (*feature.shape[:2], 3)
        read = self._video if feature.dtype == "video" else self._images

        def frames(start: int, stop: int) -> Array:
            if start >= stop:
                return np.empty((0, *shape), np.uint8)
            try:
                return read(feature.name, shape, start, stop)
            except StrapError as error:
                raise StrapError(f"{self.id}, camera '{feature.name}': {error}") from error

        return LazyArray((self.length, *shape), np.dtype(np.uint8), frames)

    def _video(self, key: str, shape: tuple[int, ...], start: int, stop: int) -> Array:
        # On the frame grid, not from the float32 column `timestamp`: that is off by up to a
        # quarter of a millisecond after an hour.
        interval = 1 / self.layout.fps
        begin = Fraction(self.layout.video_start(self.row, key))
        times = [begin + index * interval for index in range(start, stop)]
        with pool().borrow(self.layout.video_file(self.row, key)) as decoder:
            return decoder.read(times, interval, shape)

    def _images(self, key: str, shape: tuple[int, ...], start: int, stop: int) -> Array:
        file, root = self.layout.data_file(self.row), self.layout.root
        pictures = read_images(file, self.index, key, start, stop, root)
        return decode_pictures(pictures, stop - start, shape, f"'{file}'", start)


def _is_numeric(feature: Feature) -> bool:
    if feature.name in BOOKKEEPING:
        return False
    try:
        return np.dtype(feature.dtype).kind in "biuf"
    except TypeError:
        return False  # strings and language columns have no place in a trajectory


def _action(layout: Layout, name: str | None) -> str:
    numeric = [f.name for f in layout.features.values() if _is_numeric(f)]
    if name is not None and name not in numeric:
        raise StrapError(f"'{layout.root}': {unknown('action feature', name, numeric)}")
    found = name or next((a for a in ACTIONS if a in numeric), None)
    if found is None:
        raise StrapError(
            f"'{layout.root}' has no feature 'action'; name one of its features with action=…: "
            f"{', '.join(numeric) or 'none'}"
        )
    return found


def _attributes(layout: Layout, row: int) -> dict[str, Any]:
    """What is stored once per episode: tasks, feature names, place in the dataset, provenance."""
    found: dict[str, Any] = {
        "episode_index": int(layout.columns["episode_index"][row]),
        "feature_names": {
            f.name: labels for f in layout.features.values() if (labels := _labels(f.names))
        },
    }
    if "dataset_from_index" in layout.columns:
        found["dataset_from_index"] = int(layout.columns["dataset_from_index"][row])
    tasks = layout.columns.get("tasks")
    if tasks is not None and len(tasks[row] or ()) > 1:
        found["tasks"] = list(tasks[row])
    provenance = {
        name.removeprefix(PROVENANCE): _plain(values[row])
        for name, values in layout.columns.items()
        if name.startswith(PROVENANCE) and not _is_null(values[row])
    }
    return found | ({"provenance": provenance} if provenance else {})


def _labels(names: Any) -> list[str]:
    """Names of a feature's columns; writers also nest them: [[…]], {"motors": […]}."""
    if isinstance(names, dict):
        names = list(names.values())
    while isinstance(names, list) and len(names) == 1 and isinstance(names[0], list):
        names = names[0]
    return [str(name) for name in names] if isinstance(names, list) else []


def _is_null(value: Any) -> bool:
    return value is None or (isinstance(value, float | np.floating) and bool(np.isnan(value)))


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _absent(layout: Layout, rows: Sequence[int]) -> frozenset[int]:
    """Rows of episodes of which a file is missing; folders are listed once, not asked per file."""
    present = {os.fspath(file) for file in _files(layout.root)}
    videos = [f.name for f in layout.features.values() if f.dtype == "video" and f.is_camera]

    def complete(row: int) -> bool:
        files = [layout.data_file(row), *(layout.video_file(row, key) for key in videos)]
        return all(os.fspath(file) in present for file in files)

    return frozenset(row for row in rows if not complete(row))


def _files(root: Path) -> list[Path]:
    found = [root / INFO]
    for part in ("meta", "data", "videos", "images"):
        for folder, _, names in os.walk(root / part):
            found += [Path(folder) / name for name in names if not name.startswith(".")]
    return sorted(set(found))


def _some(ids: Sequence[str], limit: int = 4) -> str:
    shown = ", ".join(ids[:limit])
    return shown if len(ids) <= limit else f"{shown}, …"
