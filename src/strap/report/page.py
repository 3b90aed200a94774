"""A page about a retrieval: pictures as PNG, and one self-contained `report.html`."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from strap.atomic import replacing
from strap.datasets.base import Dataset
from strap.embeddings import choose_cameras
from strap.errors import StrapError
from strap.extras import missing_extra
from strap.progress import Progress, silent
from strap.report import figures
from strap.runs import Run
from strap.scores import Score

CSS = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2733; max-width: 62rem; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
img { max-width: 100%; } .muted { color: #667; }
table { border-collapse: collapse; font-size: .86rem; width: 100%; }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid #dde3ea; }
td:last-child { min-width: 16rem; } td.n { text-align: right; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
.numbers { display: flex; gap: 2.5rem; margin: 1.2rem 0; flex-wrap: wrap; }
.numbers div { font-size: .85rem; color: #556; } .numbers b { display: block; font-size: 1.5rem;
       color: #1d2733; font-weight: 600; }
"""


def write_report(
    run: Run,
    target: Dataset,
    priors: Sequence[Dataset],
    *,
    precision: Score | None = None,
    title: str = "Retrieval report",
    progress: Progress = silent,
) -> Path:
    """Draw the pictures into the run folder and write `report.html` beside them."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise missing_extra("the report needs matplotlib", "report") from error
    if not len(run.matches):
        raise StrapError(f"'{run.path}' has no matches to report")
    by_name = run.matches.locate(priors)
    camera = choose_cameras(target, run.manifest["arguments"]["cameras"] or None)[0]
    lengths = {
        (match.dataset, match.segment.trajectory_id): by_name[match.dataset][
            match.segment.trajectory_id
        ].length
        for match in run.matches
    }
    drawings: dict[str, Callable[[], Any]] = {
        "matches": lambda: figures.styled(
            figures.contact_sheet, run.matches, target, by_name, camera
        ),
        "tasks": lambda: figures.styled(figures.task_distribution, run.matches),
        "positions": lambda: figures.styled(figures.match_distribution, run.matches, lengths),
    }
    files = {}
    for done, (name, draw) in enumerate(drawings.items()):
        progress("drawing", done, len(drawings))
        files[name] = run.path / f"{name}.png"
        with replacing(files[name]) as temporary:
            draw().savefig(temporary, format="png", dpi=150)
    progress("drawing", len(drawings), len(drawings))
    page = run.path / "report.html"
    with replacing(page) as temporary:
        temporary.write_text(_page(run, files, precision, title), encoding="utf-8")
    return page


def _page(run: Run, files: Mapping[str, Path], precision: Score | None, title: str) -> str:
    arguments = run.manifest["arguments"]
    numbers = {
        "queries": str(run.manifest["queries"]),
        "matches": str(len(run.matches)),
        "prior tasks": str(len({match.instruction for match in run.matches})),
        "seconds": f"{sum(run.manifest['seconds'].values()):.1f}",
    }
    if precision:
        numbers["skill precision"] = f"{precision.value:.0%}"
        numbers["at random"] = f"{precision.random:.0%}"
    about = html.escape(
        f"{arguments['encoder']}, steps {arguments['steps']}, {arguments['metric']}"
    )
    numbers = {name: html.escape(value) for name, value in numbers.items()}
    body = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p class=muted>{html.escape(Path(arguments['target']).name)} against "
        f"{html.escape(', '.join(Path(p).name for p in arguments['prior']))} · {about}</p>",
        "<div class=numbers>",
        *(f"<div><b>{value}</b>{name}</div>" for name, value in numbers.items()),
        "</div>",
        _section("Queries and their best matches", files["matches"]),
        _section("Where the matches come from", files["tasks"]),
        _section("Where in their trajectories they lie", files["positions"]),
        "<h2>All matches</h2>",
        _table(run),
    ]
    head = f"<meta charset=utf-8><title>{html.escape(title)}</title><style>{CSS}</style>"
    return f"<!doctype html><html lang=en><head>{head}</head><body>{''.join(body)}</body></html>"


def _section(heading: str, picture: Path) -> str:
    data = base64.b64encode(picture.read_bytes()).decode()
    image = f'<img alt="{html.escape(heading)}" src="data:image/png;base64,{data}">'
    return f"<h2>{html.escape(heading)}</h2>{image}"


def _table(run: Run) -> str:
    rows = [
        f"<tr><td>{html.escape(str(m.query))}<td class=n>{m.rank}<td class=n>{m.cost:.4g}"
        f"<td>{html.escape(str(m.segment))}<td>{html.escape(m.instruction)}</tr>"
        for m in run.matches
    ]
    head = "<tr><th>query<th>rank<th>cost<th>match<th>instruction</tr>"
    return f"<div class=wide><table>{head}{''.join(rows)}</table></div>"
