"""The data that the packages exchange: trajectories, segments and matches, as frozen classes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload

import numpy as np
import numpy.typing as npt

from strap.errors import StrapError, printable, unknown
from strap.lazy_arrays import LazyArray
from strap.tables import Kind, read_rows

if TYPE_CHECKING:
    import pyarrow as pa

Array = npt.NDArray[Any]
Orientation = Literal["upright", "flipped"]
"""How images are stored: `upright`, or `flipped` (bottom row first, as in OpenGL and LIBERO)."""


@dataclass(frozen=True)
class Source:
    """Where a trajectory is stored: the file (or folder) and the key inside it."""

    path: Path
    key: str
    files: tuple[Path, ...] = ()
    """all files with content of the trajectory; if none has changed, the content has not"""
    commit: str = ""
    """commit of a dataset on the hub; it identifies the content without reading the files"""
    make_stamp: Callable[[], str] | None = None
    """returns a text that changes with the content, if sizes and times of `files` do not show it"""

    def stamp(self) -> str:
        """Return a text that changes with the content: the commit, or the files' sizes and times.

        While the stamp is the same, the content does not have to be read again.
        """
        if self.commit:
            return self.commit
        if self.make_stamp is not None:
            return self.make_stamp()
        return stamp_files(self.files or (self.path,))


def stamp_files(files: Iterable[Path]) -> str:
    """Return the sizes and modification times of the files that exist."""
    stats = [file.stat() for file in files if file.exists()]
    return ",".join(f"{s.st_size}-{s.st_mtime_ns}" for s in stats)


@dataclass(frozen=True, eq=False, repr=False)
class Trajectory:
    """One recorded sequence of frames. Its arrays are read when they are indexed."""

    id: str
    length: int
    instruction: str
    cameras: Mapping[str, LazyArray]
    """name -> uint8 [t h w 3], as stored; `frames` returns them upright"""
    proprioception: Mapping[str, LazyArray]
    """name -> float [t d]"""
    actions: LazyArray
    """[t a]"""
    source: Source
    fps: float | None = None
    orientation: Orientation = "upright"
    extras: Mapping[str, LazyArray] = field(default_factory=dict)
    """other per-frame arrays (states, rewards, depth, …), copied along but never interpreted"""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """values that the format stores once per trajectory (simulator XML, initial state, …)"""

    def __repr__(self) -> str:
        cameras = ", ".join(f"{k} {v.shape[1]}×{v.shape[2]}" for k, v in self.cameras.items())
        rate = f" at {self.fps:g} Hz" if self.fps else ""
        return (
            f"Trajectory({self.id!r}, {self.length} frames{rate}, {self.instruction!r}, "
            f"cameras: {cameras or 'none'}, {self.orientation})"
        )

    def camera(self, name: str) -> LazyArray:
        """Return the images of a camera; raise an error with the nearest name if it is unknown."""
        if name not in self.cameras:
            raise StrapError(f"trajectory '{self.id}': {unknown('camera', name, self.cameras)}")
        return self.cameras[name]

    def frames(self, camera: str, start: int = 0, stop: int | None = None) -> Array:
        """Return the upright images [t h w 3] uint8 of one camera, frames start … stop−1."""
        images = self.camera(camera)[start : self.length if stop is None else stop]
        return images[:, ::-1] if self.orientation == "flipped" else images

    def identity(self) -> str:
        """Return a hash of the trajectory's place, description and actions; no image is read.

        Two trajectories with the same identity have the same content, unless a file was changed in
        place and its size and time were reset.
        """
        arrays = {**self.cameras, **self.proprioception, **self.extras}
        kept = [[name, list(a.shape), str(a.dtype)] for name, a in sorted(arrays.items())]
        place = [self.source.path.resolve().as_posix(), self.source.key, self.source.stamp()]
        described = [self.id, self.length, self.instruction, self.orientation, self.fps]
        hasher = ContentHasher(self)
        hasher.update(np.frombuffer(repr([place, described, kept]).encode(), np.uint8))
        return hasher.finish()

    def fingerprint(self, cameras: Sequence[str], *, chunk: int = 64) -> str:
        """Return a hash of the embedded content (these cameras, upright) and of the actions."""
        hasher = ContentHasher(self)
        for name in cameras:
            for start in range(0, self.length, chunk):
                hasher.update(self.frames(name, start, min(start + chunk, self.length)))
        return hasher.finish()


def short_name(key: str) -> str:
    """Return the name without the prefix `observation.`: `ee_pos` for `observation.ee_pos`."""
    return key.removeprefix("observation.")


class ContentHasher:
    """Hashes a trajectory's content while its frames are read, in batches of any size."""

    def __init__(self, trajectory: Trajectory) -> None:
        self._trajectory = trajectory
        self._digest = hashlib.blake2b(str(trajectory.length).encode(), digest_size=16)

    def update(self, images: Array) -> None:
        """Add the next frames of the current camera to the hash."""
        self._digest.update(np.ascontiguousarray(images).data)

    def finish(self, actions: Array | None = None) -> str:
        """Return the hash, including the actions; they are read if they are not given."""
        values = self._trajectory.actions[:] if actions is None else actions
        self._digest.update(np.ascontiguousarray(values).data)
        return self._digest.hexdigest()


