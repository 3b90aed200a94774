"""The augmented dataset: the whole target demonstrations and the retrieved segments."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from strap.datasets.base import Dataset, Format
from strap.datasets.robomimic import write_robomimic
from strap.datasets.slicing import FRAMES_AFTER, FRAMES_BEFORE, slice_trajectory
from strap.errors import StrapError, unknown
from strap.lazy_arrays import LazyArray
from strap.progress import Progress, silent
from strap.provenance import fingerprint_json
from strap.types import Match, Matches, Segment, Trajectory, short_name

Shape: TypeAlias = tuple[int, ...]
"""Shape of the array of one frame."""
VIDEO_SHARE = 0.02
"""Size of a video relative to its raw images: 0.012 for LIBERO at 128 pixels, less if larger."""


def augment(
    target: Dataset,
    prior: Dataset | Sequence[Dataset],
    matches: Matches,
    out: str | Path,
    *,
    format: Format = "robomimic",
    history: int = FRAMES_BEFORE,
    chunk: int = FRAMES_AFTER,
    progress: Progress = silent,
) -> Path:
    """Write target ∪ retrieved as one dataset and return its path.

    In robomimic's HDF5 the masks `target`, `retrieved` and `all` list the demonstrations; in
    LeRobot v3.0 the episodes' provenance columns do. A retrieved segment is written with `history`
    frames before it and `chunk` frames after it. If its trajectory ends sooner, the first or last
    frame is repeated, and `is_pad` marks the repeated frames. `source_*` attributes record where
    each segment is from. In robomimic's layout the target demonstrations are padded too, because
    its loader only reads windows inside a trajectory; LeRobot's loader pads by itself.

    Args:
        target: the demonstrations, written whole.
        prior: the dataset or datasets that `matches` point into.
        matches: the retrieved segments; a segment that was found twice is written twice.
        out: the file to write (`.hdf5` is added to a name without ending), or LeRobot's folder.
        format: `robomimic` or `lerobot`.
        history: frames to keep before a segment, for the policy's history.
        chunk: frames to keep after a segment, for the actions that the policy predicts.
        progress: called with (what, done, total).
    """
    out = Path(out).expanduser()
    priors = [prior] if isinstance(prior, Dataset) else list(prior)
    pads = format == "robomimic"
    parts = iterate_augmented(
        target, priors, matches, history=history, chunk=chunk, pad_target=pads
    )
    if format == "lerobot":
        from strap.datasets.lerobot import write_lerobot

        return write_lerobot(
            out,
            parts,
            robot_type=target.robot_type,
            source=_origin(target, priors, matches, history, chunk),
            total=len(target) + len(matches),
            progress=progress,
        )
    if format != "robomimic":
        raise unknown("output format", format, ("robomimic", "lerobot"))
    return write_robomimic(
        out if out.suffix else out.with_suffix(".hdf5"),
        parts,
        total=len(target) + len(matches),
        masks=masks(target, matches),
        metadata=target.metadata if target.format in ("robomimic", "libero") else {},
        orientation=target[target.ids[0]].orientation,
        progress=progress,
    )


def iterate_augmented(
    target: Dataset,
    prior: Sequence[Dataset],
    matches: Matches,
    *,
    history: int = FRAMES_BEFORE,
    chunk: int = FRAMES_AFTER,
    pad_target: bool = False,
) -> Iterator[Trajectory]:
    """Yield the whole target trajectories, then the retrieved segments in the matches' order.

    With `pad_target` the target trajectories are padded like the segments. All trajectories have
    the same cameras and proprioception: those that target and prior share.
    """
    located = matches.locate(prior)
    common = SharedArrays.of(target, located, matches)
    before, after = (history, chunk) if pad_target else (0, 0)
    for trajectory in target:
        whole = Segment(trajectory.id, 0, trajectory.length)
        origin = {"dataset": target.name, "trajectory": trajectory.id}
        yield common.restrict(
            slice_trajectory(
                trajectory, whole, before=before, after=after, id=trajectory.id, provenance=origin
            )
        )
    for match in matches:
        yield common.restrict(
            slice_trajectory(
                located[match.dataset][match.segment.trajectory_id],
                match.segment,
                before=history,
                after=chunk,
                id=str(match.segment),
                provenance=provenance(match),
            )
        )


def fetch_augmented(
    target: Dataset, prior: Sequence[Dataset], matches: Matches, progress: Progress
) -> None:
    """Download what `augment` reads from datasets on the hub: the cameras that they share."""
    located = matches.locate(prior)
    cameras = list(SharedArrays.of(target, located, matches).cameras)
    target.fetch(cameras, progress)
    for name, dataset in located.items():
        found = {m.segment.trajectory_id: None for m in matches if m.dataset == name}
        dataset.select(list(found)).fetch(cameras, progress)


def require_same_actions(target: Dataset, priors: Sequence[Dataset]) -> None:
    """Raise if target and prior have actions of different shapes, by one trajectory of each."""
    for prior in priors:
        if len(target) and len(prior):
            _check_actions(target[target.ids[0]], prior[prior.ids[0]])


def writable_format(target: Dataset) -> Format:
    """Return the target's own format if it can be written, else LeRobot's, which is compact."""
    return "robomimic" if target.format in ("robomimic", "libero") else "lerobot"


@dataclass(frozen=True)
class Size:
    """The size of an augmented dataset."""

    frames: int
    nbytes: int

    def __str__(self) -> str:
        return f"{self.frames:,} frames, about {_in_units(self.nbytes)}"


def estimate_size(
    target: Dataset,
    prior: Sequence[Dataset],
    matches: Matches,
    *,
    format: Format,
    history: int = FRAMES_BEFORE,
    chunk: int = FRAMES_AFTER,
) -> Size:
    """Estimate how much `augment` would write."""
    pads = history + chunk
    lengths = [trajectory.length for trajectory in target]
    demonstrations = sum(lengths) + (len(lengths) * pads if format == "robomimic" else 0)
    frames = demonstrations + sum(len(match.segment) + pads for match in matches)
    common = SharedArrays.of(target, matches.locate(prior), matches)
    first = common.restrict(target[target.ids[0]])
    images = sum(_row_bytes(array) for array in first.cameras.values())
    others = sum(_row_bytes(a) for a in (first.actions, *first.proprioception.values()))
    share = 1.0 if format == "robomimic" else VIDEO_SHARE
    return Size(frames, int(frames * (images * share + others)))


def _row_bytes(array: LazyArray) -> int:
    return math.prod(array.shape[1:]) * np.dtype(array.dtype).itemsize


def _in_units(nbytes: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} GB"


def masks(target: Dataset, matches: Matches) -> dict[str, range]:
    """Return the indices of the target and of the retrieved trajectories of `iterate_augmented`."""
    size = len(target) + len(matches)
    return {"target": range(len(target)), "retrieved": range(len(target), size)}


def provenance(match: Match) -> dict[str, Any]:
    """Return the origin of a retrieved segment as plain values."""
    return {
        "dataset": match.dataset,
        "trajectory": match.segment.trajectory_id,
        "start": match.segment.start,
        "stop": match.segment.stop,
        "cost": match.cost,
        "rank": match.rank,
        "query_trajectory": match.query.trajectory_id,
        "query_start": match.query.start,
        "query_stop": match.query.stop,
    }


def _origin(
    target: Dataset, priors: Sequence[Dataset], matches: Matches, history: int, chunk: int
) -> dict[str, Any]:
    """Return everything that determines the augmented dataset's content, as JSON values."""
    return {
        "target": [target.name, target.fingerprint()],
        "prior": [[prior.name, prior.fingerprint()] for prior in priors],
        "matches": fingerprint_json([provenance(match) for match in matches]),
        "history": history,
        "chunk": chunk,
    }


