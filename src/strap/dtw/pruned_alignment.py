"""One exact alignment that computes exact local costs only near the optimal path.

A product of low precision gives a lower bound low(n, m) ≤ C(n, m) of every local cost. Under `low`,
let F(n, m) be the cost of the cheapest path from the first row to the cell, and B(n, m) that of the
cheapest path from the cell to the last row, both including the cell. Then every path through the
cell costs at least F + B − low. The best path under `low` has the exact cost U, which is at least
the optimum. So a cell with F + B − low > U is on no optimal path, and is pruned. If only matches
below a threshold are wanted, cells with F + B − low above the threshold are pruned too.

The remaining cells form a strip a few cells wide. The recurrence over the strip, with exact local
costs, gives the same cost, start and stop as over all cells, bit by bit, because all cells of all
optimal paths remain. U is increased by a relative 1e−9, far more than the rounding errors of these
sums, so that ties remain too.

    . . . . . . . . . .        .  only `low`
    . . x x . . . . . .        x  exact local cost
    . . . x x . . . . .
    . . . . . x . . . .
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strap.dtw.alignment import accumulate_costs, align, trace_back
from strap.dtw.local_costs import fill_local_costs
from strap.dtw.steps import MAX_COLUMN_STEP, StepSet
from strap.dtw.types import Floats, Ints
from strap.jit import njit

SLACK = 1e-9
"""relative; far more than the rounding error of a cost in float64"""
NO_PATH, ABOVE_THRESHOLD = -1, -2
"""returned as start if there is no match"""


@njit
def align_pruned(
    query: Floats,
    frames: NDArray[Any],
    lower_costs: Floats,
    threshold: float,
    steps: StepSet,
    is_cosine: bool,
    out: Floats,
) -> None:
    """Write cost, start and stop of the best match into out [3]; cost ∞ if there is none.

    Args:
        query: [n d].
        frames: [m d]; float16 numbers are passed as their bits (uint16).
        lower_costs: lower bounds [n m] of the local costs.
        threshold: of no match that costs more is the exact cost needed: the cost written is then
            above the threshold too, or ∞ with `ABOVE_THRESHOLD` as start.
        is_cosine: as in `local_costs.fill_local_costs`.
    """
    forward = accumulate_costs(lower_costs, steps.moves)
    least = forward[-1].min()
    out[0], out[1], out[2] = np.inf, ABOVE_THRESHOLD, 0
    if least == np.inf:
        out[1] = NO_PATH
    elif least * (1 - SLACK) <= threshold:
        costs = np.full(lower_costs.shape, np.inf)
        path = trace_back(forward, int(np.argmin(forward[-1])), steps.moves, True)
        path[:, 1] -= MAX_COLUMN_STEP
        fill_local_costs(query, frames, path, is_cosine, costs)
        total = 0.0
        for i in range(path.shape[0]):
            total += costs[path[i, 0], path[i, 1]]
        limit = min(total, threshold) * (1 + SLACK)
        missing = _prune(forward, lower_costs, limit, steps.moves, costs)
        fill_local_costs(query, frames, missing, is_cosine, costs)
        out[0], out[1], out[2] = align(costs, steps)


@njit
def _prune(forward: Floats, lower_costs: Floats, limit: float, moves: Ints, costs: Floats) -> Ints:
    """Return the cells [c 2] of paths that can cost at most `limit`, except those with a cost.

    The costs of all other cells are set to ∞.
    """
    N, M = lower_costs.shape
    # Paths from a cell to the last row are paths from the first row in the reversed matrix.
    backward = accumulate_costs(lower_costs[::-1, ::-1].copy(), moves)[::-1, ::-1]
    cells = np.empty((N * M, 2), np.int64)
    count = 0
    for n in range(N):
        for m in range(M):
            so_far = forward[n, MAX_COLUMN_STEP + m]
            through = so_far + backward[n, m] - lower_costs[n, m]
            if through <= limit and so_far < np.inf:
                if costs[n, m] == np.inf:
                    cells[count, 0], cells[count, 1] = n, m
                    count += 1
            else:
                costs[n, m] = np.inf
    return cells[:count]
