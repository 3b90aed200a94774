"""Exact local costs C(n, m) of query and trajectory frames: the compiled metrics.

To give the same bits as `metrics.local_costs`, each cost is summed in order of dimension. One
such sum is slow, because each addition waits for the one before. So several sums are interleaved:
for a whole matrix those of one row or column, for single cells those of eight cells.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strap.dtw.llvm import number_of
from strap.dtw.steps import StepSet
from strap.dtw.types import Floats, Frames, Ints
from strap.jit import njit

GROUP_SIZE = 8  # costs that are summed together


@njit
def compute_local_costs(query: Floats, frames: Frames, is_cosine: bool) -> Floats:
    """Return C [n m] of query [n d] and all frames [m d] of a trajectory."""
    N, M = query.shape[0], frames.shape[0]
    costs = np.empty((N, M))
    if N > M:  # the sums along the longer side are interleaved
        columns = np.ascontiguousarray(query.T)
        for m in range(M):
            _fill_costs(frames[m], columns, is_cosine, costs[:, m])
    else:
        columns = np.ascontiguousarray(frames.T)
        for n in range(N):
            _fill_costs(query[n], columns, is_cosine, costs[n])
    return costs


@njit
def _fill_costs(frame: Frames, others: Frames, is_cosine: bool, out: Floats) -> None:
    """Fill `out` [m] with the costs of a frame [d] and others [d m], one per column."""
    out[:] = 0
    for k in range(others.shape[0]):
        value = np.float64(frame[k])
        for m in range(out.shape[0]):
            e = value - others[k, m]
            out[m] += e * e
    for m in range(out.shape[0]):
        out[m] = 0.5 * out[m] if is_cosine else np.sqrt(out[m])


@njit
def fill_local_costs(
    query: Floats, frames: NDArray[Any], pairs: Ints, is_cosine: bool, costs: Floats
) -> None:
    """Fill in the exact costs of some cells.

    Args:
        query: [n d].
        frames: [m d]; float16 numbers are passed as their bits (uint16).
        pairs: the cells [p 2]: query frame, trajectory frame.
        is_cosine: whether frames are unit vectors, and costs half their squared distance.
        costs: the output [n m]; other cells keep their values.
    """
    count, d = pairs.shape[0], query.shape[1]
    group, squared_distances = np.empty((GROUP_SIZE, 2), np.int64), np.empty(GROUP_SIZE)
    for first in range(0, count, GROUP_SIZE):
        for i in range(GROUP_SIZE):
            group[i] = pairs[min(first + i, count - 1)]
            squared_distances[i] = 0
        for k in range(d):
            for i in range(GROUP_SIZE):
                e = query[group[i, 0], k] - number_of(frames[group[i, 1], k])
                squared_distances[i] += e * e
        for i in range(min(GROUP_SIZE, count - first)):
            square = squared_distances[i]
            costs[group[i, 0], group[i, 1]] = 0.5 * square if is_cosine else np.sqrt(square)


@njit
def compute_reachable_costs(
    query: Floats, frames: Floats, steps: StepSet, is_cosine: bool
) -> Floats:
    """Return C [n m] of the cells that a path from first to last cell can reach, ∞ elsewhere.

    Args:
        query: [n d].
        frames: [d m], one column per trajectory frame.
        steps: the step set; if its slopes are limited, a path stays in a parallelogram:

            x x x . . . . .
            . x x x x . . .
            . . . x x x x .
            . . . . . x x x

        is_cosine: as in `fill_local_costs`.
    """
    N, M = query.shape[0], frames.shape[1]
    costs = np.full((N, M), np.inf)
    for n in range(N):
        after = N - 1 - n  # rows to go
        left, right = np.ceil(n * steps.min_slope), M - 1 - np.ceil(after * steps.min_slope)
        if steps.max_slope < np.inf:
            left = max(left, M - 1 - np.floor(after * steps.max_slope))
            right = min(right, np.floor(n * steps.max_slope))
        if left <= right:
            span = slice(int(left), int(right) + 1)
            _fill_costs(query[n], frames[:, span], is_cosine, costs[n, span])
    return costs
