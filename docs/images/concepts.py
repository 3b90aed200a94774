"""Draw the pictures of docs/concepts.md from the sample data, with the package's own functions.

`python docs/images/concepts.py --stores STORES` embeds the sample where STORES lacks it (minutes on
a CPU), then writes the pictures beside this file.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import strap
from strap import dtw
from strap.datasets.slicing import FRAMES_AFTER, FRAMES_BEFORE
from strap.figures.retrieval import contact_sheet
from strap.figures.style import BLUE, GREY, ORANGE, make_figure, styled
from strap.segments import Segmentation, cut_dataset
from strap.types import Array

HERE = Path(__file__).parent
SAMPLE = HERE.parents[1] / "samples" / "libero-mini"
CAMERA = "agentview_rgb"
DEMONSTRATION = "episode_000000"


def main() -> None:
    """Embed, retrieve, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stores", type=Path, required=True, help="where embeddings are kept")
    parser.add_argument("--encoder", default="efficientnet-lite0@96")
    parser.add_argument("--out", type=Path, default=HERE)
    options = parser.parse_args()
    target, prior = (strap.open_dataset(SAMPLE / name) for name in ("target/mug-mug", "prior"))
    stores = [
        strap.embed(dataset, options.encoder, options.stores / name)
        for name, dataset in (("target", target), ("prior", prior))
    ]
    matches = strap.retrieve(strap.segment(target), *stores, top_k=60)
    drawings = {
        "embedding.jpg": styled(draw_embedding, target, *stores, matches),
        "cutting.jpg": styled(draw_cutting, target),
        "warping.png": styled(draw_warping, *stores, matches),
        "found.jpg": styled(draw_matches, target, prior, *stores, matches),
        "augmented.png": styled(draw_augmented, target, prior, matches),
    }
    for name, figure in drawings.items():
        quality = {"pil_kwargs": {"quality": 88}} if name.endswith("jpg") else {}
        figure.savefig(options.out / name, dpi=130, **quality)
        print(options.out / name, f"{(options.out / name).stat().st_size / 1000:.0f} kB")


def best_of(matches: strap.Matches, place: int) -> strap.Match:
    """Return the best match of the demonstration's query at a place in its order."""
    queries = [query for query in matches.queries if query.trajectory_id == DEMONSTRATION]
    return next(match for match in matches if match.query == queries[place])


def show(axes: Any, image: Array, title: str, colour: str) -> None:
    """Draw one frame with a coloured border."""
    axes.imshow(image)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(title, fontsize=8, fontweight="normal", pad=2)
    for spine in axes.spines.values():
        spine.set(visible=True, color=colour, linewidth=1.5)


def draw_embedding(
    target: strap.Dataset,
    target_store: strap.EmbeddingStore,
    prior_store: strap.EmbeddingStore,
    matches: strap.Matches,
) -> Any:
    """Frames of a demonstration, and where their vectors lie among those of the prior."""
    own = np.asarray(target_store[DEMONSTRATION], np.float64)
    other = np.asarray(prior_store[best_of(matches, 0).segment.trajectory_id], np.float64)
    everything = np.concatenate([np.asarray(prior_store[key]) for key in prior_store.ids])
    mean = everything.mean(0, dtype=np.float64)
    directions = np.linalg.svd(np.concatenate([own, other]) - mean, full_matrices=False)[2][:2].T
    shown = np.linspace(0, len(own) - 1, 6).round().astype(int)
    figure = make_figure(7.5, 4.6)
    top, bottom = figure.subfigures(2, 1, height_ratios=[1, 2.4])
    for number, (axes, frame) in enumerate(zip(top.subplots(1, 6), shown, strict=True)):
        image = target[DEMONSTRATION].frames(CAMERA, frame, frame + 1)[0]
        show(axes, image, f"{number + 1}: frame {frame}", ORANGE)
    axes = bottom.subplots()
    flat = (everything - mean) @ directions
    axes.scatter(*flat.T, s=2, color="0.85", label="every frame of the prior")
    axes.plot(
        *((other - mean) @ directions).T, color=BLUE, lw=1.3, label="a trajectory of the prior"
    )
    line = (own - mean) @ directions
    axes.plot(*line.T, color=ORANGE, lw=1.3, label="a demonstration of the target")
    for number, frame in enumerate(shown):
        axes.annotate(
            str(number + 1), line[frame], ha="center", va="center", fontsize=8, color="white",
            bbox={"boxstyle": "circle,pad=0.2", "color": ORANGE},
        )  # fmt: skip
    axes.set(xlabel="first main direction", ylabel="second main direction")
    axes.legend(frameon=False, fontsize=8, loc="best", markerscale=4)
    return figure


