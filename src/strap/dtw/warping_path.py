"""The warping path of an alignment: traced back through the exact recurrence, compiled.

Both ends of the path are known, so only the cells between them that its moves can reach are
computed. Inputs are taken as valid.
"""

from __future__ import annotations

import numpy as np

from strap.dtw.alignment import accumulate, cheapest_predecessor
from strap.dtw.batching import as_doubles
from strap.dtw.local_costs import compute_reachable_costs
from strap.dtw.steps import StepSet, order_moves, step_set
from strap.dtw.types import Floats, Frames, Ints
from strap.jit import njit


def find_cells(query: Frames, window: Frames, steps: str, metric: str) -> tuple[Ints, Floats]:
    """Return the cells [p 2] of the cheapest path between the ends, and their costs [p].

    Args:
        query: [n d].
        window: [m d], the frames of the alignment.
        steps, metric: names.
    """
    frames = np.ascontiguousarray(as_doubles(window, metric).T)
    ordered = step_set(steps)._replace(moves=order_moves(steps))
    costs = compute_reachable_costs(as_doubles(query, metric), frames, ordered, metric == "cosine")
    cells = _trace_back(costs, ordered)
    return cells, costs[cells[:, 0], cells[:, 1]]


@njit
def _trace_back(costs: Floats, steps: StepSet) -> Ints:
    """Return the cells [p 2] of the cheapest path from the first cell to the last; p is 0: none.

    Of equally cheap predecessors, that of the first of the moves.
    """
    N, M = costs.shape
    D, starts = np.full((N, M), np.inf), np.zeros((N, M), np.int64)
    accumulate(costs, steps, 0, False, D, starts)
    cells, first = np.empty((N + M, 2), np.int64), N + M  # filled from the end
    n, m = N - 1, M - 1
    while D[n, m] < np.inf:
        first -= 1
        cells[first, 0], cells[first, 1] = n, m
        if n == 0 and m == 0:
            break
        n, m = cheapest_predecessor(D, n, m, steps.moves)
    return cells[first:]
