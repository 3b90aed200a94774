"""Draw an experiment's figures: success with intervals, K sweep, origins of the matches."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import TYPE_CHECKING, Any

from strap.errors import printable
from strap.experiments.cells import Column
from strap.experiments.summary import SuccessCount, Summary
from strap.figures.style import BLUE, GREY, ORANGE, make_figure
from strap.types import Matches

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN_TASKS = 4
"""number of prior tasks shown per target task"""


def success_figure(summary: Summary) -> Figure:
    """Draw the success rate of every column: the mean of the tasks, then each task."""
    panels: list[str | None] = [None, *summary.tasks]
    n_columns = min(4, len(panels))
    n_rows = -(-len(panels) // n_columns)
    height = 0.5 + 0.22 * len(summary.started_columns)
    figure = make_figure(2.4 * n_columns, height * n_rows + 0.3)
    labels = [printable(summary.label(column)) for column in summary.started_columns]
    grid = figure.subplots(n_rows, n_columns, sharex=True, sharey=True, squeeze=False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        for place, column in enumerate(summary.started_columns):
            count = summary.count(column, panel)
            rate = summary.mean(column) if panel is None else count.rate
            _draw_interval(axes, place, rate, count, ORANGE if panel is None else BLUE)
        axes.set_title("mean of tasks" if panel is None else printable(panel), loc="left")
        axes.set_yticks(range(len(labels)), labels, fontsize=7)
        axes.set_xlim(0, 100)
    grid[0, 0].set_ylim(len(labels) - 0.5, -0.5)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    for axes in grid[-1]:
        axes.set_xlabel("success, %")
    return figure


def _draw_interval(
    axes: Any, place: int, rate: float | None, count: SuccessCount, colour: str
) -> None:
    if rate is None:
        axes.text(2, place, "missing", va="center", fontsize=6, color=GREY)
        return
    low, high = (100 * value for value in count.interval)
    axes.plot([low, high], [place, place], color=colour, lw=1.5, alpha=0.6)
    axes.plot([100 * rate], [place], "o", color=colour, ms=4)


def sweep_columns(summary: Summary) -> dict[tuple[str, str | None], list[Column]]:
    """Return the columns of each method and encoder for which several K have all tasks."""
    groups: dict[tuple[str, str | None], list[Column]] = {}
    for column in summary.columns:
        if column.top_k is not None and summary.mean(column) is not None:
            groups.setdefault((column.method, column.encoder), []).append(column)
    return {name: columns for name, columns in groups.items() if len(columns) > 1}


def sweep_figure(summary: Summary) -> Figure:
    """Draw the mean success rate over K, with one line per method and encoder."""
    figure = make_figure(5, 3.2)
    axes = figure.add_subplot()
    for (method, _), columns in sweep_columns(summary).items():
        found = sorted(columns, key=lambda column: int(column.top_k or 0))
        places = [int(column.top_k or 0) for column in found]
        rates = [100 * (summary.mean(column) or 0.0) for column in found]
        intervals = [summary.count(column).interval for column in found]
        several = len({column.encoder for column in summary.columns if column.encoder}) > 1
        label = f"{method} {found[0].encoder}" if several else method
        (line,) = axes.plot(places, rates, "o-", ms=4, label=printable(label))
        axes.fill_between(
            places,
            [100 * low for low, _ in intervals],
            [100 * high for _, high in intervals],
            color=line.get_color(),
            alpha=0.15,
            lw=0,
        )
    for column in summary.columns:
        if column.top_k is None and (mean := summary.mean(column)) is not None:
            axes.axhline(100 * mean, color=GREY, lw=1, ls="--")
            axes.annotate(
                printable(column.method), (1, 100 * mean), xycoords=("axes fraction", "data")
            )
    swept = [column for columns in sweep_columns(summary).values() for column in columns]
    ticks = sorted({int(column.top_k or 0) for column in swept})
    axes.set_xscale("log")
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("K, retrieved segments")
    axes.set_ylabel("success, %")
    axes.legend(frameon=False, fontsize=8)
    return figure


def matches_figure(summary: Summary, column: Column) -> Figure:
    """Draw from which prior tasks a column's matches come, for every target task."""
    found = {task: file for task in summary.tasks if (file := _matches_of(summary, column, task))}
    n_rows = -(-len(found) // 2)
    figure = make_figure(9, 0.4 + 1.25 * n_rows)
    grid = figure.subplots(n_rows, min(2, len(found)), squeeze=False)
    for axes, (task, matches) in zip(grid.flat, found.items(), strict=False):
        counts = Counter(match.instruction or "(no instruction)" for match in matches)
        rows = counts.most_common(SHOWN_TASKS)
        if rest := len(matches) - sum(count for _, count in rows):
            rows.append((f"{len(counts) - SHOWN_TASKS} other tasks", rest))
        names = [textwrap.fill(printable(name), 44) for name, _ in rows]
        bars = axes.barh(range(len(rows)), [count for _, count in rows], color=BLUE, height=0.7)
        axes.bar_label(bars, padding=2, fontsize=6)
        axes.set_yticks(range(len(rows)), names, fontsize=5.5)
        axes.set_ylim(SHOWN_TASKS + 0.5, -0.5)
        axes.tick_params(axis="x", labelsize=6)
        axes.set_title(printable(f"{summary.label(column)}: {task}"), loc="left", fontsize=8)
    for axes in list(grid.flat)[len(found) :]:
        axes.set_visible(False)
    return figure


def has_matches(summary: Summary, column: Column) -> bool:
    """Return whether a finished cell of the column has matches."""
    return any(result.matches for result in summary.of(column))


def _matches_of(summary: Summary, column: Column, task: str) -> Matches | None:
    for result in summary.of(column, task):
        if result.matches is not None:
            return Matches.from_parquet(result.matches)
    return None
