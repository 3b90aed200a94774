"""Put the tables of `runs/results` between the markers of docs/results.md.

    python runs/results_page.py            write them
    python runs/results_page.py --check    say whether the page holds them as they are

A marker names an experiment and a part of its report: `<!-- main_table: Paired tests -->`; the part
"Successes" is the first table. What stands between it and the next `<!-- end -->` is replaced.
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
from strap.experiments.result_tables import format_markdown
from strap.experiments.summary import Summary

RUNS = Path(__file__).resolve().parent
PAGE = RUNS.parent / "docs" / "results.md"
MARKED = re.compile(r"<!-- (\w+): ([\w ]+) -->\n((?!<!-- ).)*<!-- end -->", re.DOTALL)
MARKER = re.compile(r"<!-- (?:end|\w+: [\w ]+) -->")


def read_parts(name: str) -> dict[str, str]:
    """Return the parts of an experiment's report by their headings."""
    known = {command: list_options(command) for command in EXPERIMENT_COMMANDS}
    experiment = read_experiment(RUNS / f"{name}.toml", known)
    cells = list_cells(experiment)
    report = format_markdown(
        Summary(experiment, cells, read_results(cells, RUNS / "results" / name))
    )
    first, *others = report.split("\n## ")
    _, _, table = first.partition("\n| ")
    parts = {"Successes": f"| {table}"}
    for other in others:
        heading, _, text = other.partition("\n")
        parts[heading] = text
    return parts


def fill_page(page: str) -> str:
    """Return the page with the reports' parts between its markers."""
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
    parser.add_argument("--page", type=Path, default=PAGE, help="another page than docs/results.md")
    options = parser.parse_args()
    before = options.page.read_text()
    after = fill_page(before)
    if not options.check:
        options.page.write_text(after)
    elif after != before:
        sys.exit(f"{options.page} shows other results: run runs/results_page.py")
