"""A dataset is a reader of one format behind one face: ids, length, trajectories."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from strap.datasets.untrusted import reading
from strap.errors import StrapError, unknown
from strap.progress import Progress, silent
from strap.provenance import fingerprint_files, fingerprint_json
from strap.types import Trajectory

Format = Literal["robomimic", "lerobot"]
"""what datasets are written as"""
Codec = Literal["h264", "av1"]
"""how videos of a written dataset are encoded"""


class Reader(Protocol):
    """What a format provides. Opening is cheap: it lists trajectories, it reads no frame."""

    @property
    def ids(self) -> Sequence[str]:
        """Trajectory ids in natural order, each once."""

    @property
    def files(self) -> Sequence[Path]:
        """Every file whose change changes the dataset."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the format stores once per dataset (robomimic's `env_args`, LeRobot's `info`)."""

    def read(self, trajectory_id: str) -> Trajectory:
        """Return the trajectory, its arrays unread; KeyError when there is none of that id."""


@dataclass(frozen=True, repr=False)
class Dataset:
    """Trajectories by id: `len(dataset)`, `dataset.ids`, `dataset[id]`, iteration."""

    path: Path
    format: str
    reader: Reader
    opening: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """the arguments by which `open_dataset` reads it like this, where looking was not enough"""

    @property
    def ids(self) -> Sequence[str]:
        """Trajectory ids in natural order (`demo_2` before `demo_10`)."""
        return self.reader.ids

    @property
    def name(self) -> str:
        """The absolute path: how matches and manifests refer to this dataset."""
        return self.path.resolve().as_posix()

    @property
    def label(self) -> str:
        """A short name to show: that of the hub's repository, else of the file or folder."""
        name = self.path.name or self.path.resolve().name
        return getattr(self.whole.reader, "label", "") or name

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the format stores once per dataset."""
        return self.reader.metadata

    @property
    def read_as(self) -> list[Any]:
        """How images lie, and which fields were named: by others, files hold something else."""
        first = self[self.ids[0]].orientation if len(self) else None
        return [first, self.opening.get("fields", {})]

    @property
    def robot_type(self) -> str | None:
        """The robot that LeRobot's metadata name, where they do."""
        named = self.metadata.get("robot_type") if self.format.startswith("lerobot") else None
        return named if isinstance(named, str) else None

    def fetch(self, cameras: Sequence[str] | None = None, progress: Progress = silent) -> None:
        """Fetch what these trajectories lack here, where the dataset is one of the hub's.

        Whatever is read is fetched when it is read; this fetches several files at a time.

        Args:
            cameras: which are needed besides actions and proprioception; by default all.
            progress: called with (what, megabytes fetched, megabytes in all).
        """
        if fetch := getattr(self.whole.reader, "fetch", None):
            fetch(self.ids, cameras, progress)

    def __len__(self) -> int:
        return len(self.reader.ids)

    def __iter__(self) -> Iterator[Trajectory]:
        return (self[key] for key in self.reader.ids)

    def __getitem__(self, trajectory_id: str) -> Trajectory:
        with reading(f"{self.path}', '{trajectory_id}", self.format):
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
        """Return this dataset with these of its trajectories alone."""
        known = set(self.ids)
        for trajectory_id in ids:
            if trajectory_id not in known:
                raise self._no_such(trajectory_id)
        return replace(self, reader=Selected(self.whole.reader, tuple(ids)))

    @property
    def whole(self) -> Dataset:
        """The dataset that this is a selection of; itself where nothing is left out."""
        if isinstance(self.reader, Selected):
            return replace(self, reader=self.reader.whole)
        return self

    def __repr__(self) -> str:
        return f"Dataset('{self.path}', {self.format}, {len(self)} trajectories)"

    def fingerprint(self) -> str:
        """Return a hash of the files' names, sizes and times; it changes when a file does.

        A dataset of the hub is known by its commit, however much of it is here.
        """
        whole = self.whole.reader
        if commit := getattr(whole, "commit", ""):
            return fingerprint_json([commit, list(getattr(whole, "skipped", ()))])
        if self.path.is_dir():
            return fingerprint_files(whole.files, self.path)
        # As `name` does: a link's own name is none of its content.
        file = self.path.resolve()
        files = [file if other == self.path else other for other in whole.files]
        return fingerprint_files(files, file.parent)


@dataclass(frozen=True)
class Selected:
    """A reader that shows some of another's trajectories."""

    whole: Reader
    ids: Sequence[str]

    @property
    def files(self) -> Sequence[Path]:
        """Every file of the whole dataset."""
        return self.whole.files

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Of the whole dataset."""
        return self.whole.metadata

    def read(self, trajectory_id: str) -> Trajectory:
        """Return the trajectory, its arrays unread."""
        if trajectory_id not in self.ids:
            raise KeyError(trajectory_id)
        return self.whole.read(trajectory_id)


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key by which `demo_2` comes before `demo_10`."""
    parts = re.split(r"([0-9]{1,18})", text)
    return tuple((0, int(p), p) if p.isdecimal() else (1, 0, p) for p in parts if p)


def require_unique(ids: Sequence[str], path: Path) -> None:
    """Raise when an id occurs twice."""
    twice = [name for name, count in Counter(ids).items() if count > 1]
    if twice:
        raise StrapError(f"'{path}': trajectory id '{twice[0]}' occurs twice; ids must be unique")
