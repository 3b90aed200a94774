"""What sketches of several kinds leave open on real embeddings, and what they cost.

    PYTHONPATH=src python benchmarks/search/kinds.py RUN [--kinds 16 64x4 64 256x2 256] [--k 1 20]

The queries and stores of a finished run. For every kind: the share of pairs whose lower bound
doesn't exceed the cost of the query's k-th best match, which is what sketches leave where the k
best are known; and the processor time of a pair when all are bounded, in one thread.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import strap.dtw as dtw
from strap.dtw.sketches.bounds import prepare_bounds
from strap.dtw.sketches.sketcher import SAMPLE_FRAMES, SketchBlock, Sketcher
from strap.dtw.steps import step_set
from strap.segments import read_segments
from strap.store import open_store
from strap.store.sketches import SketchKind


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--kinds", nargs="+", default=["16", "64x4", "64x2", "64", "256x2", "256"])
    parser.add_argument("--k", type=int, nargs="+", default=[1, 20])
    parser.add_argument("--queries", type=int, default=5)
    options = parser.parse_args()
    manifest = json.loads((options.run / "manifest.json").read_text())
    target, *priors = (open_store(path) for path in manifest["stores"].values())
    cut = read_segments(options.run / "segments.json")
    chosen = np.random.default_rng(0).permutation(len(cut))[: options.queries]
    queries = [target[s.trajectory_id][s.start : s.stop] for s in (cut[i] for i in sorted(chosen))]
    trajectories = [np.array(store[key]) for store in priors for key in store.ids]
    costs = all_costs(queries, trajectories)
    thresholds = {k: np.sort(costs, axis=1)[:, k - 1 : k] for k in options.k}
    print(f"{len(queries)} queries, {len(trajectories)} trajectories")
    print(
        "| kind | "
        + " | ".join(f"left, k = {k}" for k in thresholds)
        + " | bound / cost | µs a pair |"
    )
    print("|---|" + "---|" * (len(thresholds) + 2))
    kinds = [SketchKind.parse(text) for text in options.kinds]
    sample = np.concatenate([one[:: max(1, len(one) // 16)] for one in trajectories])[
        :SAMPLE_FRAMES
    ]
    longest = Sketcher.fit(sample, size=max(kind.size for kind in kinds))
    for kind in kinds:
        lower, spent = bound_all(queries, trajectories, longest.shorter(*kind))
        assert (lower <= costs).all(), "a bound is above a cost"
        left = [f"{100 * (lower <= limit).mean():.1f} %" for limit in thresholds.values()]
        fitting = np.isfinite(costs)
        share = np.median(lower[fitting] / costs[fitting])
        print(f"| {kind} | " + " | ".join(left) + f" | {share:.3f} | {1e6 * spent:.1f} |")


def all_costs(queries: list, trajectories: list) -> np.ndarray:
    """Exact costs [q t]; ∞ where no path fits."""
    costs = np.full((len(queries), len(trajectories)), np.inf)
    for row, found in zip(
        costs, dtw.search(queries, trajectories, k=len(trajectories), backend="cpu"), strict=True
    ):
        row[found.trajectory] = found.cost
    return costs


def bound_all(queries: list, trajectories: list, sketcher: Sketcher) -> tuple[np.ndarray, float]:
    """Lower bounds [q t], and seconds a pair; the best of five."""
    rows, scales = zip(*(sketcher(one) for one in trajectories), strict=True)
    ends = np.cumsum([0, *map(len, rows)])
    positions = np.arange(len(trajectories))
    block = SketchBlock(np.concatenate(rows), np.concatenate(scales), ends, positions)
    every = np.ones((len(queries), len(trajectories)), np.bool_)
    with ThreadPoolExecutor(1) as pool:
        (bounds,) = prepare_bounds(queries, [sketcher], step_set("strap"), pool)
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        lower = bounds.bound_pairs(block, positions, every)
        taken.append(time.perf_counter() - began)
    return lower, min(taken) / every.size


if __name__ == "__main__":
    main()
