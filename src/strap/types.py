"""What flows between the rooms: trajectories, segments and matches, as frozen data."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
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
"""How images lie on disk: `upright`, or `flipped` (bottom row first, as OpenGL and LIBERO do)."""


@dataclass(frozen=True)
class Source:
    """Where a trajectory lies: the file (or folder) and the key inside it."""

    path: Path
    key: str
    files: tuple[Path, ...] = ()
    """every file the trajectory's content lies in; when none has changed, neither has it"""
    commit: str = ""
    """the hub's, by which the content is known without the files"""
    make_stamp: Callable[[], str] | None = None
    """returns what changes with the content, where sizes and times of `files` do not tell"""

    def stamp(self) -> str:
        """Return the commit, or sizes and times of the files.

        While it stays, the content need not be read again.
        """
        if self.commit:
            return self.commit
        if self.make_stamp is not None:
            return self.make_stamp()
        return stamp_files(self.files or (self.path,))


def stamp_files(files: Iterable[Path]) -> str:
    """Return sizes and times of those files that are there."""
    stats = [file.stat() for file in files if file.exists()]
    return ",".join(f"{s.st_size}-{s.st_mtime_ns}" for s in stats)


@dataclass(frozen=True, eq=False, repr=False)
class Trajectory:
    """One recorded sequence of frames; arrays are read when indexed."""

    id: str
    length: int
    instruction: str
    cameras: Mapping[str, LazyArray]
    """name -> uint8 [t h w 3], as stored; `frames` gives them upright"""
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
    """what the format stores once per trajectory (simulator XML, initial state, …)"""

    def __repr__(self) -> str:
        cameras = ", ".join(f"{k} {v.shape[1]}×{v.shape[2]}" for k, v in self.cameras.items())
        rate = f" at {self.fps:g} Hz" if self.fps else ""
        return (
            f"Trajectory({self.id!r}, {self.length} frames{rate}, {self.instruction!r}, "
            f"cameras: {cameras or 'none'}, {self.orientation})"
        )

    def camera(self, name: str) -> LazyArray:
        """Return the camera of that name, or an error that suggests the nearest one."""
        if name not in self.cameras:
            raise StrapError(f"trajectory '{self.id}': {unknown('camera', name, self.cameras)}")
        return self.cameras[name]

    def frames(self, camera: str, start: int = 0, stop: int | None = None) -> Array:
        """Return images [t h w 3] uint8 of one camera, upright, frames start … stop−1."""
        images = self.camera(camera)[start : self.length if stop is None else stop]
        return images[:, ::-1] if self.orientation == "flipped" else images

    def identity(self) -> str:
        """Return a hash of where it lies, what it holds and its actions; no image is read.

        Two trajectories of one identity have the same content, unless a file was changed in place
        and its size and time put back.
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
    """Return `ee_pos` for `observation.ee_pos`: the name that files and simulators share."""
    return key.removeprefix("observation.")


class ContentHasher:
    """Hashes a trajectory's content while its frames pass by, in whatever pieces they come."""

    def __init__(self, trajectory: Trajectory) -> None:
        self._trajectory = trajectory
        self._digest = hashlib.blake2b(str(trajectory.length).encode(), digest_size=16)

    def update(self, images: Array) -> None:
        """Take the next frames of the camera at hand."""
        self._digest.update(np.ascontiguousarray(images).data)

    def finish(self, actions: Array | None = None) -> str:
        """Return the hash, the actions included; they are read unless given."""
        values = self._trajectory.actions[:] if actions is None else actions
        self._digest.update(np.ascontiguousarray(values).data)
        return self._digest.hexdigest()


@dataclass(frozen=True, order=True)
class Segment:
    """Frames start … stop−1 of a trajectory: the paper's sub-trajectory."""

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
    """A prior segment found for a query; lower cost is better."""

    query: Segment
    segment: Segment
    cost: float
    rank: int
    """1 for the query's cheapest match"""
    instruction: str
    """of the prior trajectory"""
    dataset: str
    """path of the prior dataset"""

    @property
    def cost_per_frame(self) -> float:
        """The cost for each frame of the query: matches of long and short queries compare by it."""
        return self.cost / len(self.query)


class Named(Protocol):
    """Something that lies at a path: a dataset."""

    @property
    def name(self) -> str:
        """The absolute path."""


Located = TypeVar("Located", bound=Named)


@dataclass(frozen=True)
class Matches(Sequence[Match]):
    """The selected matches, query by query, cheapest first: a sequence and a table."""

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
        """The queries that have a match, in order."""
        return tuple(dict.fromkeys(row.query for row in self.rows))

    def locate(self, datasets: Iterable[Located]) -> dict[str, Located]:
        """Return the dataset of each name that a match points into, out of those given.

        A match names its dataset by its path, and nothing else stands for it: ids such as
        `demo_3` occur in every dataset.
        """
        given = {dataset.name: dataset for dataset in datasets}
        wanted = dict.fromkeys(match.dataset for match in self.rows)
        for name in wanted:
            if name not in given:
                raise StrapError(
                    f"the matches point into '{name}', which is not among the datasets given "
                    f"({', '.join(given) or 'none'}): open it from there; if it was moved, take "
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
        """Write the table, atomically."""
        import pyarrow.parquet as pq

        from strap.atomic import replacing

        with replacing(Path(path)) as temporary:
            pq.write_table(self.to_table(), temporary)
        return Path(path)

    @classmethod
    def from_parquet(cls, path: str | Path) -> Matches:
        """Read a table that `to_parquet` (or any tool) wrote with the same columns.

        `cost_per_frame` may be absent: it follows from the others.
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
"""what follows from the others: written for who reads the table, never read back"""


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
    """Return the matches as lines of text: query, rank, cost, prior segment, instruction."""
    rows = tuple(rows)
    shown = rows[:limit]
    cells = [["query", "rank", "cost", "match", "instruction"]]
    for m in shown:
        row = (str(m.query), str(m.rank), f"{m.cost:.4g}", str(m.segment), m.instruction)
        cells.append([printable(cell) for cell in row])
    widths = [max(len(row[i]) for row in cells) for i in range(5)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in cells]
    if len(rows) > limit:
        lines.append(f"… and {len(rows) - limit} more")
    return "\n".join(line.rstrip() for line in lines)
