"""Put the tables of `runs/results` between the markers of docs/results.md and docs/scores.md.

    python runs/results_page.py            write the tables
    python runs/results_page.py --check    exit with an error if the pages are not up to date

A marker names results and one of their parts: `<!-- main_table: Paired tests -->`. The parts of an
experiment are those of its report ("Successes" is the first table), and "Scores and gains" if the
scores of its cells are in `runs/results/scores`. Results that only have scores have the tables of
these scores. The text between a marker and the next `<!-- end -->` is replaced.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from strap.cli.experiment import EXPERIMENT_COMMANDS, list_options
from strap.experiments.cellfolders import read_results
from strap.experiments.cells import list_cells
from strap.experiments.description import read_experiment
from strap.experiments.result_scores import format_score_correlations
from strap.experiments.result_tables import format_markdown
from strap.experiments.summary import Summary
from strap.scores.score_files import ScoreRecord, read_scores
from strap.scores.score_tables import ScoreTable

RUNS = Path(__file__).resolve().parent
RESULTS = RUNS / "results"
PAGES = [RUNS.parent / "docs" / name for name in ("results.md", "scores.md")]
MARKED = re.compile(r"<!-- (\w+): ([\w ]+) -->\n((?!<!-- ).)*<!-- end -->", re.DOTALL)
MARKER = re.compile(r"<!-- (?:end|\w+: [\w ]+) -->")
TOP_K = 100
TOP_KS = (100, 200, 500)
"""values of K in the tables of scores"""


def read_parts(name: str) -> dict[str, str]:
    """Return an experiment's report, or the tables of scores, as a text for each heading."""
    records = read_scores(RESULTS / "scores" / f"{name}.jsonl")
    if (RUNS / f"{name}.toml").is_file():
        return read_report(name, records)
    if not records:
        sys.exit(f"there is no experiment '{name}.toml' and there are no scores of that name")
    table = ScoreTable(records)
    return {
        "Precision": table.format_precision(TOP_K),
        "All scores": table.format_all(TOP_KS, is_fused=False),
        "Fused features": table.format_all([TOP_K], is_fused=True),
    }


def read_report(name: str, records: list[ScoreRecord]) -> dict[str, str]:
    """Return an experiment's report by heading, and how well its cells' scores rank the gains."""
    known = {command: list_options(command) for command in EXPERIMENT_COMMANDS}
    experiment = read_experiment(RUNS / f"{name}.toml", known)
    cells = list_cells(experiment)
    summary = Summary(experiment, cells, read_results(cells, RESULTS / name))
    first, *others = format_markdown(summary).split("\n## ")
    _, _, table = first.partition("\n| ")
    parts = {"Successes": f"| {table}"}
    for other in others:
        heading, _, text = other.partition("\n")
        parts[heading] = text
    if records:
        parts["Scores and gains"] = format_score_correlations(summary, records)
    return parts


def fill_page(page: str) -> str:
    """Return a page with the parts of results between its markers."""
    reports: dict[str, dict[str, str]] = {}
    if 2 * len(MARKED.findall(page)) != len(MARKER.findall(page)):
        sys.exit("a marker of the page has no `<!-- end -->`, or an `<!-- end -->` no marker")

    def fill(marked: re.Match[str]) -> str:
        name, part = marked.group(1, 2)
        if name not in reports:
            reports[name] = read_parts(name)
        if part not in reports[name]:
            sys.exit(f"the report of '{name}' has no part '{part}': {', '.join(reports[name])}")
        return f"<!-- {name}: {part} -->\n\n{reports[name][part].strip()}\n\n<!-- end -->"

    return MARKED.sub(fill, page)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--page", type=Path, nargs="+", default=PAGES, help="other pages")
    options = parser.parse_args()
    filled = {page: fill_page(page.read_text()) for page in options.page}
    changed = [page for page, text in filled.items() if text != page.read_text()]
    if options.check and changed:
        sys.exit(f"{changed[0]} shows other results: run runs/results_page.py")
    for page in changed:
        page.write_text(filled[page])
