"""`strap score`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro

from strap.choices import ChoicesMode
from strap.cli.options import Json, print_json
from strap.errors import StrapError, printable
from strap.runs import Run, open_run
from strap.scores import Score, Scores, score_run

NOTHING_WANTED = (
    "the prior has no frames with the target's skills, so there is no precision or recall (–)"
)


@dataclass(frozen=True)
class Command:
    """Score retrievals by what the robot was doing in each frame, without training a policy.

    Needs skill labels in the target and in every prior dataset, as `strap libero collect` records
    them. Precision and recall are shown with two reference values: the best that the prior allows
    with the same number of frames, and random segments of the same lengths. docs/scores.md defines
    the scores.
    """

    EXAMPLES: ClassVar = ("strap score my-run other-run",)
    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN [RUN …]")]
    """folders that `strap retrieve` wrote"""
    seed: int = 0
    """seed of the random segments"""
    choices: ChoicesMode = "use"
    """use: leave out matches rejected in `strap view`; ignore: score all matches"""
    json: Json = False
    """print the scores as JSON"""

    def run(self) -> None:
        """Score every run, and print one row for each."""
        if not self.runs:
            raise StrapError("no run to score: name at least one folder of `strap retrieve`")
        runs = [open_run(path) for path in self.runs]
        scores = [score_run(run, seed=self.seed, choices=self.choices) for run in runs]
        if self.json:
            rows = [
                {"run": str(run.path), **describe(run), **scored.to_json()}
                for run, scored in zip(runs, scores, strict=True)
            ]
            print_json({"runs": rows})
        else:
            print(table(runs, scores))
            for run, scored in zip(runs, scores, strict=True):
                if not scored.precision.best:
                    print(f"{printable(run.path.name)}: {NOTHING_WANTED}")
                if scored.matches < len(run.matches):
                    kept = f"{scored.matches} of {len(run.matches)} matches kept (strap view)"
                    print(f"{printable(run.path.name)}: choices: {kept}")


def describe(run: Run) -> dict[str, Any]:
    """Return a run's method, encoder, segmentation and top_k, from its manifest."""
    arguments = run.manifest["arguments"]
    segmentation = arguments.get("segmentation")
    return {
        "method": arguments.get("method", "strap"),
        "encoder": arguments.get("encoder"),
        "segmentation": segmentation.get("method") if isinstance(segmentation, Mapping) else None,
        "top_k": arguments.get("top_k"),
    }


def table(runs: Sequence[Run], scores: Sequence[Scores]) -> str:
    """Return the scores as a table for a terminal: one line per run, columns in named groups."""
    groups = {5: "precision", 8: "recall", 11: "border error", 13: "retrieved"}
    names = ["run", "method", "encoder", "cut by", "K", *("found", "best", "random") * 2]
    lines = [[*names, "found", "random", "frames", "trajectories", "tasks", "effective"]]
    for run, scored in zip(runs, scores, strict=True):
        described = ("-" if value is None else str(value) for value in describe(run).values())
        lines.append([run.path.name, *described, *_numbers(scored)])
    cells = [[printable(cell) for cell in line] for line in lines]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    head = ""
    for column, name in groups.items():
        head = head.ljust(sum(widths[:column]) + 2 * column) + name
    shown = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in cells]
    return "\n".join(line.rstrip() for line in (head, *shown))


def _numbers(scores: Scores) -> list[str]:
    borders = [f"{value:.1f}" for value in (scores.border_error.value, scores.border_error.random)]
    counts = [str(scores.frames), str(scores.trajectories), str(len(scores.tasks))]
    if scores.precision.best:
        shares = [*_shares(scores.precision), *_shares(scores.recall)]
    else:
        shares = ["–"] * 6
    return [*shares, *borders, *counts, f"{scores.effective_tasks:.1f}"]


def _shares(one: Score) -> list[str]:
    return [f"{value:.3f}" for value in (one.value, one.best, one.random)]
