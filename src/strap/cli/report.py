"""`strap report`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from strap.choices import choose_matches
from strap.cli.options import Json, print_json
from strap.cli.progress import show_progress
from strap.errors import StrapError
from strap.progress import Progress
from strap.runs import REPORT
from strap.scores import Score, read_labels, score
from strap.view.contents import Sources
from strap.view.run_views import RunView
from strap.view.single_file import MAX_PAGE_BYTES, SingleFile, write_single_file


@dataclass(frozen=True)
class Command:
    """Write a run's page as one file to keep or to mail: what `strap view` shows, read-only.

    The page needs no server. It holds every match and the choices made among them, and videos of
    the best matches of each query, as many as --megabytes allows.
    """

    EXAMPLES: ClassVar = (
        "strap report my-run",
        "strap report my-run --out mail.html --megabytes 5",
    )
    run_folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """a folder that `strap retrieve` wrote"""
    out: Path | None = None
    """the file (default: RUN/report.html)"""
    megabytes: float = MAX_PAGE_BYTES / 1e6
    """largest total size of the videos"""
    json: Json = False
    """print the page's path as JSON"""

    def run(self) -> None:
        """Open the run and its datasets, write the page, and print its path."""
        if not self.megabytes >= 0:
            raise StrapError(f"megabytes is {self.megabytes}: it must be at least 0")
        view = RunView.open(self.run_folder)
        with show_progress(quiet=self.json) as progress:
            page = write_report(view, self.out, megabytes=self.megabytes, progress=progress)
        if self.json:
            print_json(
                {"report": str(page.path), "matches": page.n_matches, "films": page.n_filmed}
            )
        else:
            print(f"report: {page.path} (videos of {page.n_filmed} of {page.n_matches} matches)")


def write_report(
    view: RunView, out: Path | None, *, megabytes: float = MAX_PAGE_BYTES / 1e6, progress: Progress
) -> SingleFile:
    """Write the page of a run; it shows the skill precision if the demonstrations are labelled."""
    sources = view.sources
    scored = precision(sources)
    facts = []
    if scored:
        text = f"{scored.value:.0%} of the retrieved frames do what their query does; at random "
        facts.append(("skill precision", f"{text}{scored.random:.0%}"))
    return write_single_file(
        out or sources.run.path / REPORT,
        view,
        max_bytes=int(megabytes * 1e6),
        facts=facts,
        progress=progress,
    )


def precision(sources: Sources) -> Score | None:
    """Return the share of retrieved frames that do what their query does; None without labels."""
    with suppress(StrapError):
        labels = {prior.name: read_labels(prior) for prior in sources.priors}
        kept = choose_matches(sources.run.path, sources.run.matches).matches
        return score(kept, read_labels(sources.target), labels).precision
    return None
