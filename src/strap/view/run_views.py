"""The view of one run, in which choices among its matches and borders can be changed."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from strap.atomic import read_json
from strap.choices import Choices, change_choices, open_choices
from strap.datasets import Dataset
from strap.errors import StrapError, shorten, unknown
from strap.features.cameras import corresponding_camera
from strap.folders import cache_folder
from strap.runs import Run, open_run
from strap.types import Trajectory
from strap.view.alignments import Features, describe_alignment
from strap.view.borders import BorderSearch, Boundaries, Draft, draft_borders, keep_borders
from strap.view.contents import Sources, describe_run
from strap.view.errors import BadRequestError, NotThereError
from strap.view.films import FilmRequest, Films, FilmSheet

FIRST_FILMS_SECONDS = 4.0
"""time in which the page's first films are made, before `prepare` searches"""
MAX_PREPARE_SECONDS = 60.0
"""a search that took longer is repeated only when the user moves a border"""


@dataclass(frozen=True)
class ShownRun:
    """The state of a run that a page shows: as it is on disk, or a draft of it."""

    sources: Sources
    features: Features
    description: Mapping[str, Any]
    """everything that does not depend on choices"""
    draft: Draft | None = None
    last_moved: str = ""
    """the demonstration whose borders were moved last"""

    @classmethod
    def of(cls, run: Run) -> ShownRun:
        """Return the state of a run as it is on disk."""
        sources = Sources.of(run)
        return cls(sources, Features(sources), describe_run(sources))

    def with_draft(self, draft: Draft, last_moved: str) -> ShownRun:
        """Return the state of the same run with a draft's borders and matches."""
        run = replace(self.sources.run, matches=draft.matches)
        sources = replace(self.sources, run=run, queries=draft.segments)
        return ShownRun(sources, self.features, describe_run(sources), draft, last_moved)


