"""One exact alignment of which only the cells that may matter are exact.

With low(n, m) ≤ C(n, m) for every cell, from a product of low precision, let F(n, m) be the
cheapest way to the cell under `low` and B(n, m) the cheapest way on from it, the cell counted in
both. Every path through the cell costs at least F + B − low. The exact cost U of one path, the best
one under `low`, is at least the optimum. So a cell with F + B − low > U lies on no optimal path.
Nor does one with F + B − low above a threshold, where only cheaper matches are wanted.

What is left is a strip a few cells wide, and the recurrence over it, with exact costs, gives the
same cost, start and stop as over all cells, to the last bit: cells on optimal paths keep all their
optimal predecessors, and a cell that is left out can only have made others cheaper than they are
allowed to be. U is raised by 1e−9 of itself, far more than float64 rounds in these sums, so that
whatever rounding makes equal is left in.

    . . . . . . . . . .        .  low alone
    . . x x . . . . . .        x  exact
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
"""of a cost: far more than float64 rounds in its sum"""
NO_PATH, ABOVE_THRESHOLD = -1, -2
"""in the place of a start, where there is no match"""


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
    """Write cost, start and stop of the best match into out [3]; a cost of ∞ where there is none.

    Args:
        query: [n d].
        frames: [m d]; float16 ones as their bits.
        lower_costs: lower bounds [n m] of the local costs.
        threshold: matches that cost more are not wanted: where the best one does, so does what is
            returned, or it is `ABOVE_THRESHOLD`.
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
    """Return the cells [c 2] that may lie on a path of at most this cost and have no cost yet.

    The others' costs become ∞.
    """
    N, M = lower_costs.shape
    # From a cell on to the last row is from the first row to it, upside down and back to front.
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