@dataclass(frozen=True)
class SharedArrays:
    """The arrays that target and every prior share, by the target's names, with their shapes.

    Datasets of different formats name proprioception differently: `ee_pos` in one is
    `observation.ee_pos` in another.
    """

    cameras: Mapping[str, Shape]
    proprioception: Mapping[str, Shape]
    actions: Shape

    @classmethod
    def of(cls, target: Dataset, located: Mapping[str, Dataset], matches: Matches) -> SharedArrays:
        """Compare one trajectory of each dataset; raise if the datasets cannot be mixed."""
        first = target[target.ids[0]]
        one_each = {match.dataset: match for match in matches}.values()
        others = [located[match.dataset][match.segment.trajectory_id] for match in one_each]
        for other in others:
            _check_actions(first, other)
        cameras = _shared("camera", first.cameras, [o.cameras for o in others])
        if first.cameras and not cameras:
            raise StrapError(
                "target and prior share no camera of the same name and size: the target has "
                f"{_describe(first.cameras)}, the prior {_describe(others[0].cameras)}"
            )
        ours = first.proprioception
        states = _shared(
            "proprioception", ours, [_respelled(o.proprioception, ours) for o in others]
        )
        return cls(cameras, states, first.actions.shape[1:])

    def restrict(self, trajectory: Trajectory) -> Trajectory:
        """Return the trajectory with only the shared arrays, by the target's names."""
        states = _respelled(trajectory.proprioception, self.proprioception)
        _require_shapes(trajectory.id, "camera", trajectory.cameras, self.cameras)
        _require_shapes(trajectory.id, "proprioception", states, self.proprioception)
        actions = {"actions": trajectory.actions}
        _require_shapes(trajectory.id, "array", actions, {"actions": self.actions})
        return replace(
            trajectory,
            cameras={name: trajectory.cameras[name] for name in self.cameras},
            proprioception={name: states[name] for name in self.proprioception},
        )