class RunView:
    """A run as a page shows it; changes wait for each other, and reading waits for none."""

    def __init__(self, run: Run, films: Films) -> None:
        self._films = films
        self._saved = self._shown = ShownRun.of(run)
        self._search: BorderSearch | None = None  # opened when the first border is moved
        self._changing = threading.Lock()
        self._searching = threading.Lock()
        self._is_closed = threading.Event()

    @classmethod
    def open(cls, path: Path, films: Films | None = None) -> RunView:
        """Open a finished run."""
        return cls(open_run(path), films or Films(cache_folder() / "films"))

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return str(self._saved.description["name"])

    @property
    def run(self) -> Run:
        """The run as it is on disk."""
        return self._saved.sources.run

    @property
    def sources(self) -> Sources:
        """The run as it is on disk, and its datasets."""
        return self._saved.sources

    def prepare(self) -> None:
        """Compile the code that traces paths, and search with the present borders if that is fast.

        After that, moving a border searches only for the two segments beside it.
        """
        self.prepare_paths()
        if self.run.manifest["seconds"].get("search", 0.0) > MAX_PREPARE_SECONDS:
            return
        if self._is_closed.wait(FIRST_FILMS_SECONDS):  # the page needs the CPU first
            return
        with suppress(StrapError):  # moving a border reports the error
            self._draft({})

    def close(self) -> None:
        """End a search that is running."""
        self._is_closed.set()

    def prepare_paths(self) -> None:
        """Open the features, and compile the code that traces paths."""
        with suppress(StrapError):  # a request for the path reports the error
            if len(self.run.matches):
                self.alignment(0, 0)

    def contents(self) -> Mapping[str, Any]:
        """Return the run as plain data; if it was repeated since, as it is now."""
        self._reopen_if_repeated()
        shown = self._shown
        matches = shown.sources.run.matches
        choices = Choices() if shown.draft else open_choices(self.run.path)
        if not choices.is_of(matches):  # they were made before the run was repeated
            choices = Choices()
        return {
            **shown.description,
            "read_only": not os.access(self.run.path, os.W_OK),
            "choices": choices.describe(matches),
            "draft": _describe_draft(shown),
        }

    def _reopen_if_repeated(self) -> None:
        """Open the run again if it has changed on disk; this drops a draft."""
        if not self._changing.acquire(blocking=False):
            return  # the change that is running updates the view
        try:
            if not self._is_current():
                self._saved = self._shown = ShownRun.of(open_run(self.run.path))
        finally:
            self._changing.release()

    def _is_current(self) -> bool:
        """Return whether the run on disk is the one that was opened."""
        with suppress(StrapError):  # the run is being written
            is_same: bool = read_json(self.run.path / "manifest.json") == self.run.manifest
            return is_same
        return False

    def film(self, request: FilmRequest) -> FilmSheet:
        """Return a sheet of frames of the target or of a prior."""
        _require_first(request.run)
        shown = self._shown
        dataset = find_dataset(shown.sources, request.place)
        trajectory = open_trajectory(dataset, request.trajectory)
        target = shown.sources.target
        if dataset is not target and request.camera in shown.description["cameras"]:
            manifest = shown.sources.run.manifest
            camera = corresponding_camera(manifest, target, dataset, request.camera)
            request = replace(request, camera=camera)
        return self._films.get(trajectory, request)

    def alignment(self, match: int, run: int) -> Mapping[str, Any]:
        """Return how a match was aligned with its query."""
        _require_first(run)
        shown = self._shown
        return describe_alignment(shown.sources, shown.features, match)

    def video(self, evaluation: int, state: int) -> Path:  # noqa: ARG002
        """Raise: a run has no rollouts of its own."""
        raise NotThereError("a run has no rollouts: view the folder that `strap evaluate` wrote")

    def change(self, address: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change choices or borders; return the new choices, or the new contents.

        `request["among"]` is the fingerprint of the matches that the page shows. If these are not
        the current matches, raise and change nothing.
        """
        changes = {
            "choices": self._choose,
            "borders": self._move_borders,
            "borders/keep": self._keep_borders,
            "borders/drop": self._drop_borders,
        }
        if address not in changes:
            raise NotThereError(f"'{address}' cannot be changed here")
        request = dict(request)
        shown = request.pop("among", None)
        with self._changing:
            is_other = shown not in (None, self._shown.description["fingerprint"])
            if is_other or not self._is_current():
                raise StrapError(
                    f"'{self.run.path}' was made again, or its borders were moved in another tab: "
                    "nothing was changed; reload the page"
                )
            return changes[address](request)

    def _choose(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._shown.draft:
            raise StrapError("new borders are being tried: keep or drop them first, then choose")
        return change_choices(self.run.path, self.run.matches, request).describe(self.run.matches)

    def _move_borders(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if set(request) != {"demonstration", "boundaries"}:
            raise BadRequestError(
                'send borders as {"demonstration": number, "boundaries": [frames]}'
            )
        key = self._demonstration(request["demonstration"])
        before = self._shown.draft
        boundaries = {**(before.boundaries if before else {}), key: request["boundaries"]}
        self._shown = self._saved.with_draft(self._draft(boundaries), key)
        return self.contents()

    def _draft(self, boundaries: Boundaries) -> Draft:
        with self._searching:
            if self._search is None or self._search.run is not self.run:
                self._search = BorderSearch.of(self.run)
            return draft_borders(self._search, boundaries, progress=self._require_open)

    def _require_open(self, *_: object) -> None:
        if self._is_closed.is_set():
            raise StrapError("the viewer has ended")

    def _demonstration(self, number: Any) -> str:
        ids = self._saved.sources.target.ids
        if type(number) is not int or not 0 <= number < len(ids):
            raise BadRequestError(
                f"demonstration is {shorten(repr(number))}: there are {len(ids)}, counted from 0"
            )
        return ids[number]

    def _keep_borders(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        _require_empty(request)
        if self._shown.draft is None:
            raise StrapError("there are no new borders to keep: move some first")
        with self._searching:
            repeated = keep_borders(self.run, self._shown.draft.boundaries)
            self._saved = self._shown = ShownRun.of(repeated)
        return self.contents()

    def _drop_borders(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        _require_empty(request)
        self._shown = self._saved
        return self.contents()


def _describe_draft(shown: ShownRun) -> dict[str, Any] | None:
    if shown.draft is None:
        return None
    number = list(shown.sources.target.ids).index(shown.last_moved)
    boundaries = list(shown.draft.boundaries[shown.last_moved])
    return {"demonstration": number, "boundaries": boundaries}


def _require_empty(request: Mapping[str, Any]) -> None:
    if request:
        raise BadRequestError("this change takes nothing: send {}")


def _require_first(run: int) -> None:
    if run:
        raise NotThereError(f"there is no run {run}: one is shown, number 0")


def find_dataset(sources: Sources, place: str) -> Dataset:
    """Return the dataset that a film's place names: `target`, or the number of a prior."""
    known = {str(number): prior for number, prior in enumerate(sources.priors)}
    known["target"] = sources.target
    if place not in known:
        raise NotThereError(str(unknown("place", place, known)))
    return known[place]


def open_trajectory(dataset: Dataset, trajectory_id: str) -> Trajectory:
    """Return a trajectory; raise `NotThereError` if the dataset has none with this id."""
    if trajectory_id not in dataset.ids:
        try:
            dataset[trajectory_id]
        except StrapError as error:
            raise NotThereError(str(error)) from error
    return dataset[trajectory_id]
