"""Format an experiment's results: Markdown for a page, CSV for a program, LaTeX for a paper."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

from strap.experiments.cells import Column
from strap.experiments.summary import MIN_TASKS, Paired, SuccessCount, Summary, count_pairs

MISSING = "missing"


def format_markdown(summary: Summary) -> str:
    """Return the page: successes, the paper's rates, paired tests, missing cells, costs."""
    experiment = summary.experiment
    first, stop = experiment.states
    lines = [f"# {experiment.name}", ""]
    lines += [
        f"Successful rollouts on {experiment.suite}'s fixed initial states {first} to {stop - 1}, "
        "with Wilson's 95 % interval in brackets. The mean is that of the tasks' success rates, if "
        "every task was run; its interval is that of all rollouts pooled.",
        "",
        *_markdown_table(_success_rows(summary)),
        "",
    ]
    if experiment.paper:
        lines += ["## Compared with the paper", "", "Success in per cent: ours / the paper's.", ""]
        lines += [*_markdown_table(_paper_rows(summary)), ""]
    if paired := summary.comparisons():
        lines += [
            "## Paired tests",
            "",
            "A pair is two rollouts of the same task, demonstrations, seed and initial state. "
            "*points*: the difference of the success rates in percentage points; *only it*: "
            "initial states that only the method solved; *p over states*: McNemar's exact test; *p "
            f"over tasks*: the sign-flip test of the tasks' differences, for {MIN_TASKS} or more "
            "tasks. "
            "Neither p is corrected for the number of comparisons.",
            "",
            *_markdown_table(_comparison_rows(summary, paired)),
            "",
        ]
    lines += _missing_lines(summary) + _cost_lines(summary)
    return "\n".join(lines) + "\n"


def _success_rows(summary: Summary) -> list[list[str]]:
    columns = summary.started_columns
    rows = [["task", *(summary.label(column) for column in columns)]]
    for task in summary.tasks:
        rows.append([task, *(format_count(summary.count(c, task)) for c in columns)])
    rows.append(["**mean**", *(_format_mean(summary, column) for column in columns)])
    if len(columns) > len(summary.tasks):  # a column for each method would be too wide to read
        rows = [list(row) for row in zip(*rows, strict=True)]
        rows[0][0] = "method"
    return rows


def format_count(count: SuccessCount) -> str:
    """Format a count with its interval: "10 / 20 (30 to 70 %)"."""
    if not count.trials:
        return MISSING if count.expected else "–"
    low, high = count.interval
    return f"{count.successes} / {count.trials} ({100 * low:.0f} to {100 * high:.0f} %)"


def _format_mean(summary: Summary, column: Column) -> str:
    mean = summary.mean(column)
    if mean is None:
        return _format_finished_tasks(summary, column)
    low, high = summary.count(column).interval
    return f"**{100 * mean:.1f} %** ({100 * low:.0f} to {100 * high:.0f} %)"


def _paper_rows(summary: Summary) -> list[list[str]]:
    experiment = summary.experiment
    columns = [c for c in summary.started_columns if experiment.published(c.method, c.top_k)]
    rows = [["task", *(summary.label(column) for column in columns)]]
    for task in summary.tasks:
        values = [
            f"{_percent(summary.count(c, task).rate)} / {_published(summary, c, task)}"
            for c in columns
        ]
        rows.append([task, *values])
    means = []
    for column in columns:
        rates = experiment.published(column.method, column.top_k)
        known = [rates[task] for task in summary.tasks if task in rates]
        paper = f"{sum(known) / len(known):.1f}" if len(known) == len(summary.tasks) else "–"
        mean = summary.mean(column)
        ours = _format_finished_tasks(summary, column) if mean is None else _percent(mean)
        means.append(f"{ours} / {paper}")
    return [*rows, ["**mean**", *means]]


def _format_finished_tasks(summary: Summary, column: Column) -> str:
    there = sum(summary.count(column, task).trials > 0 for task in summary.tasks)
    return f"{there} of {len(summary.tasks)} tasks"


def _published(summary: Summary, column: Column, task: str) -> str:
    rate = summary.experiment.published(column.method, column.top_k).get(task)
    return "–" if rate is None else f"{rate:g}"


def _percent(rate: float | None) -> str:
    return MISSING if rate is None else f"{100 * rate:.1f}"


def _comparison_rows(summary: Summary, paired: Sequence[Paired]) -> list[list[str]]:
    rows = [
        ["method", "against", "pairs", "points", "only it", "only the other"]
        + ["p over states", "p over tasks", "worst task"]
    ]
    for pair in paired:
        worst, over_tasks = pair.worst_task, pair.p_over_tasks
        rows.append(
            [
                summary.label(pair.column),
                summary.label(pair.reference),
                str(pair.pairs),
                f"{100 * pair.difference:+.1f}",
                str(pair.comparison.first_only),
                str(pair.comparison.second_only),
                f"{pair.comparison.p_value:.2g}",
                "–" if over_tasks is None else f"{over_tasks:.2g}",
                f"{worst[0]} {100 * worst[1]:+.0f}" if worst else "–",
            ]
        )
    return rows


