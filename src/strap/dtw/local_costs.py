"""Exact local costs C(n, m) of a query frame and a trajectory frame, each summed in order.

A returned cost is a sum in order of dimension, to the last bit, and one sum alone waits for each of
its additions. So many costs are summed at a time: where all frames are compared, those of one frame
with all of the other side; where single pairs are, those of eight pairs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strap.dtw.llvm import number_of
from strap.dtw.steps import StepSet
from strap.dtw.types import Floats, Frames, Ints
from strap.jit import njit

GROUP_SIZE = 8  # costs that are summed at a time


@njit
def compute_local_costs(query: Floats, frames: Frames, is_cosine: bool) -> Floats:
    """Return C [n m] of query [n d] with all frames [m d] of a trajectory."""
    N, M = query.shape[0], frames.shape[0]
    costs = np.empty((N, M))
    if N > M:  # the longer side is what is summed at a time
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
    """Fill the costs [m] of a frame [d] with others [d m], a column for each."""
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
    """Fill the exact costs [n m] of these pairs [p 2] of a query and a trajectory frame.

    Args:
        query: [n d].
        frames: [m d]; float16 ones as their bits.
        pairs: query and trajectory frame of each.
        is_cosine: whether frames are unit vectors, and costs half their squared distance.
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
    """Return C [n m] where a path from the first cell to the last one may come, ∞ elsewhere.

    Args:
        query: [n d].
        frames: [d m], a column for each trajectory frame.
        steps: the step set; where its slopes have limits, a path stays between four lines:

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
