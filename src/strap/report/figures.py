"""Pictures of a retrieval, as matplotlib figures fit for a paper."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from strap.datasets.base import Dataset
from strap.errors import printable
from strap.types import Match, Matches, Segment

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREY = "#3b6ea5", "#d9822b", "#8a8f98"
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "figure.dpi": 150,
    "savefig.bbox": "tight",
    "text.parse_math": False,  # instructions are texts, dollar signs included
}


def make_figure(width: float, height: float) -> Figure:
    """Return an empty figure of so many inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def styled(draw: Any, *arguments: Any, **options: Any) -> Figure:
    """Call a drawing function under the house style, leaving the user's settings alone."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        figure: Figure = draw(*arguments, **options)
        return figure


def task_distribution(matches: Matches, *, top: int = 15) -> Figure:
    """How many matches come from which prior task, most first."""
    from matplotlib.ticker import MaxNLocator

    counts = Counter(match.instruction or "(no instruction)" for match in matches)
    rows = counts.most_common(top)
    rest = len(matches) - sum(count for _, count in rows)
    if rest:
        rows.append((f"{len(counts) - top} other tasks", rest))
    names = [textwrap.fill(printable(name), 52) for name, _ in rows]
    figure = make_figure(6.5, 0.6 + 0.32 * len(rows))
    axes = figure.add_subplot()
    values = [count for _, count in rows]
    bars = axes.barh(range(len(rows)), values, color=BLUE, height=0.7)
    axes.bar_label(bars, padding=3, fontsize=8)
    axes.set_yticks(range(len(rows)), names, fontsize=8)
    axes.invert_yaxis()
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("retrieved segments")
    axes.set_title("Tasks distribution", loc="left")
    return figure


def match_distribution(matches: Matches, lengths: Mapping[tuple[str, str], int]) -> Figure:
    """Where in their trajectories the matches lie: one line each, and starts and ends as counts.

    Args:
        matches: what was retrieved.
        lengths: (dataset, trajectory id) -> frames.
    """
    spans = np.array([_span(match, lengths) for match in matches])
    order = np.lexsort((spans[:, 1], spans[:, 0]))
    figure = make_figure(6.5, 3.6)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    upper.hlines(np.arange(len(spans)), spans[order, 0], spans[order, 1], color=BLUE, lw=1.4)
    upper.set_ylabel("match")
    upper.set_title("Match distribution", loc="left")
    bins = np.linspace(0, 1, 21)
    lower.hist(spans[:, 0], bins, color=BLUE, alpha=0.85, label="start")
    lower.hist(spans[:, 1], bins, color=ORANGE, alpha=0.65, label="end")
    lower.set_xlabel("position in the prior trajectory")
    lower.set_ylabel("count")
    lower.set_xlim(0, 1)
    lower.legend(frameon=False, ncols=2, fontsize=8)
    return figure


def _span(match: Match, lengths: Mapping[tuple[str, str], int]) -> tuple[float, float]:
    length = lengths[match.dataset, match.segment.trajectory_id]
    return match.segment.start / length, match.segment.stop / length


def contact_sheet(
    matches: Matches,
    target: Dataset,
    priors: Mapping[str, Dataset],
    camera: str,
    *,
    queries: int = 6,
    ranks: int = 2,
    frames: int = 5,
) -> Figure:
    """Queries and their best matches side by side: a row per query, evenly spaced frames.

    Shown are the queries of one demonstration, in order, where enough of them have a match.
    """
    chosen = telling_queries(matches, queries)
    several = sum(sum(m.query == query for m in matches) > 1 for query in chosen)
    ranks = ranks if 2 * several >= len(chosen) else 1
    width, limit = 11.0, 190 // (1 + ranks)  # inches, letters that fit above a strip
    shape = target[chosen[0].trajectory_id].camera(camera).shape
    strip = width / (1 + ranks) / frames * shape[1] / shape[2]  # height of one film strip
    figure = make_figure(width, (strip + 0.22) * len(chosen))
    rows = figure.subfigures(len(chosen), 1, squeeze=False)[:, 0]
    for row, query in zip(rows, chosen, strict=True):
        own = [match for match in matches if match.query == query][:ranks]
        parts = row.subfigures(1, 1 + ranks, wspace=0.02)
        source = target[query.trajectory_id]
        label = f"query {query}: {source.instruction}"
        _film(
            parts[0], source.frames(camera, query.start, query.stop), label, ORANGE, frames, limit
        )
        for part, match in zip(parts[1:], own, strict=False):
            trajectory = priors[match.dataset][match.segment.trajectory_id]
            images = trajectory.frames(camera, match.segment.start, match.segment.stop)
            text = f"#{match.rank}, cost {match.cost:.4g}: {match.instruction}"
            _film(part, images, text, BLUE, frames, limit)
    return figure


def telling_queries(matches: Matches, count: int) -> list[Segment]:
    """Up to `count` queries: those of the demonstration that has most, else evenly spaced ones."""
    own = Counter(query.trajectory_id for query in matches.queries)
    name, most = max(own.items(), key=lambda item: item[1])
    if most >= min(count, 3):
        return [query for query in matches.queries if query.trajectory_id == name][:count]
    items = matches.queries
    places = np.unique(np.linspace(0, len(items) - 1, min(count, len(items))).round().astype(int))
    return [items[i] for i in places]


def _film(part: Any, images: Any, label: str, colour: str, frames: int, limit: int) -> None:
    chosen = np.linspace(0, len(images) - 1, frames).round().astype(int)
    strip = np.concatenate([images[i] for i in chosen], axis=1)
    axes = part.add_subplot()
    axes.imshow(strip, interpolation="antialiased")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set(visible=True, color=colour, linewidth=1.5)
    axes.set_title(
        textwrap.shorten(printable(label), limit, placeholder="…"),
        fontsize=6.5,
        fontweight="normal",
        pad=2,
    )
