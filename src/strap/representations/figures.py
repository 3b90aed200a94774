"""Figures of a representation: its reconstructions, and the frames that it finds similar."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from strap.atomic import replacing
from strap.datasets.base import Dataset
from strap.datasets.selection import space_evenly
from strap.errors import StrapError, printable
from strap.representations.representation import Representation
from strap.representations.samples import Samples, choose_camera, read_trajectory
from strap.representations.settings import RepresentationSettings
from strap.store import EmbeddingStore
from strap.types import Array

Panel = tuple[Array, str]
"""an image and its title"""
SLOW = 0.2
"""pixels per frame; a flow that is slower everywhere looks dim"""


def reconstruction_figure(
    representation: Representation, dataset: Dataset, out_png: str | Path, *, rows: int = 6
) -> Path:
    """Draw frames of a dataset, or their flow, beside their reconstructions.

    Flow is drawn in colours: the hue is its direction, the brightness its speed.
    """
    settings, kind = representation.settings, representation.kind
    camera, panels = choose_camera(dataset, settings), list[list[Panel]]()
    for key in _space_ids(dataset.ids, rows):
        samples = read_trajectory(dataset[key], camera, kind, settings)
        middle = len(samples) // 2
        rows_shown = slice(middle, middle + 1)
        sample = Samples(samples.pictures[rows_shown], samples.actions[rows_shown])
        pictures = [sample.pictures[0], representation.reconstruct(sample)[0]]
        if kind == "fr":
            fastest = max(float(np.abs(pictures[0]).max()), SLOW)
            pictures = [flow_colours(flow, fastest) for flow in pictures]
        panels.append([(pictures[0], f"{key}, frame {middle}"), (pictures[1], "reconstruction")])
    return _draw(panels, Path(out_png))


def neighbours_figure(
    store_target: EmbeddingStore,
    stores_prior: Sequence[EmbeddingStore],
    datasets: Sequence[Dataset],
    out_png: str | Path,
    *,
    rows: int = 6,
    neighbours: int = 4,
    camera: str | None = None,
) -> Path:
    """Draw target frames with the prior frames of the highest cosine similarity.

    Args:
        store_target: vectors of the target's frames.
        stores_prior: vectors of the prior's frames, by the same representation.
        datasets: the datasets of the stores, in any order.
        out_png: the file to write.
        rows: number of target frames.
        neighbours: number of prior frames for each. Each is from another trajectory, and none from
            a copy of the target frame's trajectory.
        camera: the camera whose images are drawn; by default the agent view.
    """

    def frame_of(store: EmbeddingStore, key: str, frame: int) -> Array:
        return _frame(store, datasets, key, frame, camera)

    panels = []
    for key in _space_ids(store_target.ids, rows):
        entry, frame = store_target.entry(key), store_target.entry(key).length // 2
        query = store_target[key][frame]
        row = [(frame_of(store_target, key, frame), f"target {key}, frame {frame}")]
        found: list[tuple[float, EmbeddingStore, str, int]] = []
        for store in stores_prior:
            for other in store.ids:
                if store.entry(other).fingerprint != entry.fingerprint:
                    similarity = cosine_similarity(query, store[other])
                    best = int(similarity.argmax())
                    found.append((float(similarity[best]), store, other, best))
        for highest, store, other, best in sorted(found, key=lambda f: -f[0])[:neighbours]:
            row.append((frame_of(store, other, best), f"{highest:.3f}: {other}, {best}"))
        panels.append(row)
    return _draw(panels, Path(out_png))


def cosine_similarity(query: Array, vectors: Array) -> Array:
    """Return the cosine similarity [n] of a vector [d] with each of the vectors [n d]."""
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
    return np.asarray(vectors @ query / np.maximum(lengths, 1e-12))


def flow_colours(flow: Array, fastest: float) -> Array:
    """Return colours [h w 3] from 0 to 1 for a flow [h w 2]: hue is direction, brightness speed."""
    from matplotlib.colors import hsv_to_rgb

    flow = np.asarray(flow, np.float32)
    hue = (np.arctan2(flow[..., 1], flow[..., 0]) / (2 * np.pi)) % 1
    speed = np.minimum(np.linalg.norm(flow, axis=-1) / fastest, 1)
    return np.asarray(hsv_to_rgb(np.stack([hue, np.ones_like(hue), speed], axis=-1)))


def _space_ids(ids: Sequence[str], count: int) -> list[str]:
    return [ids[place] for place in space_evenly(len(ids), count)]


def _frame(
    store: EmbeddingStore, datasets: Sequence[Dataset], key: str, frame: int, camera: str | None
) -> Array:
    for dataset in datasets:
        if dataset.name == store.dataset:
            chosen = choose_camera(dataset, RepresentationSettings(camera=camera))
            image: Array = dataset[key].frames(chosen, frame, frame + 1)[0]
            return image
    raise StrapError(
        f"store '{store.path}' was made from '{store.dataset}', which is not among the "
        "given datasets: give that dataset too"
    )


def _draw(panels: Sequence[Sequence[Panel]], out: Path) -> Path:
    from matplotlib.figure import Figure

    columns = max(map(len, panels))
    figure = Figure(figsize=(2 * columns, 2.2 * len(panels)), layout="constrained")
    grid: Any = figure.subplots(len(panels), columns, squeeze=False)
    for row, shown in zip(grid, panels, strict=True):
        for axes in row:
            axes.set_axis_off()
        for axes, (picture, label) in zip(row, shown, strict=False):
            axes.imshow(picture)
            axes.set_title(printable(label), fontsize=7, parse_math=False)
    with replacing(out) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
    return out