def draw_cutting(target: strap.Dataset) -> Any:
    """The movement of one demonstration, where it is cut, and a frame of each segment."""
    cuts = cut_dataset(target.select([DEMONSTRATION]), Segmentation())
    assert cuts.movements is not None  # cut at stops
    moved = 1000 * cuts.movements.values[DEMONSTRATION]
    figure = make_figure(7.5, 3.6)
    top, bottom = figure.subfigures(2, 1, height_ratios=[1, 1.3])
    for axes, part in zip(top.subplots(1, len(cuts.segments)), cuts.segments, strict=True):
        middle = (part.start + part.stop) // 2
        image = target[DEMONSTRATION].frames(CAMERA, middle, middle + 1)[0]
        show(axes, image, f"frames {part.start} to {part.stop - 1}", ORANGE)
    axes = bottom.subplots()
    for number, part in enumerate(cuts.segments):
        axes.axvspan(part.start, part.stop, color="0.93" if number % 2 else "white", lw=0)
        if part.start:
            axes.axvline(part.start, color="black", lw=1.2, label="cut" if number == 1 else None)
    axes.plot(moved, color=BLUE, lw=1, label="movement")
    epsilon = 1000 * float(cuts.segmentation.epsilon or 0)
    axes.axhline(epsilon, color=ORANGE, ls="--", lw=1.2, label=f"threshold, {epsilon:g} mm")
    axes.set(xlabel="frame", ylabel="mm from frame to frame", xlim=(0, len(moved)), ylim=(0, None))
    bottom.legend(frameon=False, fontsize=8, ncols=3, loc="outside upper right")
    return figure


def draw_warping(
    target_store: strap.EmbeddingStore, prior_store: strap.EmbeddingStore, matches: strap.Matches
) -> Any:
    """One trajectory of the prior against a whole demonstration, and against one segment of it."""
    match = best_of(matches, 1)
    demonstration = np.asarray(target_store[DEMONSTRATION], np.float64)
    trajectory = np.asarray(prior_store[match.segment.trajectory_id], np.float64)
    part = slice(match.query.start, match.query.stop)
    costs = np.linalg.norm(demonstration[:, None] - trajectory[None], axis=2)
    whole = dtw.best_match(demonstration, trajectory, steps="classic", path=True)
    found = dtw.best_match(demonstration[part], trajectory, path=True)
    assert whole is not None
    assert found is not None
    figure = make_figure(7.5, 4)
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.25])
    picture = left.imshow(costs, aspect="auto", cmap="Greys_r", origin="lower")
    left.plot(whole.path.trajectory, whole.path.query, color=ORANGE, lw=2, ls="--")
    left.plot(found.path.trajectory, found.path.query + part.start, color=BLUE, lw=3)
    left.axhspan(part.start, part.stop, color=BLUE, alpha=0.15, lw=0)
    left.set(xlabel="frame of the prior trajectory", ylabel="frame of the demonstration")
    left.spines[:].set_visible(True)
    figure.colorbar(picture, ax=left, label="distance of two frames", location="top")
    mean = {"whole": whole.cost / len(whole.path.costs), "part": found.cost / len(found.path.costs)}
    label = "the whole demonstration: {whole:.1f} a pair".format(**mean)
    right.plot(whole.path.query, whole.path.costs, color=ORANGE, lw=1.2, ls="--", label=label)
    label = f"the segment {part.start} to {part.stop - 1}: " + "{part:.1f} a pair".format(**mean)
    right.plot(found.path.query + part.start, found.path.costs, color=BLUE, lw=2, label=label)
    right.axvspan(part.start, part.stop, color=BLUE, alpha=0.15, lw=0)
    right.set(xlabel="frame of the demonstration", ylabel="distance along the path", ylim=(0, None))
    right.legend(frameon=False, fontsize=8, loc="lower right", title="mean cost")
    return figure


def draw_matches(
    target: strap.Dataset,
    prior: strap.Dataset,
    target_store: strap.EmbeddingStore,
    prior_store: strap.EmbeddingStore,
    matches: strap.Matches,
) -> Any:
    """Segments of a demonstration beside their best matches, paired along the warping path."""

    def trace(match: strap.Match) -> list[tuple[int, int]]:
        query, segment = match.query, match.segment
        rows = target_store[query.trajectory_id][query.start : query.stop]
        alignment = dtw.Alignment(match.cost, segment.start, segment.stop)
        path = dtw.path(rows, prior_store[segment.trajectory_id], alignment)
        return [(int(i), int(j) - segment.start) for i, j, _ in path]

    by_name = matches.locate([prior])
    return contact_sheet(matches, target, by_name, CAMERA, queries=4, ranks=1, trace=trace)


def draw_augmented(target: strap.Dataset, prior: strap.Dataset, matches: strap.Matches) -> Any:
    """What the augmented dataset holds: demonstrations, whole, and the retrieved segments."""
    kept = matches[:20]
    names = sorted({match.segment.trajectory_id for match in kept})
    figure = make_figure(7.5, 0.75 + 0.24 * (len(target) + len(names)))
    axes = figure.subplots()
    labels = []
    for row, demonstration in enumerate(target):
        axes.barh(row, demonstration.length, color=ORANGE, height=0.6)
        labels.append(f"target {demonstration.id}")
    for row, name in enumerate(names, len(target) + 1):
        axes.barh(row, prior[name].length, color="0.9", height=0.6)
        for match in kept:
            start, stop = match.segment.start, match.segment.stop
            if match.segment.trajectory_id == name:
                first = max(0, start - FRAMES_BEFORE)
                last = min(prior[name].length, stop + FRAMES_AFTER)
                axes.barh(row, last - first, left=first, color=GREY, alpha=0.35, height=0.6)
                axes.barh(row, stop - start, left=start, color=BLUE, alpha=0.55, height=0.6)
        labels.append(f"prior {name}: {prior[name].instruction}")
    places = [*range(len(target)), *range(len(target) + 1, len(target) + 1 + len(names))]
    axes.set_yticks(places, labels, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("frame")
    return figure


if __name__ == "__main__":
    main()
