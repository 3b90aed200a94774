"""Figures of a retrieval for a paper: the matches, their tasks, and their positions."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from strap.atomic import make_folder, replacing
from strap.datasets.base import Dataset
from strap.datasets.selection import space_evenly
from strap.errors import StrapError, printable, unknown
from strap.extras import missing_extra
from strap.features.cameras import compared_cameras
from strap.figures.style import BLUE, ORANGE, make_figure, styled
from strap.progress import Progress, silent
from strap.runs import Run
from strap.types import Array, Match, Matches, Segment

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAP = 3
"""Pixels of white between two frames of a strip."""
FIGURE_FORMATS = ("pdf", "png", "svg")
Tracing = Callable[[Match], Sequence[tuple[int, int]] | None]
"""a function from a match to its warping path: pairs (query frame, match frame), each counted from
the first frame; None if the match has no path"""


def write_figures(
    out: str | Path,
    run: Run,
    target: Dataset,
    priors: Sequence[Dataset],
    *,
    formats: Sequence[str] = ("pdf", "png"),
    trace: Tracing = lambda _: None,
    progress: Progress = silent,
) -> list[Path]:
    """Draw the matches, tasks and positions of a run, each as a file in every format.

    Args:
        out: the folder to write to.
        run: the run whose matches are drawn.
        target: the run's target.
        priors: the run's prior datasets.
        formats: some of `FIGURE_FORMATS`.
        trace: returns the warping path of a match, along which its frames are chosen.
        progress: called with (what, done, total).
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise missing_extra("figures need matplotlib", "figures") from error
    for wrong in sorted(set(formats) - set(FIGURE_FORMATS)):
        raise unknown("format of figures", wrong, FIGURE_FORMATS)
    if not len(run.matches):
        raise StrapError(f"'{run.path}' has no matches to draw")
    by_name = run.matches.locate(priors)
    camera = compared_cameras(run.manifest, target)[0]
    cameras = {name: compared_cameras(run.manifest, prior)[0] for name, prior in by_name.items()}
    shown = run.matches, target, by_name, camera
    lengths = {
        (match.dataset, match.segment.trajectory_id): by_name[match.dataset][
            match.segment.trajectory_id
        ].length
        for match in run.matches
    }
    drawings: dict[str, Callable[[], Figure]] = {
        "matches": lambda: styled(contact_sheet, *shown, prior_cameras=cameras, trace=trace),
        "tasks": lambda: styled(task_distribution, run.matches),
        "positions": lambda: styled(match_distribution, run.matches, lengths),
    }
    out, files = Path(out).expanduser(), []
    make_folder(out)
    for done, (name, draw) in enumerate(drawings.items()):
        progress("drawing", done, len(drawings))
        figure = draw()
        for kind in formats:
            files.append(out / f"{name}.{kind}")
            with replacing(files[-1]) as temporary:
                figure.savefig(temporary, format=kind, dpi=150)
    progress("drawing", len(drawings), len(drawings))
    return files


def task_distribution(matches: Matches, *, top: int = 15) -> Figure:
    """Draw the number of matches from each prior task, highest first."""
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
    """Draw the positions of the matches in their trajectories: a line for each, and histograms.

    Args:
        matches: the retrieved matches.
        lengths: (dataset, trajectory id) -> number of frames.
    """
    from matplotlib.ticker import MaxNLocator

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
    for axes in (upper, lower):
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
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
    prior_cameras: Mapping[str, str] | None = None,
    queries: int = 6,
    ranks: int = 2,
    frames: int = 5,
    trace: Tracing = lambda _: None,
) -> Figure:
    """Draw queries and their best matches, a row per query.

    A row has evenly spaced frames of the query and the frames that the matches' paths pair with
    them. The queries are those of `representative_queries`.

    Args:
        matches: the retrieved matches.
        target: the target dataset.
        priors: name -> prior dataset.
        camera: the camera of the target to show.
        prior_cameras: prior's name -> its camera; by default `camera`.
        queries: maximum number of queries.
        ranks: number of matches of each query; 1 if most queries have only one.
        frames: number of frames of each query.
        trace: returns the warping path of a match.
    """
    chosen = representative_queries(matches, queries)
    several = sum(sum(m.query == query for m in matches) > 1 for query in chosen)
    ranks = ranks if 2 * several >= len(chosen) else 1
    graded = has_costs(matches)
    width, limit = 11.0, 190 // (1 + ranks)  # inches, letters that fit above a strip
    shape = target[chosen[0].trajectory_id].camera(camera).shape
    strip = width / (1 + ranks) / frames * shape[1] / shape[2]  # height of one film strip
    figure = make_figure(width, (strip + 0.22) * len(chosen))
    rows = figure.subfigures(len(chosen), 1, squeeze=False)[:, 0]
    for row, query in zip(rows, chosen, strict=True):
        best = [match for match in matches if match.query == query][:ranks]
        parts = row.subfigures(1, 1 + ranks, wspace=0.02)
        source = target[query.trajectory_id]
        label = f"query {query}: {source.instruction}"
        shown = _space_frames(len(query), frames)
        images = source.frames(camera, query.start, query.stop)
        _draw_film(parts[0], images[shown], label, ORANGE, limit)
        for part, match in zip(parts[1:], best, strict=False):
            trajectory = priors[match.dataset][match.segment.trajectory_id]
            shown_camera = (prior_cameras or {}).get(match.dataset, camera)
            images = trajectory.frames(shown_camera, match.segment.start, match.segment.stop)
            cost = f", cost {match.cost_per_frame:.3g} a frame" if graded else ""
            text = f"#{match.rank}{cost}: {match.instruction}"
            paired = pair_frames(trace(match), shown, len(query), len(images))
            _draw_film(part, images[paired], text, BLUE, limit)
    return figure


def has_costs(matches: Matches) -> bool:
    """Return whether the matches were compared; those of method `random` all cost 0."""
    return any(match.cost for match in matches)


def representative_queries(matches: Matches, count: int) -> list[Segment]:
    """Return up to `count` queries with matches.

    They are from the demonstration with the most queries, if it has at least `count` or 3 of them;
    otherwise they are spaced evenly over all queries.
    """
    counts = Counter(query.trajectory_id for query in matches.queries)
    name, most = max(counts.items(), key=lambda item: item[1])
    if most >= min(count, 3):
        return [query for query in matches.queries if query.trajectory_id == name][:count]
    items = matches.queries
    return [items[place] for place in space_evenly(len(items), count)]


def _space_frames(length: int, count: int) -> Array:
    return np.linspace(0, length - 1, count).round().astype(int)


def pair_frames(
    path: Sequence[tuple[int, int]] | None, shown: Array, n_query: int, n_match: int
) -> Array:
    """Return the frame of a match to show beside each shown frame of its query.

    It is the last frame that the path pairs with the query frame, or with an earlier one if the
    path skips the query frame. Without a path, it is the frame at the same relative time.
    """
    if path is None:
        return np.round(np.asarray(shown) * (n_match - 1) / max(1, n_query - 1)).astype(int)
    query, match = np.array([pair[:2] for pair in path]).T
    paired: Array = match[np.searchsorted(query, shown, side="right") - 1]
    return paired


def _draw_film(part: Any, images: Array, label: str, colour: str, limit: int) -> None:
    spaced = np.pad(images, ((0, 0), (0, 0), (0, GAP), (0, 0)), constant_values=255)
    strip = np.concatenate(list(spaced), axis=1)[:, :-GAP]
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