def _missing_lines(summary: Summary) -> list[str]:
    missing = summary.missing
    if not missing:
        return []
    groups: dict[tuple[str, int], list[str]] = {}
    for cell in missing:
        groups.setdefault((cell.name.partition("/")[2], cell.seed), []).append(cell.task)
    lines = [
        f"- {label}: " + ("all tasks" if len(tasks) == len(summary.tasks) else ", ".join(tasks))
        for (label, _), tasks in groups.items()
    ]
    return ["## Missing", "", f"{len(missing)} of {len(summary.cells)} cells:", "", *lines, ""]


def _cost_lines(summary: Summary) -> list[str]:
    seconds: dict[str, list[float]] = {}
    versions: dict[str, dict[str, None]] = {}
    for result in summary.results:
        for kind in ("train", "evaluate"):
            if kind in result.manifest.get("seconds", {}):
                seconds.setdefault(kind, []).append(result.manifest["seconds"][kind])
        for package, version in result.manifest.get("versions", {}).items():
            versions.setdefault(package, {})[version] = None
    if not summary.results:
        return []
    words = {"train": "A training", "evaluate": "an evaluation"}
    costs = ", ".join(
        f"{words[kind]} took {sum(spent) / len(spent):.0f} s" for kind, spent in seconds.items()
    )
    listing = "; ".join(f"{package} {', '.join(found)}" for package, found in versions.items())
    sentences = [
        f"{costs} on average, while others ran." if costs else "",
        f"Made with {listing}.",
    ]
    return ["## Cost and versions", "", " ".join(s for s in sentences if s)]


def _markdown_table(rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    head, *body = (f"| {' | '.join(row)} |" for row in cells)
    return [head, "|" + "---|" * len(rows[0]), *body]


def format_csv(summary: Summary) -> str:
    """Return a CSV with one line per task and column, with all repetitions pooled."""
    rows: list[list[Any]] = [
        [
            *("task", "method", "top_k", "encoder", "cells", "expected_cells", "successes"),
            *("trials", "rate", "low", "high", "sub_goals", "paper"),
        ]
    ]
    for task in summary.tasks:
        for column in summary.columns:
            count = summary.count(column, task)
            found = summary.of(column, task)
            low, high = count.interval if count.trials else ("", "")
            goals = sum(result.partial for result in found) / len(found) if found else ""
            published = summary.experiment.published(column.method, column.top_k)
            rate = "" if count.rate is None else count.rate
            rows.append(
                [task, column.method, column.top_k, column.encoder, count.finished, count.expected]
                + [count.successes, count.trials, rate, low, high, goals, published.get(task, "")]
            )
    return _format_rows(rows)


def format_comparison_csv(summary: Summary) -> str:
    """Return a CSV with one line per pair of columns and task, and one for all tasks together."""
    head = ["method", "against", "task", "pairs", "both", "only_it", "only_other", "neither", "p"]
    head.append("p_over_tasks")
    rows: list[list[Any]] = [head]
    for paired in summary.comparisons():
        names = [summary.label(paired.column), summary.label(paired.reference)]
        for task, comparison in {**paired.by_task, "all": paired.comparison}.items():
            over_tasks = paired.p_over_tasks if task == "all" else None
            counts = [count_pairs(comparison), *astuple(comparison)]
            rows.append([*names, task, *counts, "" if over_tasks is None else over_tasks])
    return _format_rows(rows)


def _format_rows(rows: Sequence[Sequence[Any]]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue()


def format_latex(summary: Summary) -> str:
    """Return a `tabular` for booktabs: methods as rows, tasks as columns, rates in per cent."""
    tasks = summary.tasks
    head = " & ".join(["Method", *map(escape_latex, tasks), "Mean"])
    lines = [f"\\begin{{tabular}}{{l{'c' * (len(tasks) + 1)}}}", "\\toprule", f"{head} \\\\"]
    lines.append("\\midrule")
    for column in summary.started_columns:
        mean = summary.mean(column)
        cells = [_latex_rate(summary.count(column, task)) for task in tasks]
        cells.append("--" if mean is None else f"{100 * mean:.1f}")
        lines.append(f"{escape_latex(summary.label(column))} & {' & '.join(cells)} \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _latex_rate(count: SuccessCount) -> str:
    if count.rate is None:
        return "--"
    low, high = count.interval
    return f"${100 * count.rate:.1f}\\,[{100 * low:.0f}, {100 * high:.0f}]$"


def escape_latex(text: str) -> str:
    r"""Escape LaTeX's special characters in a text.

    >>> escape_latex("D_S & 5 %")
    'D\\_S \\& 5 \\%'
    """
    special = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
    special |= {c: f"\\{c}" for c in "&%$#_{}"}
    return "".join(special.get(c, c) for c in text)
