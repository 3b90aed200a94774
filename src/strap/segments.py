"""Cutting target demonstrations into segments; the prior is never cut."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from strap.atomic import read_json, write_json
from strap.datasets.base import Dataset
from strap.errors import StrapError, unknown
from strap.positions import position_name, positions
from strap.types import Segment, Trajectory

Method = Literal["stops", "window", "full", "manual"]
Norm = Literal["l1", "l2"]
Unit = Literal["step", "second"]


@dataclass(frozen=True)
class Segmentation:
    """How to cut. The defaults are the paper's, as its released code runs them."""

    method: Method = "stops"
    """stops: where the end effector rests; window: equal pieces; full: whole demonstrations;
    manual: boundaries from a file"""
    epsilon: float = 5e-3
    """stops: a frame whose movement to the next is below this is a stop"""
    unit: Unit = "step"
    """epsilon is a movement per step, or per second (then the dataset's frame rate is used)"""
    norm: Norm = "l1"
    """how a movement is measured over the position columns"""
    min_length: int = 20
    """stops: shorter chunks are merged with the next one"""
    window: int = 30
    """window: frames per piece"""
    position: str | None = None
    """which proprioception is the position: `name`, `name[0:3]`, `name[1:]` or `name[0,2,5]`, with
    columns as Python counts them"""
    boundaries: Path | None = None
    """manual: a JSON file, {trajectory id: [first frame of each further segment, …]}, or one that
    `strap segment` wrote"""

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
        if not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise StrapError(f"epsilon is {self.epsilon}: it must be a number above 0")
        if self.method == "manual" and self.boundaries is None:
            raise StrapError("method 'manual' needs a boundaries file: give --boundaries FILE.json")


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
    segmentation = Segmentation(method=method, **options)
    found = [piece for trajectory in dataset for piece in cut(trajectory, segmentation)]
    if not found:
        raise StrapError("the target dataset is empty: it needs at least one demonstration")
    return found


def cut(trajectory: Trajectory, segmentation: Segmentation) -> list[Segment]:
    """Cut one trajectory."""
    if segmentation.method == "manual":
        assert segmentation.boundaries is not None  # __post_init__ saw to it
        return _manual(trajectory, segmentation.boundaries)
    if trajectory.length == 0:
        raise StrapError(f"trajectory '{trajectory.id}' has no frames; leave it out")
    bounds = {"stops": _stop_bounds, "window": _window_bounds, "full": _full_bounds}
    starts = bounds[segmentation.method](trajectory, segmentation)
    return _tile(trajectory, starts)


def _tile(trajectory: Trajectory, bounds: Sequence[int]) -> list[Segment]:
    """Segments from their first frames (the leading 0 included or not)."""
    edges = [0, *(b for b in bounds if b > 0), trajectory.length]
    return [Segment(trajectory.id, start, stop) for start, stop in pairwise(edges)]


def _full_bounds(_trajectory: Trajectory, _segmentation: Segmentation) -> list[int]:
    return [0]


def _window_bounds(trajectory: Trajectory, segmentation: Segmentation) -> list[int]:
    return list(range(0, trajectory.length, segmentation.window))


def _stop_bounds(trajectory: Trajectory, segmentation: Segmentation) -> list[int]:
    if segmentation.position is not None:
        position_name(trajectory, segmentation.position)  # wrong in short ones is wrong too
    if trajectory.length <= segmentation.min_length:
        return [0]
    steps = np.diff(positions(trajectory, segmentation.position), axis=0)
    order = 1 if segmentation.norm == "l1" else 2
    moved = np.linalg.norm(steps, ord=order, axis=1)
    cuts = np.flatnonzero(moved < _epsilon_per_step(trajectory, segmentation)) + 1
    return merge_forward(cuts, trajectory.length, segmentation.min_length)


def _epsilon_per_step(trajectory: Trajectory, segmentation: Segmentation) -> float:
    if segmentation.unit == "step":
        return segmentation.epsilon
    if not trajectory.fps:
        raise StrapError(
            f"trajectory '{trajectory.id}' has no frame rate, so epsilon per second means "
            "nothing; give epsilon per step"
        )
    return segmentation.epsilon / trajectory.fps


def merge_forward(cuts: npt.NDArray[np.int64], length: int, min_length: int) -> list[int]:
    """First frames of the merged chunks.

    A chunk shorter than `min_length` swallows the next one; a short last chunk joins the one
    before:

        cuts    |--|-|-----|------|--|      min_length 6
        merged  |----------|---------|
    """
    starts = [0]
    for cut_at in cuts:
        if cut_at - starts[-1] >= min_length:
            starts.append(int(cut_at))
    if len(starts) > 1 and length - starts[-1] < min_length:
        starts.pop()
    return starts


def _manual(trajectory: Trajectory, file: Path) -> list[Segment]:
    content = read_json(file)
    if isinstance(content, dict) and "segments" in content:
        own = [s for s in _segments_of(content, file) if s.trajectory_id == trajectory.id]
    else:
        own = _tile(trajectory, _boundaries_of(content, trajectory, file))
    if not own:
        raise StrapError(f"'{file}' has no segments for trajectory '{trajectory.id}'; add some")
    for piece in own:
        if piece.stop > trajectory.length:
            raise StrapError(
                f"'{file}': {piece} goes past the {trajectory.length} frames there are"
            )
    return own


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
            f"'{file}', '{trajectory.id}': boundary {bounds[-1]} lies outside the "
            f"{trajectory.length} frames there are"
        )
    return bounds


def write_segments(
    path: Path, segments: Iterable[Segment], *, dataset: Dataset, segmentation: Segmentation
) -> None:
    """Write segments with how they were made; `read_segments` and `manual` take the file."""
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
                raise TypeError(f"{parts!r:.80} are no frame numbers of a trajectory")
            yield Segment(*parts)
    except (KeyError, TypeError, ValueError) as error:
        raise StrapError(
            f"'{file}' is no file of segments ({error!r}): expected "
            '{"segments": [{"trajectory": …, "start": …, "stop": …}, …]}'
        ) from error