@dataclass(frozen=True, order=True)
class Segment:
    """Frames start … stop−1 of a trajectory, called a sub-trajectory in the paper."""

    trajectory_id: str
    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop:
            raise StrapError(
                f"segment {self.trajectory_id}[{self.start}:{self.stop}] is empty or starts before "
                "frame 0: a segment needs 0 <= start < stop"
            )

    def __len__(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return f"{self.trajectory_id}[{self.start}:{self.stop}]"


@dataclass(frozen=True)
class Match:
    """A prior segment that was found for a query. A lower cost is better."""

    query: Segment
    segment: Segment
    cost: float
    rank: int
    """1 for the query's cheapest match"""
    instruction: str
    """instruction of the prior trajectory"""
    dataset: str
    """path of the prior dataset"""

    @property
    def cost_per_frame(self) -> float:
        """The cost per frame of the query, comparable between long and short queries."""
        return self.cost / len(self.query)


class Named(Protocol):
    """An object with a path as its name, such as a dataset."""

    @property
    def name(self) -> str:
        """The absolute path."""


Located = TypeVar("Located", bound=Named)


@dataclass(frozen=True)
class Matches(Sequence[Match]):
    """The selected matches, query by query and cheapest first, as a sequence."""

    rows: tuple[Match, ...]

    @overload
    def __getitem__(self, index: int) -> Match: ...
    @overload
    def __getitem__(self, index: slice) -> Matches: ...
    def __getitem__(self, index: int | slice) -> Match | Matches:
        return Matches(self.rows[index]) if isinstance(index, slice) else self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Match]:
        return iter(self.rows)

    @property
    def queries(self) -> tuple[Segment, ...]:
        """The queries that have at least one match, in order."""
        return tuple(dict.fromkeys(row.query for row in self.rows))

    def locate(self, datasets: Iterable[Located]) -> dict[str, Located]:
        """Return the datasets that the matches point into, by name; raise if one is not given.

        A match names its dataset by path, because ids such as `demo_3` occur in every dataset.
        """
        given = {dataset.name: dataset for dataset in datasets}
        wanted = dict.fromkeys(match.dataset for match in self.rows)
        for name in wanted:
            if name not in given:
                raise StrapError(
                    f"there are matches in '{name}', which is not among the datasets given "
                    f"({', '.join(given) or 'none'}): give that dataset, too; if it was moved, use "
                    "matches.moved(old_path, new_path)"
                )
        return {name: given[name] for name in wanted}

    def moved(self, old: str | Path, new: str | Path) -> Matches:
        """Return the same matches after a dataset was moved from one path to another."""
        before, after = (Path(path).expanduser().resolve().as_posix() for path in (old, new))
        if before not in {match.dataset for match in self.rows}:
            known = dict.fromkeys(match.dataset for match in self.rows)
            raise unknown("dataset of the matches", before, known)
        rows = (replace(m, dataset=after) if m.dataset == before else m for m in self.rows)
        return Matches(tuple(rows))

    def to_table(self) -> pa.Table:
        """Return a pyarrow table with one row per match (the columns of `matches.parquet`)."""
        import pyarrow as pa

        kinds = {**_COLUMNS, **_DERIVED_COLUMNS}
        columns = zip(*(_to_row(row) for row in self.rows), strict=True)
        values = list(columns) or [()] * len(kinds)
        return pa.table(
            {
                name: pa.array(value, getattr(pa, kind)())
                for (name, kind), value in zip(kinds.items(), values, strict=True)
            }
        )

    def to_parquet(self, path: str | Path) -> Path:
        """Write the table as a Parquet file, atomically."""
        import pyarrow.parquet as pq

        from strap.atomic import replacing

        with replacing(Path(path)) as temporary:
            pq.write_table(self.to_table(), temporary)
        return Path(path)

    @classmethod
    def from_parquet(cls, path: str | Path) -> Matches:
        """Read a table that `to_parquet`, or another tool, wrote with the same columns.

        The column `cost_per_frame` is optional, since it follows from the others.
        """
        rows = read_rows(Path(path), _COLUMNS, "matches")
        return cls(tuple(_from_row(row, index, path) for index, row in enumerate(rows)))

    def __str__(self) -> str:
        return format_matches(self.rows)

    def __repr__(self) -> str:
        return f"Matches({len(self)} matches of {len(self.queries)} queries)"


