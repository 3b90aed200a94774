"""The class `Dataset`: one interface to trajectories in any format."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from strap.datasets.untrusted import explain_read_errors
from strap.errors import StrapError, unknown
from strap.progress import Progress, silent
from strap.provenance import fingerprint_files, fingerprint_json
from strap.types import Trajectory

Format = Literal["robomimic", "lerobot"]
"""the formats that datasets can be written in"""
Codec = Literal["h264", "av1"]
"""the video codecs that datasets can be written with"""


class Reader(Protocol):
    """The interface that every format implements.

    Opening is cheap: it lists the trajectories and reads no frames. A reader can also have `label`,
    `commit`, `summary`, `skipped`, `missing`, `lengths`, `instructions` and `fetch`, as
    `LeRobotReader` has.
    """

    @property
    def ids(self) -> Sequence[str]:
        """The trajectory ids in natural order, without duplicates."""

    @property
    def files(self) -> Sequence[Path]:
        """All files that the dataset's content depends on."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata stored once per dataset (robomimic's `env_args`, LeRobot's `info`)."""

    def read(self, trajectory_id: str) -> Trajectory:
        """Return the trajectory with its arrays unread; raise `KeyError` for an unknown id."""


@dataclass(frozen=True, repr=False)
class Dataset:
    """Trajectories by id.

    It has `len(dataset)`, `dataset.ids` and `dataset[id]`, and iterates over the trajectories.
    """

    path: Path
    format: str
    reader: Reader
    opening: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """the arguments of `open_dataset` that differed from their defaults"""

    @property
    def ids(self) -> Sequence[str]:
        """The trajectory ids in natural order (`demo_2` before `demo_10`)."""
        return self.reader.ids

    @property
    def name(self) -> str:
        """The absolute path, by which matches and manifests refer to this dataset."""
        return self.path.resolve().as_posix()

    @property
    def label(self) -> str:
        """The short name for display: the hub repository's name, else the file or folder name."""
        name = self.path.name or self.path.resolve().name
        return getattr(self.full_dataset.reader, "label", "") or name

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata that the format stores once per dataset."""
        return self.reader.metadata

    @property
    def read_as(self) -> list[Any]:
        """The image orientation and the chosen fields: the options that change what is read."""
        first = self[self.ids[0]].orientation if len(self) else None
        return [first, self.opening.get("fields", {})]

    @property
    def robot_type(self) -> str | None:
        """The robot named in LeRobot's metadata, if there is one."""
        named = self.metadata.get("robot_type") if self.format.startswith("lerobot") else None
        return named if isinstance(named, str) else None

    def fetch(self, cameras: Sequence[str] | None = None, progress: Progress = silent) -> None:
        """Download the missing files of these trajectories if the dataset is from the hub.

        Without this call each file is downloaded when it is read. This call downloads several
        files at a time.

        Args:
            cameras: the cameras to download, as well as actions and proprioception; by default
                all.
            progress: called with (what, megabytes fetched, total megabytes).
        """
        if fetch := getattr(self.full_dataset.reader, "fetch", None):
            fetch(self.ids, cameras, progress)

    def __len__(self) -> int:
        return len(self.reader.ids)

    def __iter__(self) -> Iterator[Trajectory]:
        return (self[key] for key in self.reader.ids)

    def __getitem__(self, trajectory_id: str) -> Trajectory:
        with explain_read_errors(f"{self.path}', '{trajectory_id}", self.format):
            try:
                return self.reader.read(trajectory_id)
            except KeyError as error:
                if trajectory_id in self.reader.ids:
                    raise
                raise self._no_such(trajectory_id) from error

    def _no_such(self, trajectory_id: str) -> StrapError:
        ids = self.ids
        if len(ids) <= 12:
            return StrapError(f"'{self.path}': {unknown('trajectory', trajectory_id, ids)}")
        return StrapError(
            f"'{self.path}': unknown trajectory '{trajectory_id}': there are {len(ids)}, from "
            f"{ids[0]} to {ids[-1]}"
        )

    def select(self, ids: Sequence[str]) -> Dataset:
        """Return this dataset with only these trajectories."""
        known = set(self.ids)
        for trajectory_id in ids:
            if trajectory_id not in known:
                raise self._no_such(trajectory_id)
        return replace(self, reader=SelectionReader(self.full_dataset.reader, tuple(ids)))

    @property
    def full_dataset(self) -> Dataset:
        """The dataset that this is a selection of; the dataset itself if it is not a selection."""
        if isinstance(self.reader, SelectionReader):
            return replace(self, reader=self.reader.full_reader)
        return self

    def __repr__(self) -> str:
        return f"Dataset('{self.path}', {self.format}, {len(self)} trajectories)"

    def fingerprint(self) -> str:
        """Return a hash of the names, sizes and modification times of the files.

        For a dataset from the hub, return a hash of its commit, which does not depend on how many
        of its files have been downloaded.
        """
        reader = self.full_dataset.reader
        if commit := getattr(reader, "commit", ""):
            return fingerprint_json([commit, list(getattr(reader, "skipped", ()))])
        if self.path.is_dir():
            return fingerprint_files(reader.files, self.path)
        # Links are resolved, as in `name`: the name of a link is not part of the content.
        file = self.path.resolve()
        files = [file if other == self.path else other for other in reader.files]
        return fingerprint_files(files, file.parent)


@dataclass(frozen=True)
class SelectionReader:
    """A reader of some of the trajectories of another reader."""

    full_reader: Reader
    ids: Sequence[str]

    @property
    def files(self) -> Sequence[Path]:
        """All files of the whole dataset."""
        return self.full_reader.files

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of the whole dataset."""
        return self.full_reader.metadata

    def read(self, trajectory_id: str) -> Trajectory:
        """Return the trajectory with its arrays unread."""
        if trajectory_id not in self.ids:
            raise KeyError(trajectory_id)
        return self.full_reader.read(trajectory_id)


def natural_sort_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return the natural sort key of a text: `demo_2` comes before `demo_10`."""
    parts = re.split(r"([0-9]{1,18})", text)
    return tuple((0, int(p), p) if p.isdecimal() else (1, 0, p) for p in parts if p)


def require_unique(ids: Sequence[str], path: Path) -> None:
    """Raise if an id occurs twice."""
    twice = [name for name, count in Counter(ids).items() if count > 1]
    if twice:
        raise StrapError(f"'{path}': trajectory id '{twice[0]}' occurs twice; ids must be unique")
