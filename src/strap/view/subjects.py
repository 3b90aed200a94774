"""The interface of everything that can be viewed: a run, several runs, rollouts, a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from strap.view.films import FilmRequest, FilmSheet

PAGE = Path(__file__).parent / "static"
"""The files of the page that shows a subject."""


class Subject(Protocol):
    """The subject that a page shows. Several threads may call its methods at a time."""

    @property
    def name(self) -> str:
        """Its name in messages."""

    def prepare(self) -> None:
        """Do the work that the first change would wait for; called once, while the page is open."""

    def close(self) -> None:
        """Stop preparing: the server ends."""

    def contents(self) -> Mapping[str, Any]:
        """Return everything except images and the paths and costs of single matches, as JSON."""

    def film(self, request: FilmRequest) -> FilmSheet:
        """Return a sheet of frames of a segment."""

    def alignment(self, match: int, run: int) -> Mapping[str, Any]:
        """Return how a match (a row of matches.parquet) of a run was aligned with its query."""

    def video(self, evaluation: int, state: int) -> Path:
        """Return the video file of an episode."""

    def change(self, address: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change what is at an address, such as `choices`, and return the new state."""
