"""Cutting target demonstrations into segments; the prior is never cut."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

from strap.atomic import read_json, write_json
from strap.datasets.base import Dataset
from strap.errors import StrapError, name_some, printable, shorten, unknown
from strap.position_columns import moving_columns, position_name
from strap.stop_frames import (
    Movements,
    Norm,
    Unit,
    choose_threshold,
    explain_length,
    explain_stops,
    first_frames,
    measure_movements,
)
from strap.types import Segment, Trajectory

Method = Literal["stops", "window", "full", "manual"]
Epsilon = float | Literal["auto"] | None
RELEASED_EPSILON = 5e-3
"""metres per step, over the three coordinates in the l1 norm"""


@dataclass(frozen=True)
class Segmentation:
    """The options for cutting demonstrations. The defaults are those of the paper's code."""

    method: Method = "stops"
    """where to cut. stops: where the end effector rests (or the joints, if the dataset has no
    end-effector position); window: segments of equal length; full: nowhere; manual: at the
    boundaries in a file"""
    epsilon: Epsilon = None
    """stops: a frame that moves less than this to the next frame is a stop; `auto` chooses it from
    the demonstrations; None: 0.005, as in the released code, for joints `auto`"""
    unit: Unit = "step"
    """whether epsilon is a movement per step, or per second (by the dataset's frame rate)"""
    norm: Norm = "l1"
    """the norm of a movement over the position columns"""
    min_length: int = 20
    """stops: shorter segments are merged with the next one"""
    window: int = 30
    """window: frames per segment"""
    position: str | None = None
    """the proprioception to use as position: `name`, `name[0:3]`, `name[1:]` or `name[0,2,5]`,
    columns as in a Python index"""
    boundaries: Path | None = None
    """manual: a JSON file, {trajectory id: [first frame of each segment after the first, …]}, or
    one that `strap segment` wrote"""

    def __post_init__(self) -> None:
        for kind, value, known in (
            ("segmentation method", self.method, get_args(Method)),
            ("norm", self.norm, get_args(Norm)),
            ("unit", self.unit, get_args(Unit)),
        ):
            if value not in known:
                raise unknown(kind, value, known)
        for name in ("min_length", "window"):
            if getattr(self, name) < 1:
                raise StrapError(f"{name} is {getattr(self, name)}: it must be at least 1 frame")
        if not _is_epsilon(self.epsilon):
            raise StrapError(f"epsilon is {self.epsilon}: it must be a number above 0, or auto")
        if self.method == "manual" and self.boundaries is None:
            raise StrapError("method 'manual' needs a boundaries file: give --boundaries FILE.json")


def _is_epsilon(value: Epsilon) -> bool:
    if value is None or isinstance(value, str):
        return value in (None, "auto")
    return 0 < value < math.inf


@dataclass(frozen=True)
class Cuts:
    """The segments of a dataset, and how they were cut."""

    segments: list[Segment]
    segmentation: Segmentation
    """the requested options, with the epsilon that was chosen"""
    movements: Movements | None = None
    """stops: the movements of all demonstrations that are long enough to be cut"""
    notes: tuple[str, ...] = ()
    """which joints were used, and which epsilon was chosen"""


def segment(
    dataset: Dataset | Iterable[Trajectory], *, method: Method = "stops", **options: Any
) -> list[Segment]:
    """Cut every trajectory of a dataset into segments that tile it.

    Args:
        dataset: the target demonstrations.
        method: `stops`, `window`, `full` or `manual`.
        options: the other fields of `Segmentation` (epsilon, unit, norm, min_length, window,
            position, boundaries).

    Example:
        >>> strap.segment(strap.open_dataset("target.hdf5"), epsilon=0.01)  # doctest: +SKIP
        [Segment('demo_0', 0, 57), Segment('demo_0', 57, 124), …]
    """
    return cut_dataset(dataset, Segmentation(method=method, **options)).segments


def cut_dataset(dataset: Dataset | Iterable[Trajectory], segmentation: Segmentation) -> Cuts:
    """Cut every trajectory of a dataset, and warn about implausible stops."""
    if segmentation.method == "stops":
        cuts = _cut_at_stops(dataset, segmentation)
    else:
        _check_origin(dataset, segmentation)
        found = [segment for trajectory in dataset for segment in cut(trajectory, segmentation)]
        cuts = Cuts(found, segmentation)
    if not cuts.segments:
        raise StrapError("the target dataset is empty: it needs at least one demonstration")
    for note in (*cuts.notes, *_note_odd_stops(cuts)):
        warnings.warn(note, stacklevel=2)
    return cuts


