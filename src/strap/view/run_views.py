"""A run to look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from strap.datasets import Dataset
from strap.embeddings import choose_cameras
from strap.errors import StrapError, unknown
from strap.folders import cache_folder
from strap.runs import open_run
from strap.types import Trajectory
from strap.view.alignments import Features, describe_alignment
from strap.view.contents import Sources, describe_run
from strap.view.films import Film, FilmRequest, Films
from strap.view.refusals import NotThereError

NOTHING_CHOSEN: Mapping[str, Any] = {
    "rejected": [],
    "accepted": [],
    "match_weights": {},
    "task_weights": {},
    "rejected_tasks": [],
    "top_k": None,
    "undo": 0,
    "redo": 0,
}


@dataclass(frozen=True)
class RunView:
    """A run with its datasets, as a page shows it."""

    sources: Sources
    features: Features
    films: Films
    description: Mapping[str, Any]
    """what does not change while it is looked at"""

    @classmethod
    def open(cls, path: Path, films: Films | None = None) -> RunView:
        """Open a finished run."""
        sources = Sources.of(open_run(path))
        films = films or Films(cache_folder() / "films")
        return cls(sources, Features(sources), films, describe_run(sources))

    @property
    def name(self) -> str:
        """The folder's name."""
        return str(self.description["name"])

    def contents(self) -> Mapping[str, Any]:
        """Return the run as plain data."""
        chosen = {**NOTHING_CHOSEN, "kept": len(self.sources.run.matches)}
        return {**self.description, "read_only": True, "choices": chosen, "draft": None}

    def film(self, request: FilmRequest) -> Film:
        """Return frames of the target or of a prior on a sheet."""
        _require_first(request.run)
        dataset = self._dataset(request.place)
        trajectory = open_trajectory(dataset, request.trajectory)
        if (
            request.camera not in trajectory.cameras
            and request.camera in self.description["cameras"]
        ):
            # It goes by another name there: the one that was compared with the target's.
            request = replace(request, camera=choose_cameras(dataset, None)[0])
        return self.films.get(trajectory, request)

    def _dataset(self, place: str) -> Dataset:
        if place == "target":
            return self.sources.target
        known = {str(number): prior for number, prior in enumerate(self.sources.priors)}
        if place not in known:
            raise NotThereError(str(unknown("place", place, ("target", *known))))
        return known[place]

    def alignment(self, match: int, run: int) -> Mapping[str, Any]:
        """Return how a match was aligned with its query."""
        _require_first(run)
        return describe_alignment(self.sources, self.features, match)

    def video(self, evaluation: int, state: int) -> Path:  # noqa: ARG002
        """Raise: a run has no rollouts of its own."""
        raise NotThereError("a run has no rollouts: view the folder that `strap evaluate` wrote")

    def change(self, what: str, wanted: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002
        """Raise: nothing can be changed."""
        raise NotThereError(f"'{what}' cannot be changed here")


def _require_first(run: int) -> None:
    if run:
        raise NotThereError(f"there is no run {run}: one is shown, number 0")


def open_trajectory(dataset: Dataset, trajectory_id: str) -> Trajectory:
    """Return a trajectory; `NotThereError` where a dataset has none of that id."""
    if trajectory_id not in dataset.ids:
        try:
            dataset[trajectory_id]
        except StrapError as error:
            raise NotThereError(str(error)) from error
    return dataset[trajectory_id]
