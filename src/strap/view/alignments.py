"""The alignment of a match with its query: path, local costs, and the robot's motion."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from strap.datasets import Dataset
from strap.dtw import Alignment, best_match, path
from strap.errors import StrapError
from strap.features import reopen_stores
from strap.features.fusion import WeightedFeature
from strap.position_columns import positions
from strap.retrieval import METHODS
from strap.retrieval.dtw_methods import retrieve_segments, retrieve_trajectories
from strap.store import EmbeddingStore
from strap.types import Array, Match, Segment, Trajectory
from strap.view.contents import Sources, significant
from strap.view.errors import NotThereError

AROUND = 40
"""frames before and after a match for which costs are shown as well"""
MAX_COSTS = 4_000_000
"""the largest cost matrix that is sent to a page, in numbers"""
DIGITS = 5
"""significant digits of a cost or position"""
DELTA_POSE = ("x", "y", "z", "roll", "pitch", "yaw", "gripper")
"""the action dimensions of the controller that LIBERO and robomimic use"""

Floats = npt.NDArray[np.float64]


class NoPathError(StrapError):
    """The error for a match without a path; its text says why there is none."""


@dataclass(frozen=True)
class Features:
    """The features that a run compared, read from its stores."""

    sources: Sources

    def of(self, dataset: Dataset, segment: Segment) -> Array:
        """Return the features [t d] of a segment's whole trajectory; raise if there are none."""
        method = self.sources.arguments.get("method", "strap")
        if method in METHODS and METHODS[method].features == "none":
            raise NoPathError(f"method '{method}' compares no frames, so there is no path")
        return self._stores[dataset.name][segment.trajectory_id]

    @cached_property
    def _stores(self) -> Mapping[str, EmbeddingStore]:
        datasets = (self.sources.target, *self.sources.priors)
        stores = reopen_stores(self.sources.run.manifest, datasets)
        return {dataset.name: store for dataset, store in zip(datasets, stores, strict=True)}


def describe_alignment(sources: Sources, features: Features, row: int) -> dict[str, Any]:
    """Return the path, costs and motion of one match as JSON values.

    Frames are counted from the first frame of the query and of the match.
    """
    if not 0 <= row < len(sources.run.matches):
        raise NotThereError(
            f"there is no match {row}: there are {len(sources.run.matches)}, counted from 0"
        )
    match = sources.run.matches[row]
    prior = sources.run.matches.locate(sources.priors)[match.dataset]
    answer: dict[str, Any] = {"path": None, "costs": None}
    try:
        demonstration = features.of(sources.target, match.query)
        query = demonstration[match.query.start : match.query.stop]
        trajectory = features.of(prior, match.segment)
        answer["costs"] = _describe_costs(query, trajectory, match.segment, _metric(sources))
        answer["path"] = _trace(query, trajectory, match, sources)
    except StrapError as error:
        answer["reason"] = str(error)
    answer["query"] = describe_motion(sources.target, match.query)
    answer["match"] = describe_motion(prior, match.segment)
    return answer


def _metric(sources: Sources) -> str:
    return str(sources.arguments.get("metric") or "l2")


def _trace(query: Array, trajectory: Array, match: Match, sources: Sources) -> list[list[float]]:
    """Return the path as [query frame, match frame, cost], frames counted from the first."""
    method = sources.arguments.get("method", "strap")
    retrieve = METHODS[method].retrieve if method in METHODS else None
    steps, metric = str(sources.arguments.get("steps") or "strap"), _metric(sources)
    found = Alignment(match.cost, match.segment.start, match.segment.stop)
    if retrieve is retrieve_trajectories:  # align within the whole trajectory that is the match
        inside = best_match(query, trajectory, steps=steps, metric=metric)
        found = replace(inside or found, cost=match.cost)
    elif retrieve is not retrieve_segments:
        raise NoPathError(f"method '{method}' compares single frames, so there is no path")
    traced = path(query, trajectory, found, steps=steps, metric=metric)
    frames = (traced.trajectory - match.segment.start).tolist()
    costs = significant(traced.costs, DIGITS)
    return [list(cell) for cell in zip(traced.query.tolist(), frames, costs, strict=True)]


def _describe_costs(
    query: Array, trajectory: Array, segment: Segment, metric: str
) -> dict[str, Any] | None:
    """Return the local costs around the match, one byte each; None if there are too many.

    columns   | 40 before | the match | 40 after |
              0           first
    """
    left = max(0, segment.start - AROUND)
    near = trajectory[left : segment.stop + AROUND]
    if len(query) * len(near) > MAX_COSTS:
        return None
    from scipy.spatial.distance import cdist  # imported here so that the page opens sooner

    kind = "cosine" if metric == "cosine" else "euclidean"
    costs = cdist(np.asarray(query, np.float64), np.asarray(near, np.float64), kind)
    least, most = float(costs.min()), float(costs.max())
    scaled = np.round(255 * (costs - least) / (most - least or 1.0)).astype(np.uint8)
    return {
        "rows": len(query),
        "columns": len(near),
        "first": segment.start - left,
        "values": base64.b64encode(scaled.tobytes()).decode(),
        "least": least,
        "most": most,
    }


def describe_motion(dataset: Dataset, segment: Segment) -> dict[str, Any]:
    """Return the end effector's position, the gripper's opening and the action of every frame."""
    trajectory = dataset[segment.trajectory_id]
    frames = slice(segment.start, segment.stop)
    actions = np.asarray(trajectory.actions[frames], np.float64).reshape(len(segment), -1)
    return {
        "position": _position(trajectory, frames),
        "gripper": _gripper(trajectory, frames),
        "actions": significant(actions, DIGITS),
        "action_names": _action_names(dataset, trajectory, actions.shape[1]),
    }


def _position(trajectory: Trajectory, frames: slice) -> list[list[float]] | None:
    with suppress(StrapError):
        found = positions(trajectory)
        if found.shape[1] == 3:
            return significant(found[frames], DIGITS)
    return None


def _gripper(trajectory: Trajectory, frames: slice) -> list[float] | None:
    """Return the gripper's opening: its one number, or the sum of its fingers' displacements."""
    with suppress(StrapError):
        found = WeightedFeature("gripper", 1.0).read(trajectory)[frames]
        return significant(found[:, 0] if found.shape[1] == 1 else np.abs(found).sum(1), DIGITS)
    return None


def _action_names(dataset: Dataset, trajectory: Trajectory, width: int) -> list[str]:
    """Return the names of the action dimensions: the dataset's, or the format's, or numbers."""
    known = (trajectory.attributes.get("feature_names") or {}).get("action")
    while isinstance(known, list) and len(known) == 1 and isinstance(known[0], list):
        known = known[0]
    if isinstance(known, dict):
        known = next(iter(known.values()), None)
    if isinstance(known, list) and len(known) == width and all(isinstance(n, str) for n in known):
        return list(known)
    if dataset.format in ("libero", "robomimic") and width == len(DELTA_POSE):
        return list(DELTA_POSE)
    return [str(number) for number in range(width)]
