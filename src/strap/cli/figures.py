"""`strap figures`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro

from strap.cli.options import Json, print_json
from strap.cli.progress import showing
from strap.types import Match


@dataclass(frozen=True)
class Command:
    """Draw a retrieval for a paper or a talk: matches, tasks, where they lie; or a moving picture.

    Frames of a match are those that its warping path pairs with the frames shown of its query.
    """

    EXAMPLES: ClassVar = (
        "strap figures my-run",
        "strap figures my-run --formats pdf --out paper/figures",
        "strap figures my-run --moving matches.webp",
    )
    run_folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """a folder that `strap retrieve` wrote"""
    out: Path | None = None
    """the folder for the figures (default: RUN/figures)"""
    formats: tuple[Literal["pdf", "png", "svg"], ...] = ("pdf", "png")
    """as which kinds of file each is written"""
    moving: Path | None = None
    """write this moving picture (.webp or .gif) instead: queries and their best matches"""
    rows: int = 3
    """queries of the moving picture"""
    matches: int = 3
    """best matches of each of them"""
    json: Json = False
    """print where the files lie as JSON"""

    def run(self) -> None:
        """Open the run and its datasets, draw, and say where the files are."""
        from strap.figures.moving import write_moving_picture
        from strap.figures.retrieval import write_figures
        from strap.view.run_views import RunView

        view = RunView.open(self.run_folder)
        run, target, priors = view.sources.run, view.sources.target, view.sources.priors
        numbers = {match: row for row, match in enumerate(run.matches)}

        def trace(match: Match) -> list[tuple[int, int]] | None:
            path = view.alignment(numbers[match], 0)["path"]
            return path and [(i, j) for i, j, _ in path]

        if self.moving is not None:
            files = [
                write_moving_picture(
                    self.moving,
                    run,
                    target,
                    priors,
                    queries=self.rows,
                    ranks=self.matches,
                    trace=trace,
                )
            ]
        else:
            with showing(quiet=self.json) as progress:
                files = write_figures(
                    self.out or run.path / "figures",
                    run,
                    target,
                    priors,
                    formats=self.formats,
                    trace=trace,
                    progress=progress,
                )
        if self.json:
            print_json({"files": [str(file) for file in files]})
        else:
            print("\n".join(map(str, files)))
