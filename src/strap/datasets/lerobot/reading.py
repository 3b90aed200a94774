"""Read LeRobot v3.0 and v2.x datasets lazily: tables by column, videos by frame range."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from strap.datasets.encoded_images import decode_images
from strap.datasets.image_arrays import as_uint8_images
from strap.datasets.lerobot.attributes import read_attributes
from strap.datasets.lerobot.files import list_files, missing_files
from strap.datasets.lerobot.layout import (
    INFO,
    Feature,
    Layout,
    load_layout,
)
from strap.datasets.lerobot.roles import find_action, find_states, is_array, is_image_column
from strap.datasets.lerobot.tables import cast_to_declared, read_column, read_images, require_rows
from strap.datasets.lerobot.video import decoder_pool
from strap.datasets.untrusted import explain_read_errors, path_inside
from strap.errors import StrapError, name_some
from strap.lazy_arrays import LazyArray
from strap.progress import Progress, silent
from strap.provenance import fingerprint_json
from strap.types import Array, Orientation, Source, Trajectory, stamp_files

NOT_STAMPED = ("dataset_from_index", "tasks")
"""columns of `meta/` that do not affect which frames are read"""


@dataclass(frozen=True)
class LeRobotReader:
    """The reader of one dataset folder; ids are `episode_000000`, `episode_000001`, …"""

    layout: Layout
    ids: Sequence[str]
    orientation: Orientation
    action: str
    states: frozenset[str]
    """features that are proprioception"""
    skipped: Sequence[str] = ()
    """ids left out because their files are missing (`missing="skip"`)"""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The content of `meta/info.json`."""
        return self.layout.info

    @property
    def commit(self) -> str:
        """The hub repository and commit; empty if the dataset is not from the hub."""
        return str(self.layout.snapshot.name) if self.layout.snapshot else ""

    @property
    def label(self) -> str:
        """The name of the hub repository; empty if the dataset is not from the hub."""
        return self.layout.snapshot.repo if self.layout.snapshot else ""

    def fetch(
        self, ids: Sequence[str], cameras: Sequence[str] | None, progress: Progress = silent
    ) -> None:
        """Fetch the tables of these trajectories and the videos of these cameras (None: all)."""
        snapshot = self.layout.snapshot
        if snapshot is None:
            return
        videos = [
            feature.name
            for feature in self.layout.features.values()
            if feature.dtype == "video" and feature.is_camera
            if cameras is None or feature.camera_name in cameras
        ]
        rows = [self._row(name) for name in ids]
        files = (file for row in rows for file in self.layout.files(row, videos))
        root = self.layout.root
        snapshot.fetch([file.relative_to(root).as_posix() for file in files], progress)

    @cached_property
    def files(self) -> Sequence[Path]:
        """All files in `meta/` and in the folders of data and videos."""
        return tuple(list_files(self.layout))

    @property
    def lengths(self) -> Sequence[int]:
        """The number of frames of each trajectory, in the order of `ids`."""
        column = self.layout.columns["length"]
        return [int(column[self._row(name)]) for name in self.ids]

    @property
    def instructions(self) -> Sequence[str] | None:
        """The instructions in the order of `ids`; None if `meta/` does not list all of them."""
        listed = [self.layout.columns["tasks"][self._row(name)] for name in self.ids]
        return [names[0] for names in listed] if all(listed) else None

    @property
    def summary(self) -> str:
        """One line about what was left out or found in another folder; empty if nothing was."""
        notes = list(self.layout.notes)
        if self.skipped:
            total = len(self.ids) + len(self.skipped)
            notes.append(
                f"skipped {len(self.skipped)} of {total} episodes whose files are missing "
                f"({name_some(self.skipped, 4)})"
            )
        unknown_kinds = [f for f in self.layout.features.values() if not f.is_known]
        notes += [f"left out {f.name!r} of the unknown dtype {f.dtype!r}" for f in unknown_kinds]
        return "; ".join(notes)

    @property
    def missing(self) -> Mapping[str, Sequence[str]]:
        """The missing files: `table`, `video of camera front`, … -> ids of the trajectories."""
        ids = [episode_id(int(index)) for index in self.layout.columns["episode_index"]]
        with explain_read_errors(self.layout.root, "LeRobot"):
            found = missing_files(self.layout)
        return {
            what: [ids[row] for row in rows if ids[row] not in self._left_out]
            for what, rows in found.items()
        }

    def read(self, trajectory_id: str) -> Trajectory:
        """Return the trajectory with its arrays unread."""
        row = self._row(trajectory_id)
        with explain_read_errors(self.layout.root, "LeRobot"):
            return self._read(row, trajectory_id)

    def _read(self, row: int, trajectory_id: str) -> Trajectory:
        episode = _Episode(self.layout, row, trajectory_id)
        cameras: dict[str, LazyArray] = {}
        proprioception: dict[str, LazyArray] = {}
        extras: dict[str, LazyArray] = {}
        for feature in self.layout.features.values():
            if feature.is_camera:
                cameras[feature.camera_name] = episode.camera(feature)
            elif feature.name == self.action or not is_array(feature):
                continue
            elif is_image_column(feature):
                where = f"'{self.layout.root}', {trajectory_id}: '{feature.name}'"
                cameras[feature.camera_name] = as_uint8_images(episode.column(feature), where)
            elif feature.name in self.states:
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
            source=Source(
                self.layout.root,
                trajectory_id,
                self.layout.files(row),
                self.commit,
                make_stamp=partial(self._stamp, row),
            ),
            fps=float(self.layout.fps),
            orientation=self.orientation,
            extras=extras,
            attributes=read_attributes(self.layout, row),
        )

    def _stamp(self, row: int) -> str:
        """Return a text that changes if the episode's files or their metadata change."""
        columns = {
            name: values[row]
            for name, values in self.layout.columns.items()
            if name not in NOT_STAMPED
        }
        described = [str(self.layout.fps), sorted((name, str(v)) for name, v in columns.items())]
        return f"{stamp_files(self.layout.files(row))},{fingerprint_json(described)}"

    def _row(self, trajectory_id: str) -> int:
        index = re.fullmatch(r"episode_([0-9]{6,19})", trajectory_id, re.ASCII)
        if index is None or trajectory_id != episode_id(int(index[1])):
            raise KeyError(trajectory_id)
        if trajectory_id in self._left_out:
            raise KeyError(trajectory_id)
        return self.layout.rows[int(index[1])]

    @cached_property
    def _left_out(self) -> frozenset[str]:
        return frozenset(self.skipped)


