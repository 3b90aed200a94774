"""The style of all figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    """Return an empty figure of `width` × `height` inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def styled(draw: Any, *arguments: Any, **options: Any) -> Figure:
    """Call a drawing function with STYLE in force, without changing the user's own settings."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        figure: Figure = draw(*arguments, **options)
        return figure
