"""Write the report of an experiment from the cells' folders.

REPORT/
  results.md        tables for a page
  results.csv       one line per task and column
  comparisons.csv   paired tests, task by task
  results.tex       a table for a paper
  success.png, k-sweep.png, matches-COLUMN.png
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from strap.atomic import replacing
from strap.errors import StrapError
from strap.experiments.cellfolders import read_results
from strap.experiments.cells import Cell
from strap.experiments.description import Experiment, folder_name
from strap.experiments.result_figures import (
    has_matches,
    matches_figure,
    success_figure,
    sweep_columns,
    sweep_figure,
)
from strap.experiments.result_tables import (
    format_comparison_csv,
    format_csv,
    format_latex,
    format_markdown,
)
from strap.experiments.summary import Summary
from strap.figures.style import styled


def write_report(
    experiment: Experiment, cells: Sequence[Cell], folder: Path, out: Path
) -> list[Path]:
    """Write tables and figures; return the paths of the files.

    Args:
        experiment: the content of the experiment's file.
        cells: the cells to report on; unfinished ones are shown as missing.
        folder: the work folder, or a folder of kept cells.
        out: folder of the report.
    """
    summary = Summary(experiment, cells, read_results(cells, folder))
    if not summary.results:
        raise StrapError(
            f"'{folder}' holds no finished cell of '{experiment.name}': run the experiment first"
        )
    texts = {
        "results.md": format_markdown(summary),
        "results.csv": format_csv(summary),
        "comparisons.csv": format_comparison_csv(summary),
        "results.tex": format_latex(summary),
    }
    for name, text in texts.items():
        with replacing(out / name) as temporary:
            temporary.write_text(text)
    return [*(out / name for name in texts), *_write_figures(summary, out)]


def _write_figures(summary: Summary, out: Path) -> list[Path]:
    figures = {"success.png": styled(success_figure, summary)}
    if sweep_columns(summary):
        figures["k-sweep.png"] = styled(sweep_figure, summary)
    for column in summary.columns:
        if has_matches(summary, column):
            name = f"matches-{folder_name(summary.label(column))}.png"
            figures[name] = styled(matches_figure, summary, column)
    for name, figure in figures.items():
        with replacing(out / name) as temporary:
            figure.savefig(temporary, format="png")
    return [out / name for name in figures]