def episode_id(index: int) -> str:
    """Return the id of an episode, such as `episode_000012`."""
    return f"episode_{index:06d}"


def is_lerobot(path: Path) -> bool:
    """Return whether `path` is a folder with a LeRobot `meta/info.json`."""
    with suppress(OSError):  # a folder without permission to enter it
        return (path / INFO).is_file()
    return False


def open_lerobot(
    path: Path,
    *,
    orientation: Orientation | None = None,
    missing: Literal["error", "skip"] = "error",
    action: str | None = None,
) -> tuple[str, LeRobotReader]:
    """Return the format (`lerobot-v3.0`, `lerobot-v2.1`) and the reader of a LeRobot folder.

    Args:
        path: the dataset's folder, which has `meta/info.json`.
        orientation: how images are stored; by default upright.
        missing: how to treat episodes whose video or parquet file is missing: raise an error when
            they are read, or skip them (then listed in `reader.skipped` and `reader.summary`).
        action: the feature with the actions, if it is not called `action`.
    """
    layout = load_layout(path)
    rows = range(len(layout.columns["episode_index"]))
    with explain_read_errors(path, "LeRobot"):
        missing_rows = _find_missing(layout).values() if missing == "skip" else ()
        absent = frozenset(row for found in missing_rows for row in found)
    ids = [episode_id(int(index)) for index in layout.columns["episode_index"]]
    actions = find_action(layout, action)
    reader = LeRobotReader(
        layout,
        ids=tuple(ids[row] for row in rows if row not in absent),
        orientation=orientation or "upright",
        action=actions,
        states=find_states(layout, actions),
        skipped=tuple(ids[row] for row in rows if row in absent),
    )
    return f"lerobot-{layout.version}", reader


