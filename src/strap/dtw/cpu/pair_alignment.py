"""The compiled alignment of a single pair: its best match, and the warping path of a match."""

from __future__ import annotations

import numpy as np

from strap.dtw.alignment import accumulate, align_within, trace_back
from strap.dtw.batching import as_doubles, as_floats
from strap.dtw.cpu.exact import ExactAligner
from strap.dtw.local_costs import compute_local_costs, compute_reachable_costs
from strap.dtw.steps import step_set
from strap.dtw.types import Alignment, Floats, Frames, Ints, Lengths


def best_match(
    query: Frames, trajectory: Frames, lengths: Lengths | None = None, *, steps: str, metric: str
) -> Alignment | None:
    """Return the best match of query [n d] in trajectory [m d]; inputs are assumed valid."""
    frames, step = as_doubles(query, metric), step_set(steps)
    if lengths is None:
        return ExactAligner([frames], step, metric).align(0, trajectory)
    costs = compute_local_costs(frames, as_floats(trajectory, metric), metric == "cosine")
    cost, start, stop = align_within(costs, step, *lengths)
    return Alignment(cost, start, stop) if cost < np.inf else None


def find_cells(query: Frames, window: Frames, steps: str, metric: str) -> tuple[Ints, Floats]:
    """Return what `reference.find_cells` does, computing only cells that a path can reach."""
    frames, step = as_doubles(query, metric), step_set(steps)
    columns = np.ascontiguousarray(as_doubles(window, metric).T)
    costs = compute_reachable_costs(frames, columns, step, metric == "cosine")
    D, starts = np.full(costs.shape, np.inf), np.zeros(costs.shape, np.int64)
    accumulate(costs, step, 0, False, D, starts)
    cells = np.empty((0, 2), np.int64)
    if D[-1, -1] < np.inf:
        cells = trace_back(D, costs.shape[1] - 1, step.moves, False)[::-1]
    return cells, costs[cells[:, 0], cells[:, 1]]