def _check_origin(dataset: Dataset | Iterable[Trajectory], segmentation: Segmentation) -> None:
    """Raise if the boundaries name trajectories that the whole dataset does not have.

    Warn if the boundaries were made for a dataset at another path, which can have the same ids.
    """
    file = segmentation.boundaries
    if segmentation.method != "manual" or file is None or not isinstance(dataset, Dataset):
        return
    content = read_json(file)
    known = dict.fromkeys(dataset.full_dataset.ids)
    skipped = getattr(dataset.full_dataset.reader, "skipped", ())  # their files are missing
    for key in _named_trajectories(content, file):
        if key not in known and key not in skipped:
            raise StrapError(
                f"'{file}' cuts '{printable(shorten(key))}', but '{dataset.path}' has no such "
                f"trajectory (it has {name_some(list(known))}): correct the name, or leave it out"
            )
    origin = content.get("dataset") if isinstance(content, dict) else None
    if isinstance(origin, str) and origin != dataset.name:
        warnings.warn(
            f"the segments in '{file}' were cut for '{origin}', but are used for '{dataset.path}'",
            stacklevel=3,
        )


def _named_trajectories(content: Any, file: Path) -> list[str]:
    """Return the ids of the trajectories that a file of segments or boundaries cuts."""
    if not isinstance(content, dict):
        return []
    if "segments" in content:
        return [segment.trajectory_id for segment in _segments_of(content, file)]
    return [key for key, frames in content.items() if isinstance(frames, list)]


def cut(trajectory: Trajectory, segmentation: Segmentation) -> list[Segment]:
    """Cut one trajectory."""
    if segmentation.method == "manual":
        assert segmentation.boundaries is not None  # checked in __post_init__
        return _cut_manually(trajectory, segmentation.boundaries)
    if segmentation.method == "stops":
        return _cut_at_stops([trajectory], segmentation).segments
    _require_frames(trajectory)
    step = segmentation.window if segmentation.method == "window" else trajectory.length
    return _tile(trajectory.id, trajectory.length, range(0, trajectory.length, step))


def with_default_epsilon(segmentation: Segmentation, dataset: Dataset) -> Segmentation:
    """Return the segmentation with the default epsilon if none is given.

    The default is the paper's value; for joints it is `auto`.
    """
    if segmentation.epsilon is not None:
        return segmentation
    is_auto = False
    if segmentation.method == "stops" and len(dataset):
        first = dataset[dataset.ids[0]]
        with suppress(StrapError):  # cutting reports the error, if it cuts that trajectory
            is_auto = moving_columns(first, segmentation.position)[1] == "joints"
    return replace(segmentation, epsilon="auto" if is_auto else RELEASED_EPSILON)


def _cut_at_stops(trajectories: Iterable[Trajectory], segmentation: Segmentation) -> Cuts:
    """Cut where each trajectory rests; those of at most `min_length` frames stay whole."""
    lengths: dict[str, int] = {}
    movements = measure_movements(
        _select_long(trajectories, segmentation, lengths),
        position=segmentation.position,
        norm=segmentation.norm,
        unit=segmentation.unit,
    )
    if movements is None:
        return Cuts([s for key, n in lengths.items() for s in _tile(key, n, [])], segmentation)
    epsilon, chosen = _resolve_epsilon(segmentation, movements)
    starts = {
        key: first_frames(moved, epsilon, segmentation.min_length)
        for key, moved in movements.values.items()
    }
    found = [s for key, n in lengths.items() for s in _tile(key, n, starts.get(key, []))]
    notes = [note for note in (_note_joints(segmentation, movements), chosen) if note]
    return Cuts(found, replace(segmentation, epsilon=epsilon), movements, tuple(notes))


def _note_joints(segmentation: Segmentation, movements: Movements) -> str:
    if segmentation.position is not None or movements.kind != "joints":
        return ""
    unit = movements.unit.partition(" ")[0]
    return (
        f"no end-effector position: cut where the joints {movements.columns} rest (by their size "
        f"in {unit}); name other columns with --position"
    )


def _note_odd_stops(cuts: Cuts) -> list[str]:
    """Return notes about implausible stops, one line each; raise if nothing ever moves."""
    if cuts.segmentation.method != "stops":
        return []
    longest = max(segment.stop for segment in cuts.segments)
    found = [explain_length(longest, cuts.segmentation.min_length)]
    if cuts.movements is not None and isinstance(cuts.segmentation.epsilon, float):
        epsilon, min_length = cuts.segmentation.epsilon, cuts.segmentation.min_length
        found.append(explain_stops(cuts.movements, epsilon, min_length))
    return [note for note in found if note]


