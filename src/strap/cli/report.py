"""`strap report`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from strap.choices import choose_matches
from strap.cli.options import Json, print_json
from strap.cli.progress import showing
from strap.datasets import Dataset
from strap.errors import StrapError
from strap.runs import Run, open_run
from strap.scores import Score, read_labels, score


@dataclass(frozen=True)
class Command:
    """Show a retrieval on one page: matches beside their queries, where they come from, all costs.

    Writes report.html into the run folder, self-contained, and its pictures as PNG beside it. What
    was rejected in `strap view` is left out.
    """

    EXAMPLES: ClassVar = ("strap report my-run",)
    run_folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """a folder that `strap retrieve` wrote"""
    json: Json = False
    """print where the page lies as JSON"""

    def run(self) -> None:
        """Open the run and its datasets, draw, and say where the page is."""
        from strap.report import write_report

        run = open_run(self.run_folder)
        run = replace(run, matches=choose_matches(run.path, run.matches).matches)
        target, priors = run.datasets()
        with showing(quiet=self.json) as progress:
            page = write_report(
                run,
                target,
                priors,
                precision=precision(run, target, priors),
                title=target[target.ids[0]].instruction or target.path.name,
                progress=progress,
            )
        print_json({"report": str(page)}) if self.json else print(f"report: {page}")


def precision(run: Run, target: Dataset, priors: Sequence[Dataset]) -> Score | None:
    """Return the share of retrieved frames that do what their query does, where it is labelled."""
    with suppress(StrapError):
        labels = {prior.name: read_labels(prior) for prior in priors}
        return score(run.matches, read_labels(target), labels).precision
    return None
