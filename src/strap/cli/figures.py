"""`strap figures`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro

from strap.choices import choose_matches
from strap.cli.options import Json, print_json
from strap.cli.progress import showing
from strap.datasets import Dataset
from strap.errors import StrapError
from strap.runs import Run
from strap.types import Match
from strap.view.run_views import RunView


@dataclass(frozen=True)
class Command:
    """Draw a retrieval for a paper or a talk: matches, tasks, where they lie; or a moving picture.

    Frames of a match are those that its warping path pairs with the frames shown of its query.
    """

    EXAMPLES: ClassVar = (
        "strap figures my-run",
        "strap figures my-run --formats pdf --out paper/figures",
        "strap figures my-run --moving matches.webp",
        "strap figures my-run --rerun matches.rrd",
    )
    run_folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """a folder that `strap retrieve` wrote"""
    out: Path | None = None
    """the folder for the figures (default: RUN/figures)"""
    formats: tuple[Literal["pdf", "png", "svg"], ...] = ("pdf", "png")
    """as which kinds of file each is written"""
    moving: Path | None = None
    """write this moving picture (.webp or .gif) instead: queries and their best matches"""
    rerun: Path | None = None
    """write this recording (.rrd) for Rerun's viewer instead: all queries and their best matches"""
    rows: int = 3
    """queries of the moving picture"""
    matches: int = 3
    """best matches of each query, in a moving picture or a recording"""
    json: Json = False
    """print where the files lie as JSON"""

    def run(self) -> None:
        """Open the run and its datasets, draw what is kept of it, and say where the files are."""
        if self.moving is not None and self.rerun is not None:
            raise StrapError("--moving and --rerun are given: each is written instead, take one")
        view = RunView.open(self.run_folder)
        whole, target, priors = view.sources.run, view.sources.target, view.sources.priors
        numbers = {match: row for row, match in enumerate(whole.matches)}
        run = replace(whole, matches=choose_matches(whole.path, whole.matches).matches)

        def trace(match: Match) -> list[tuple[int, int]] | None:
            path = view.alignment(numbers[match], 0)["path"]
            return path and [(i, j) for i, j, _ in path]

        with showing(quiet=self.json) as progress:
            files = self._write(run, target, priors, trace=trace, progress=progress)
        if self.json:
            print_json({"files": [str(file) for file in files]})
        else:
            print("\n".join(map(str, files)))

    def _write(
        self, run: Run, target: Dataset, priors: Sequence[Dataset], **options: Any
    ) -> Sequence[Path]:
        data, ranks = (run, target, priors), self.matches
        if self.rerun is not None:
            from strap.figures.rerun_recording import write_recording

            return [write_recording(self.rerun, *data, ranks=ranks, **options)]
        if self.moving is not None:
            from strap.figures.moving import write_moving_picture

            return [
                write_moving_picture(self.moving, *data, queries=self.rows, ranks=ranks, **options)
            ]
        from strap.figures.retrieval import write_figures

        out = self.out or run.path / "figures"
        return write_figures(out, *data, formats=self.formats, **options)