def _select_long(
    trajectories: Iterable[Trajectory], segmentation: Segmentation, lengths: dict[str, int]
) -> Iterator[Trajectory]:
    """Yield the trajectories that are long enough to cut; store all lengths in `lengths`."""
    for trajectory in trajectories:
        _require_frames(trajectory)
        if segmentation.position is not None:
            position_name(trajectory, segmentation.position)  # raises for short trajectories too
        lengths[trajectory.id] = trajectory.length
        if trajectory.length > segmentation.min_length:
            yield trajectory


def _resolve_epsilon(segmentation: Segmentation, movements: Movements) -> tuple[float, str]:
    """Return epsilon as a number, and a note if it was chosen automatically."""
    epsilon = segmentation.epsilon
    if epsilon is None:
        epsilon = "auto" if movements.kind == "joints" else RELEASED_EPSILON
    if epsilon != "auto":
        return float(epsilon), ""
    chosen = choose_threshold(movements, segmentation.min_length)
    return chosen.epsilon, f"epsilon auto is {chosen.epsilon:g} {movements.unit}: {chosen.reason}"


def _require_frames(trajectory: Trajectory) -> None:
    if trajectory.length == 0:
        raise StrapError(f"trajectory '{trajectory.id}' has no frames; leave it out")


def _tile(trajectory_id: str, length: int, bounds: Iterable[int]) -> list[Segment]:
    """Return the segments that start at these frames; frame 0 is always a start."""
    edges = [0, *(b for b in bounds if b > 0), length]
    return [Segment(trajectory_id, start, stop) for start, stop in pairwise(edges)]


def is_tiled(segments: Sequence[Segment], length: int) -> bool:
    """Return whether the segments, in this order, cover a trajectory without gap or overlap."""
    edges = [0, *(segment.stop for segment in segments)]
    return edges == [*(segment.start for segment in segments), length]


def _cut_manually(trajectory: Trajectory, file: Path) -> list[Segment]:
    content = read_json(file)
    if isinstance(content, dict) and "segments" in content:
        segments = [s for s in _segments_of(content, file) if s.trajectory_id == trajectory.id]
    else:
        bounds = _boundaries_of(content, trajectory, file)
        segments = _tile(trajectory.id, trajectory.length, bounds)
    if not segments:
        raise StrapError(f"'{file}' has no segments for trajectory '{trajectory.id}'; add some")
    for place, segment in enumerate(segments):
        if segment in segments[:place]:
            raise StrapError(f"'{file}' has the segment {segment} twice: remove one of them")
        if segment.stop > trajectory.length:
            raise StrapError(
                f"'{file}': {segment} goes past the trajectory's {trajectory.length} frames"
            )
    return segments


def _boundaries_of(content: Any, trajectory: Trajectory, file: Path) -> list[int]:
    bounds = content.get(trajectory.id) if isinstance(content, dict) else None
    if not isinstance(bounds, list) or not all(type(b) is int for b in bounds):
        raise StrapError(
            f"'{file}' has no list of frames for trajectory '{trajectory.id}': expected JSON like "
            f'{{"{trajectory.id}": [40, 95]}}'
        )
    if bounds != sorted(set(bounds)) or (bounds and not 0 <= bounds[0] <= bounds[-1]):
        raise StrapError(
            f"'{file}', '{trajectory.id}': boundaries {bounds} must increase from 0 on"
        )
    if bounds and bounds[-1] >= trajectory.length:
        raise StrapError(
            f"'{file}', '{trajectory.id}': boundary {bounds[-1]} is outside the trajectory's "
            f"{trajectory.length} frames"
        )
    return bounds


def write_segments(
    path: Path, segments: Iterable[Segment], *, dataset: Dataset, segmentation: Segmentation
) -> None:
    """Write segments and their options as JSON, for `read_segments` and the method `manual`."""
    options = {key: str(v) if isinstance(v, Path) else v for key, v in asdict(segmentation).items()}
    rows = [{"trajectory": s.trajectory_id, "start": s.start, "stop": s.stop} for s in segments]
    write_json(path, {"dataset": dataset.name, "segmentation": options, "segments": rows})


def read_segments(path: str | Path) -> list[Segment]:
    """Read a file that `strap segment` wrote."""
    return list(_segments_of(read_json(Path(path)), Path(path)))


def _segments_of(content: Mapping[str, Any], file: Path) -> Iterator[Segment]:
    try:
        for row in content["segments"]:
            parts = [row[name] for name in ("trajectory", "start", "stop")]
            if [type(part) for part in parts] != [str, int, int]:
                raise TypeError(f"{parts!r:.80} are not frame numbers of a trajectory")
            yield Segment(*parts)
    except (KeyError, TypeError, ValueError) as error:
        raise StrapError(
            f"'{file}' is not a file of segments ({error!r}): expected "
            '{"segments": [{"trajectory": …, "start": …, "stop": …}, …]}'
        ) from error