def _find_missing(layout: Layout) -> dict[str, list[int]]:
    """Return the rows of episodes that lack a file, on disk and on the hub if it can be asked."""
    listed = layout.snapshot.list_files() if layout.snapshot else None
    return missing_files(layout, listed)


@dataclass(frozen=True)
class _Episode:
    """One episode: a row of the layout, with functions that read its arrays."""

    layout: Layout
    row: int
    id: str

    @property
    def index(self) -> int:
        return int(self.layout.columns["episode_index"][self.row])

    @property
    def length(self) -> int:
        return int(self.layout.columns["length"][self.row])

    def data_file(self) -> Path:
        return self.layout.ensure_local(self.layout.data_file(self.row))

    def instruction(self) -> str:
        listed = self.layout.columns["tasks"][self.row]
        if listed:
            return str(listed[0])
        if "task_index" not in self.layout.features or not self.layout.tasks or not self.length:
            return ""
        file = self.data_file()
        first = read_column(file, self.index, self.length, "task_index", 8)[0]
        if first not in self.layout.tasks:
            raise StrapError(
                f"'{file}', {self.id}: its task_index is {first}, which meta/tasks does not list; "
                "download the meta folder again"
            )
        return self.layout.tasks[int(first)]

    def column(self, feature: Feature, *, scalar: bool = False) -> LazyArray:
        """Return a numeric feature, [length, *shape], or [length] if `scalar`."""
        shape = (self.length,) if scalar else (self.length, *feature.shape)
        dtype = np.dtype(feature.dtype)

        def read(start: int, stop: int) -> Array:
            file = self.data_file()
            with explain_read_errors(file, "LeRobot"):
                row_bytes = dtype.itemsize * math.prod(feature.shape)
                values = read_column(file, self.index, self.length, feature.name, row_bytes)
                if values.ndim == 1 and feature.shape == (1,) and not scalar:
                    values = values[:, None]
                elif scalar and values.shape == (self.length, 1):
                    values = values[:, 0]
                where = f"'{file}', {self.id}: '{feature.name}'"
                if values.shape != shape:
                    raise StrapError(
                        f"{where} has shape {list(values.shape[1:])} per frame but meta/info.json "
                        f"says {list(feature.shape)}; correct the shape there"
                    )
                return cast_to_declared(values[start:stop], dtype, where)

        return LazyArray(shape, dtype, read)

    def camera(self, feature: Feature) -> LazyArray:
        """Return the frames of a camera, uint8 [length h w 3]."""
        shape = (*feature.shape[:2], 3)
        read = self._video if feature.dtype == "video" else self._images

        def frames(start: int, stop: int) -> Array:
            if start >= stop:
                return np.empty((0, *shape), np.uint8)
            try:
                # The table is checked because a video that episodes share does not end with this
                # episode: too great a length would return frames of the next one.
                file = self.data_file()
                with explain_read_errors(file, "LeRobot"):
                    require_rows(file, self.index, self.length, "episode_index")
                return read(feature.name, shape, start, stop)
            except StrapError as error:
                raise StrapError(f"{self.id}, camera '{feature.name}': {error}") from error

        return LazyArray((self.length, *shape), np.dtype(np.uint8), frames)

    def _video(self, key: str, shape: tuple[int, ...], start: int, stop: int) -> Array:
        # Times are computed from fps: after an hour the float32 column `timestamp` has errors of
        # up to a quarter of a millisecond.
        interval = 1 / self.layout.fps
        begin = Fraction(self.layout.video_start(self.row, key))
        file = self.layout.ensure_local(self.layout.video_file(self.row, key))
        with explain_read_errors(file, "video"), decoder_pool().borrow(file) as decoder:
            return decoder.read(begin + start * interval, stop - start, interval, shape)

    def _images(self, key: str, shape: tuple[int, ...], start: int, stop: int) -> Array:
        file = self.data_file()
        with explain_read_errors(file, "LeRobot"):
            encoded = read_images(file, self.index, key, start, stop, self._image_file)
            return decode_images(encoded, stop - start, shape, f"'{file}'", start)

    def _image_file(self, name: str, named_by: str) -> Path:
        """Return the local path of an image file that the table names."""
        return self.layout.ensure_local(path_inside(self.layout.root, name, named_by=named_by))