def _require_shapes(
    trajectory_id: str, kind: str, arrays: Mapping[str, LazyArray], shapes: Mapping[str, Shape]
) -> None:
    for name, shape in shapes.items():
        if name not in arrays:
            raise StrapError(
                f"trajectory '{trajectory_id}' lacks {kind} '{name}', which others of its dataset "
                "have; leave that trajectory out"
            )
        if arrays[name].shape[1:] != shape:
            raise StrapError(
                f"trajectory '{trajectory_id}' has {kind} '{name}' of shape "
                f"{arrays[name].shape[1:]} per frame, others of its dataset {shape}; leave that "
                "trajectory out"
            )


def _check_actions(target: Trajectory, prior: Trajectory) -> None:
    ours, theirs = target.actions.shape[1:], prior.actions.shape[1:]
    if ours != theirs:
        raise StrapError(
            f"actions differ: target '{target.id}' has shape {ours} per frame, prior '{prior.id}' "
            f"{theirs}; one policy cannot learn from both (with --augmented none you still get the "
            "matches)"
        )


def _shared(
    kind: str, ours: Mapping[str, LazyArray], theirs: Sequence[Mapping[str, LazyArray]]
) -> dict[str, Shape]:
    def fits(name: str) -> bool:
        shape = ours[name].shape[1:]
        return all(name in other and other[name].shape[1:] == shape for other in theirs)

    kept = {name: ours[name].shape[1:] for name in ours if fits(name)}
    left_out = [name for name in ours if name not in kept]
    if left_out:
        warnings.warn(
            f"{kind} {', '.join(left_out)} of the target is missing in the prior, or has another "
            "shape there, and is left out of the augmented dataset",
            stacklevel=2,
        )
    return kept


def _respelled(arrays: Mapping[str, LazyArray], names: Iterable[str]) -> dict[str, LazyArray]:
    """Return the arrays with these names; a prefix `observation.` on either side is ignored."""
    by_short = {short_name(key): array for key, array in arrays.items()}
    found = {name: arrays.get(name, by_short.get(short_name(name))) for name in names}
    return {name: array for name, array in found.items() if array is not None}


def _describe(cameras: Mapping[str, LazyArray]) -> str:
    sizes = (f"{name} {array.shape[2]}×{array.shape[1]}" for name, array in cameras.items())
    return ", ".join(sizes) or "none"
