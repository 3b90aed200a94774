"""`strap figures`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro

from strap.choices import ChoicesMode, choose_matches
from strap.cli.options import Json, print_json
from strap.cli.progress import show_progress
from strap.datasets import Dataset
from strap.errors import StrapError
from strap.runs import Run
from strap.types import Match
from strap.view.run_views import RunView

FORMATS = ("pdf", "png")
ROWS, BEST = 3, 3
"""Default number of queries in an animation, and of matches for each query."""


@dataclass(frozen=True)
class Command:
    """Draw figures of a retrieval for a paper or a talk, or an animation of its matches.

    The figures show queries and their best matches, the tasks that the matches come from, and where
    in their trajectories the matches are. Each frame of a query is shown with the match's frame
    that the warping path pairs with it.
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
    formats: tuple[Literal["pdf", "png", "svg"], ...] = ()
    """the file formats; each figure is written in all of them (default: pdf png)"""
    moving: Path | None = None
    """instead of figures: write an animation (.webp or .gif) of queries and their best matches"""
    rerun: Path | None = None
    """instead of figures: write a recording (.rrd) of all queries for Rerun's viewer"""
    rows: int | None = None
    """with --moving: how many queries to show (default: 3)"""
    matches: int | None = None
    """with --moving or --rerun: how many matches of each query to show (default: 3)"""
    choices: ChoicesMode = "use"
    """use: leave out matches rejected in `strap view`; ignore: draw all matches"""
    json: Json = False
    """print the files' paths as JSON"""

    def run(self) -> None:
        """Open the run and its datasets, draw the kept matches, and print the files' paths."""
        self._check()
        view = RunView.open(self.run_folder)
        whole, target, priors = view.sources.run, view.sources.target, view.sources.priors
        numbers = {match: row for row, match in enumerate(whole.matches)}
        run = replace(
            whole, matches=choose_matches(whole.path, whole.matches, self.choices).matches
        )

        def trace(match: Match) -> list[tuple[int, int]] | None:
            path = view.alignment(numbers[match], 0)["path"]
            return path and [(i, j) for i, j, _ in path]

        with show_progress(quiet=self.json) as progress:
            files = self._write(run, target, priors, trace=trace, progress=progress)
        if self.json:
            print_json({"files": [str(file) for file in files]})
        else:
            print("\n".join(map(str, files)))

    def _check(self) -> None:
        """Raise if options contradict each other or would have no effect."""
        if self.moving is not None and self.rerun is not None:
            raise StrapError("--moving and --rerun cannot be combined: give one")
        makes_figures = self.moving is None and self.rerun is None
        for name, is_used, use in (
            ("rows", self.moving is not None, "--moving"),
            ("matches", not makes_figures, "--moving and --rerun"),
            ("formats", makes_figures, "figures, not for --moving or --rerun"),
            ("out", makes_figures, "figures, not for --moving or --rerun"),
        ):
            if getattr(self, name) and not is_used:
                raise StrapError(f"--{name} is for {use}: leave it out")
        for name in ("rows", "matches"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise StrapError(f"--{name} is {value}: it must be at least 1")

    def _write(
        self, run: Run, target: Dataset, priors: Sequence[Dataset], **options: Any
    ) -> Sequence[Path]:
        data, ranks = (run, target, priors), self.matches or BEST
        if self.rerun is not None:
            from strap.figures.rerun_recording import write_recording

            return [write_recording(self.rerun, *data, ranks=ranks, **options)]
        if self.moving is not None:
            from strap.figures.animation import write_moving_picture

            return [
                write_moving_picture(
                    self.moving, *data, queries=self.rows or ROWS, ranks=ranks, **options
                )
            ]
        from strap.figures.retrieval import write_figures

        out = self.out or run.path / "figures"
        return write_figures(out, *data, formats=self.formats or FORMATS, **options)
