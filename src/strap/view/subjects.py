"""What can be looked at: one face for a run, several of them, rollouts, a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from strap.view.films import FilmRequest, FilmSheet

PAGE = Path(__file__).parent / "static"
"""The files of the page that shows a subject."""


class Subject(Protocol):
    """What a page shows. Methods may be called by several threads at a time."""

    @property
    def name(self) -> str:
        """How it is called in a terminal."""

    def prepare(self) -> None:
        """Do what the first change would wait for; called once, while somebody looks already."""

    def close(self) -> None:
        """Stop preparing: nobody looks any more."""

    def contents(self) -> Mapping[str, Any]:
        """Return everything but pictures, paths and costs of single matches, as JSON-able data."""

    def film(self, request: FilmRequest) -> FilmSheet:
        """Return frames of a segment on one sheet."""

    def alignment(self, match: int, run: int) -> Mapping[str, Any]:
        """Return how a match (a row of the table) of a run was aligned with its query."""

    def video(self, evaluation: int, state: int) -> Path:
        """Return the video file of an episode."""

    def change(self, what: str, wanted: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change something that is named like its address (`choices`), and return what is new."""
