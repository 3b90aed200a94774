"""The warping path of an alignment: traced back through the exact recurrence, compiled.

Both ends of the path are known, so only the cells between them that its moves can reach are
computed. Inputs are taken as valid.
"""

from __future__ import annotations

import numpy as np

from strap.dtw.alignment import accumulate, trace_back
from strap.dtw.batching import as_doubles
from strap.dtw.local_costs import compute_reachable_costs
from strap.dtw.steps import step_set
from strap.dtw.types import Floats, Frames, Ints


def find_cells(query: Frames, window: Frames, steps: str, metric: str) -> tuple[Ints, Floats]:
    """Return the cells [p 2] of the cheapest path between the ends, and their costs [p].

    p is 0 where no path leads from one end to the other.

    Args:
        query: [n d].
        window: [m d], the frames of the alignment.
        steps, metric: names.
    """
    frames = np.ascontiguousarray(as_doubles(window, metric).T)
    step = step_set(steps)
    costs = compute_reachable_costs(as_doubles(query, metric), frames, step, metric == "cosine")
    D, starts = np.full(costs.shape, np.inf), np.zeros(costs.shape, np.int64)
    accumulate(costs, step, 0, False, D, starts)
    cells = np.empty((0, 2), np.int64)
    if D[-1, -1] < np.inf:
        cells = trace_back(D, costs.shape[1] - 1, step.moves, False)[::-1]
    return cells, costs[cells[:, 0], cells[:, 1]]
