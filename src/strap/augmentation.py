"""The augmented dataset: target demonstrations, whole, and the retrieved segments."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from strap.datasets.base import Dataset
from strap.datasets.robomimic import write_robomimic
from strap.datasets.slicing import CHUNK, HISTORY, slice_trajectory
from strap.errors import StrapError, unknown
from strap.progress import Progress, silent
from strap.provenance import fingerprint_json
from strap.types import LazyArray, Match, Matches, Segment, Trajectory


def augment(
    target: Dataset,
    prior: Dataset | Sequence[Dataset],
    matches: Matches,
    out: str | Path,
    *,
    format: Literal["robomimic", "lerobot"] = "robomimic",
    history: int = HISTORY,
    chunk: int = CHUNK,
    progress: Progress = silent,
) -> Path:
    """Write target ∪ retrieved as one dataset; returns its path.

    In robomimic's HDF5 the masks `target`, `retrieved` and `all` name the parts; in LeRobot's
    v3.0 the episodes' provenance columns tell. A retrieved segment keeps `history` frames
    before it and `chunk` after it from its trajectory; `is_pad` marks the frames repeated where the
    trajectory ends. Where each came from is written as `source_*` attributes.

    Args:
        target: the demonstrations, written whole.
        prior: the dataset or datasets that `matches` point into.
        matches: what was retrieved; a segment found twice is written twice, on purpose.
        out: the file to write (`.hdf5` is added where the name has no ending), or LeRobot's
            folder.
        format: `robomimic` or `lerobot`.
        history: the policy's history.
        chunk: how many actions the policy predicts at once.
        progress: called with (what, done, total).
    """
    out = Path(out).expanduser()
    priors = [prior] if isinstance(prior, Dataset) else list(prior)
    parts = augmented(target, priors, matches, history=history, chunk=chunk)
    if format == "lerobot":
        from strap.datasets.lerobot import write_lerobot

        return write_lerobot(
            out,
            parts,
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


def augmented(
    target: Dataset,
    prior: Sequence[Dataset],
    matches: Matches,
    *,
    history: int = HISTORY,
    chunk: int = CHUNK,
) -> Iterator[Trajectory]:
    """Target trajectories, whole, then the retrieved segments in the order of the matches.

    All have the same cameras and proprioception: those that target and prior share.
    """
    located = matches.locate(prior)
    common = Common.of(target, located, matches)
    for trajectory in target:
        whole = Segment(trajectory.id, 0, trajectory.length)
        origin = {"dataset": target.name, "trajectory": trajectory.id}
        yield common.restrict(
            slice_trajectory(
                trajectory, whole, before=0, after=0, id=trajectory.id, provenance=origin
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


def masks(target: Dataset, matches: Matches) -> dict[str, range]:
    """Which of `augmented`'s trajectories are target and which retrieved, by index."""
    size = len(target) + len(matches)
    return {"target": range(len(target)), "retrieved": range(len(target), size)}


def provenance(match: Match) -> dict[str, Any]:
    """Where a retrieved segment comes from, as plain values."""
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
    """Everything that decides the augmented dataset's content, as JSON."""
    return {
        "target": [target.name, target.fingerprint()],
        "prior": [[prior.name, prior.fingerprint()] for prior in priors],
        "matches": fingerprint_json([provenance(match) for match in matches]),
        "history": history,
        "chunk": chunk,
    }


@dataclass(frozen=True)
class Common:
    """The cameras and proprioception that target and every prior share."""

    cameras: tuple[str, ...]
    proprioception: tuple[str, ...]

    @classmethod
    def of(cls, target: Dataset, located: Mapping[str, Dataset], matches: Matches) -> Common:
        """Look at one trajectory of each dataset; raise where they cannot be mixed."""
        first = target[target.ids[0]]
        one_each = {match.dataset: match for match in matches}.values()
        others = [located[match.dataset][match.segment.trajectory_id] for match in one_each]
        for other in others:
            _check_actions(first, other)
        cameras = _shared("camera", first.cameras, [o.cameras for o in others])
        if first.cameras and not cameras:
            raise StrapError(
                f"target and prior share no camera of one size: the target has "
                f"{_describe(first.cameras)}, the prior {_describe(others[0].cameras)}"
            )
        states = _shared("proprioception", first.proprioception, [o.proprioception for o in others])
        return cls(cameras, states)

    def restrict(self, trajectory: Trajectory) -> Trajectory:
        """The trajectory with these arrays only."""
        try:
            return replace(
                trajectory,
                cameras={name: trajectory.cameras[name] for name in self.cameras},
                proprioception={n: trajectory.proprioception[n] for n in self.proprioception},
            )
        except KeyError as error:
            raise StrapError(
                f"trajectory '{trajectory.id}' lacks {error} that others of its dataset have; "
                "leave it out"
            ) from error


def _check_actions(target: Trajectory, prior: Trajectory) -> None:
    ours, theirs = target.actions.shape[1:], prior.actions.shape[1:]
    if ours != theirs:
        raise StrapError(
            f"actions differ: target '{target.id}' has shape {ours} per frame, prior "
            f"'{prior.id}' {theirs}; one policy cannot learn from both"
        )


def _shared(
    kind: str, ours: Mapping[str, LazyArray], theirs: Sequence[Mapping[str, LazyArray]]
) -> tuple[str, ...]:
    def fits(name: str) -> bool:
        shape = ours[name].shape[1:]
        return all(name in other and other[name].shape[1:] == shape for other in theirs)

    kept = tuple(name for name in ours if fits(name))
    left_out = [name for name in ours if name not in kept]
    if left_out:
        warnings.warn(
            f"{kind} {', '.join(left_out)} of the target is missing or of another shape in the "
            "prior and is left out of the augmented dataset",
            stacklevel=2,
        )
    return kept


def _describe(cameras: Mapping[str, LazyArray]) -> str:
    sizes = (f"{name} {array.shape[2]}×{array.shape[1]}" for name, array in cameras.items())
    return ", ".join(sizes) or "none"
