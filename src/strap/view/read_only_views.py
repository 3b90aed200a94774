"""Subjects that can be viewed but not changed: runs side by side, rollouts, a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from strap.datasets import Dataset
from strap.errors import StrapError
from strap.view.errors import NotThereError
from strap.view.films import FilmRequest, Films, FilmSheet
from strap.view.run_views import RunView, open_trajectory
from strap.view.side_by_side import (
    describe_comparison,
    describe_dataset,
    describe_evaluations,
    find_video,
)


@dataclass(frozen=True)
class ComparisonView:
    """Several runs of one target, side by side."""

    views: Sequence[RunView]
    description: Mapping[str, Any]

    @classmethod
    def open(cls, paths: Sequence[Path], films: Films) -> ComparisonView:
        """Open finished runs."""
        views = [RunView.open(path, films) for path in paths]
        contents = [view.contents() for view in views]
        return cls(views, describe_comparison([view.run for view in views], contents))

    @property
    def name(self) -> str:
        """The names of the runs."""
        return str(self.description["name"])

    def prepare(self) -> None:
        """Open the features of each run."""
        for view in self.views:
            view.prepare_paths()

    def close(self) -> None:
        """Do nothing: there is no search to end."""

    def contents(self) -> Mapping[str, Any]:
        """Return the runs as plain data, with the alignment of their queries."""
        return self.description

    def film(self, request: FilmRequest) -> FilmSheet:
        """Return a sheet of frames of one of the runs."""
        return self._view(request.run).film(replace(request, run=0))

    def alignment(self, match: int, run: int) -> Mapping[str, Any]:
        """Return how a match of one of the runs was aligned with its query."""
        return self._view(run).alignment(match, 0)

    def _view(self, run: int) -> RunView:
        if run >= len(self.views):
            raise NotThereError(
                f"there is no run {run}: there are {len(self.views)}, counted from 0"
            )
        return self.views[run]

    def video(self, evaluation: int, state: int) -> Path:  # noqa: ARG002
        """Raise: runs have no rollouts of their own."""
        raise NotThereError("runs have no rollouts: view the folders that `strap evaluate` wrote")

    def change(self, address: str, request: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002
        """Raise: runs are changed one at a time."""
        raise NotThereError(f"'{address}' cannot be changed side by side: view one run alone")


@dataclass(frozen=True)
class EvaluationView:
    """Rollouts of one or more policies on one task."""

    paths: Sequence[Path]

    @classmethod
    def open(cls, paths: Sequence[Path]) -> EvaluationView:
        """Open evaluations; raise if one is damaged or of another task."""
        describe_evaluations(paths)
        return cls(paths)

    @property
    def name(self) -> str:
        """The names of the evaluations."""
        return str(self.contents()["name"])

    def prepare(self) -> None:
        """Do nothing: videos are files already."""

    def close(self) -> None:
        """Do nothing."""

    def contents(self) -> Mapping[str, Any]:
        """Return the episodes as plain data, including those that finished since the last call."""
        return describe_evaluations(self.paths)

    def film(self, request: FilmRequest) -> FilmSheet:  # noqa: ARG002
        """Raise: rollouts are videos."""
        raise NotThereError("an evaluation has no sheets of frames: request an episode's video")

    def alignment(self, match: int, run: int) -> Mapping[str, Any]:  # noqa: ARG002
        """Raise: rollouts are not aligned."""
        raise NotThereError("an evaluation has no matches: view the run")

    def video(self, evaluation: int, state: int) -> Path:
        """Return the video of an episode."""
        if evaluation >= len(self.paths):
            count = len(self.paths)
            raise NotThereError(
                f"there is no evaluation {evaluation}: there are {count}, counted from 0"
            )
        try:
            return find_video(self.paths[evaluation], state)
        except StrapError as error:
            raise NotThereError(str(error)) from error

    def change(self, address: str, request: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002
        """Raise: an evaluation cannot be changed."""
        raise NotThereError(f"an evaluation has no '{address}' to change")


@dataclass(frozen=True)
class DatasetView:
    """The episodes of a dataset."""

    dataset: Dataset
    films: Films
    description: Mapping[str, Any]

    @classmethod
    def open(cls, dataset: Dataset, films: Films) -> DatasetView:
        """List the episodes of a dataset."""
        return cls(dataset, films, describe_dataset(dataset))

    @property
    def name(self) -> str:
        """The name of the file, the folder, or the repository on the hub."""
        return str(self.description["name"])

    def prepare(self) -> None:
        """Do nothing: there is nothing to compute."""

    def close(self) -> None:
        """Do nothing."""

    def contents(self) -> Mapping[str, Any]:
        """Return the episodes as plain data."""
        return self.description

    def film(self, request: FilmRequest) -> FilmSheet:
        """Return a sheet of frames of an episode."""
        if request.place != "target" or request.run:
            raise NotThereError("one dataset is shown: its place is 'target'")
        return self.films.get(open_trajectory(self.dataset, request.trajectory), request)

    def alignment(self, match: int, run: int) -> Mapping[str, Any]:  # noqa: ARG002
        """Raise: a dataset has no matches."""
        raise NotThereError("a dataset has no matches: view a run")

    def video(self, evaluation: int, state: int) -> Path:  # noqa: ARG002
        """Raise: a dataset has no rollouts."""
        raise NotThereError("a dataset has no rollouts: request frames of an episode")

    def change(self, address: str, request: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002
        """Raise: datasets are never changed."""
        raise NotThereError(f"a dataset has no '{address}' to change")
