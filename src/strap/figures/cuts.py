"""A figure of a segmentation: movement, threshold and cuts of each demonstration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from strap.atomic import replacing
from strap.datasets.base import Dataset
from strap.datasets.selection import space_evenly
from strap.errors import StrapError, printable, unknown
from strap.extras import missing_extra
from strap.figures.style import BLUE, ORANGE, make_figure, styled
from strap.segments import Cuts, Segmentation
from strap.stop_frames import Movements, measure_movements
from strap.types import Segment

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURE_SUFFIXES = (".png", ".pdf", ".svg")
MAX_DEMONSTRATIONS = 12
"""how many demonstrations are drawn; of a larger dataset, evenly spaced ones"""
SHADE = "0.93"
"""background grey of every second segment"""


def write_cuts_figure(path: str | Path, dataset: Dataset, cuts: Cuts) -> Path:
    """Draw the cuts of a dataset, a row per demonstration.

    Args:
        path: the file to write, PNG, PDF or SVG.
        dataset: the dataset that was cut.
        cuts: the cuts. If they have no movements (windows, whole demonstrations), these are
            measured here.
    """
    path = Path(path).expanduser()
    if path.suffix.lower() not in FIGURE_SUFFIXES:
        raise unknown("kind of image file", path.suffix or path.name, FIGURE_SUFFIXES)
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise missing_extra("--plot needs matplotlib", "figures") from error
    movements = cuts.movements or _measure(dataset, cuts.segmentation)
    names = list(movements.values)
    chosen = [names[place] for place in space_evenly(len(names), MAX_DEMONSTRATIONS)]
    drawn = {name: movements.values[name] for name in chosen}
    movements = replace(movements, values=drawn)
    figure = styled(_draw, movements, cuts.segments, cuts.segmentation, len(dataset))
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:].lower(), dpi=150)
    return path


def _measure(dataset: Dataset, segmentation: Segmentation) -> Movements:
    """Return the movements of demonstrations whose cuts do not depend on them."""
    position, norm, unit = segmentation.position, segmentation.norm, segmentation.unit
    found = measure_movements(dataset, position=position, norm=norm, unit=unit)
    if found is None:
        raise StrapError(f"'{dataset.path}' has no demonstration to draw")
    return found


def _draw(
    movements: Movements, segments: Sequence[Segment], segmentation: Segmentation, count: int
) -> Figure:
    rows = movements.values
    figure = make_figure(7.5, 0.9 + 1.15 * len(rows))
    grid = figure.subplots(len(rows), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    epsilon = segmentation.epsilon if segmentation.method == "stops" else None
    for axes, (name, moved) in zip(grid, rows.items(), strict=True):
        of_demonstration = [segment for segment in segments if segment.trajectory_id == name]
        _draw_row(axes, moved, of_demonstration, epsilon)
        axes.set_title(
            f"{printable(name)}: {len(of_demonstration)} segments", loc="left", fontsize=8, pad=3
        )
    top = float(np.percentile(movements.pooled, 99)) if movements.pooled.size else 0.0
    top = max(top, 2 * epsilon if isinstance(epsilon, float) else 0.0)
    grid[0].set_ylim(0, 1.1 * top or 1.0)
    grid[-1].set_xlabel("frame")
    what = f"movement of {printable(movements.columns)}"
    figure.supylabel(f"{what}, {segmentation.norm} norm ({movements.unit})", fontsize=9)
    shown = "" if len(rows) == count else f"; {len(rows)} of {count} demonstrations"
    figure.suptitle(f"Where demonstrations are cut{shown}", fontsize=10, fontweight="bold")
    handles, labels = grid[0].get_legend_handles_labels()
    by_label = dict(zip(labels, handles, strict=True))
    figure.legend(
        by_label.values(), by_label.keys(), loc="outside lower center", ncols=3, frameon=False
    )
    return figure


def _draw_row(axes: Any, moved: Any, segments: Sequence[Segment], epsilon: object) -> None:
    """Draw one demonstration; line styles distinguish the lines without colour."""
    for number, segment in enumerate(segments):
        if number % 2:
            axes.axvspan(segment.start, segment.stop, color=SHADE, lw=0, zorder=0)
        if segment.start:
            axes.axvline(segment.start, color="black", lw=1.2, label="cut")
    axes.plot(np.arange(len(moved)), moved, color=BLUE, lw=0.9, label="movement")
    if isinstance(epsilon, float):
        axes.axhline(epsilon, color=ORANGE, lw=1.2, ls="--", label=f"threshold {epsilon:g}")