_COLUMNS: dict[str, Kind] = {
    "query_trajectory": "string",
    "query_start": "int64",
    "query_stop": "int64",
    "trajectory": "string",
    "start": "int64",
    "stop": "int64",
    "cost": "float64",
    "rank": "int64",
    "instruction": "string",
    "dataset": "string",
}
_DERIVED_COLUMNS: dict[str, Kind] = {"cost_per_frame": "float64"}
"""Columns that follow from the others: written for readers of the table, never read back."""


def _to_row(match: Match) -> tuple[Any, ...]:
    query, found = match.query, match.segment
    return (
        *(query.trajectory_id, query.start, query.stop),
        *(found.trajectory_id, found.start, found.stop),
        *(match.cost, match.rank, match.instruction, match.dataset, match.cost_per_frame),
    )


def _from_row(row: Mapping[str, Any], index: int, path: str | Path) -> Match:
    try:
        row = {**row, **{name: row[name] or "" for name in ("instruction", "dataset")}}
        if empty := [name for name, value in row.items() if value is None]:
            raise StrapError(f"{empty[0]} is empty: every match needs one")
        if not math.isfinite(row["cost"]):
            raise StrapError(f"cost is {row['cost']}: it must be finite")
        if row["rank"] < 1:
            raise StrapError(f"rank is {row['rank']}: ranks count from 1")
        return Match(
            query=Segment(row["query_trajectory"], row["query_start"], row["query_stop"]),
            segment=Segment(row["trajectory"], row["start"], row["stop"]),
            cost=row["cost"],
            rank=row["rank"],
            instruction=row["instruction"],
            dataset=row["dataset"],
        )
    except StrapError as error:
        raise StrapError(f"'{path}', row {index}: {error}") from error


def format_matches(rows: Iterable[Match], *, limit: int = 40) -> str:
    """Return the matches as a text table; it has the dataset if there are several."""
    rows = tuple(rows)
    names = {match.dataset: PurePath(match.dataset).name for match in rows}
    if len(set(names.values())) < len(names):
        names = {name: name for name in names}
    cells = [["query", "rank", "cost", "match", "dataset", "instruction"]]
    for m in rows[:limit]:
        row = (str(m.query), str(m.rank), f"{m.cost:.4g}", str(m.segment), names[m.dataset])
        cells.append([printable(cell) for cell in (*row, m.instruction)])
    columns = [
        column for column in zip(*cells, strict=True) if len(names) > 1 or column[0] != "dataset"
    ]
    widths = [max(map(len, column)) for column in columns]
    lines = ["  ".join(map(str.ljust, row, widths)) for row in zip(*columns, strict=True)]
    if len(rows) > limit:
        lines.append(f"… and {len(rows) - limit} more")
    return "\n".join(line.rstrip() for line in lines)
