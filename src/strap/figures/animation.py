"""An animation of queries and their best matches, played along their warping paths."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from strap.atomic import replacing
from strap.datasets.base import Dataset
from strap.datasets.selection import space_evenly
from strap.errors import StrapError, printable, unknown
from strap.features.cameras import compared_cameras
from strap.figures.retrieval import Tracing, pair_frames, representative_queries
from strap.figures.style import BLUE, ORANGE
from strap.progress import Progress, silent
from strap.runs import Run
from strap.types import Array

MOVIE_SUFFIXES = (".webp", ".gif")
STEPS, MILLISECONDS = 48, 60
"""number of moments in the animation, and how long each is shown"""
TILE_SIDE, GAP, TEXT = 160, 10, 30
"""pixels: a tile's longer side, the gap between tiles, the height of the two lines above a tile"""
PAPER, INK = "#ffffff", "#1d2733"
FONT_SIZE = 11


@dataclass(frozen=True)
class Tile:
    """One film of the animation: a frame for each moment."""

    images: Array
    """[moment h w 3]"""
    text: str
    colour: str


def write_moving_picture(
    path: str | Path,
    run: Run,
    target: Dataset,
    priors: Sequence[Dataset],
    *,
    queries: int = 3,
    ranks: int = 3,
    trace: Tracing = lambda _: None,
    progress: Progress = silent,
) -> Path:
    """Write an animation with a row for each query: the query, and beside it its best matches.

    Args:
        path: a .webp or .gif file.
        run: the run whose matches are shown.
        target: the run's target.
        priors: the run's prior datasets.
        queries: number of queries, spread over a demonstration.
        ranks: number of matches of each query.
        trace: returns the warping path of a match.
        progress: called with (what, done, total).
    """
    path = Path(path).expanduser()
    if path.suffix.lower() not in MOVIE_SUFFIXES:
        raise unknown("kind of animation", path.suffix or path.name, MOVIE_SUFFIXES)
    if not len(run.matches):
        raise StrapError(f"'{run.path}' has no matches to show")
    rows = _collect(run, target, priors, queries, ranks, trace)
    moments = []
    for moment in range(STEPS):
        progress("drawing moments", moment, STEPS)
        moments.append(_draw(rows, moment))
    progress("drawing moments", STEPS, STEPS)
    timing = {"duration": MILLISECONDS, "loop": 0}
    with replacing(path) as temporary:
        if path.suffix.lower() == ".gif":
            frames = _quantize_jointly(moments)
            frames[0].save(temporary, "GIF", save_all=True, append_images=frames[1:], **timing)
        else:
            moments[0].save(
                temporary,
                "WEBP",
                save_all=True,
                append_images=moments[1:],
                quality=70,
                method=4,
                **timing,
            )
    return path


def _quantize_jointly(moments: Sequence[Image.Image]) -> list[Image.Image]:
    """Return the images in one palette: a GIF with a palette for each is five times as large."""
    samples = np.concatenate([np.asarray(moment) for moment in moments[:: STEPS // 6]])
    palette = Image.fromarray(samples).quantize()
    return [moment.quantize(palette=palette, dither=Image.Dither.NONE) for moment in moments]


def _collect(
    run: Run, target: Dataset, priors: Sequence[Dataset], queries: int, ranks: int, trace: Tracing
) -> list[list[Tile]]:
    by_name = run.matches.locate(priors)
    camera = compared_cameras(run.manifest, target)[0]
    cameras = {name: compared_cameras(run.manifest, prior)[0] for name, prior in by_name.items()}
    rows = []
    candidates = representative_queries(run.matches, len(run.matches.queries))
    for query in (candidates[place] for place in space_evenly(len(candidates), queries)):
        shown = np.linspace(0, len(query) - 1, STEPS).round().astype(int)
        images = target[query.trajectory_id].frames(camera, query.start, query.stop)
        text = f"your demonstration, frames {query.start} to {query.stop}"
        row = [Tile(_resize(images[shown]), text, ORANGE)]
        for match in [match for match in run.matches if match.query == query][:ranks]:
            trajectory = by_name[match.dataset][match.segment.trajectory_id]
            found = match.segment
            images = trajectory.frames(cameras[match.dataset], found.start, found.stop)
            chosen = pair_frames(trace(match), shown, len(query), len(images))
            row.append(Tile(_resize(images[chosen]), match.instruction, BLUE))
        rows.append(row)
    return rows


def _resize(images: Array) -> Array:
    """Return the images resized so that their longer side has `TILE_SIDE` pixels."""
    height, width = images.shape[1:3]
    scale = TILE_SIDE / max(height, width)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return np.stack([np.asarray(Image.fromarray(image).resize(size)) for image in images])


def _draw(rows: Sequence[Sequence[Tile]], moment: int) -> Image.Image:
    height, width = rows[0][0].images.shape[1:3]
    columns = max(map(len, rows))
    step = GAP + width, GAP + TEXT + height
    sheet = Image.new("RGB", (GAP + columns * step[0], GAP + len(rows) * step[1]), PAPER)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(FONT_SIZE)
    letters = int(width / pen.textlength("n", font=font))
    for row, tiles in enumerate(rows):
        for column, tile in enumerate(tiles):
            x, y = GAP + column * step[0], GAP + row * step[1]
            lines = textwrap.wrap(printable(tile.text), letters, max_lines=2, placeholder=" …")
            pen.multiline_text((x, y), "\n".join(lines), INK, font, spacing=2)
            image = Image.fromarray(tile.images[moment])
            sheet.paste(image, (x, y + TEXT))
            corner = x + image.width - 1, y + TEXT + image.height - 1
            pen.rectangle(((x, y + TEXT), corner), outline=tile.colour, width=2)
    return sheet
