"""Exact local costs C(n, m) of a query frame and a trajectory frame, each summed in order.

A returned cost is a sum in order of dimension, to the last bit, and one sum alone waits for each of
its additions. So eight costs are summed together: eight independent additions at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strap.dtw.llvm import number_of
from strap.dtw.types import Floats, Ints
from strap.jit import njit

TOGETHER = 8  # costs that are summed at a time


@njit
def compute_local_costs(query: Floats, frames: NDArray[Any], is_cosine: bool) -> Floats:
    """Return C [n m] of query [n d] with all frames [m d] of a trajectory."""
    N, M = query.shape[0], frames.shape[0]
    costs, pairs = np.empty((N, M)), np.empty((N * M, 2), np.int64)
    for n in range(N):
        for m in range(M):
            pairs[n * M + m, 0], pairs[n * M + m, 1] = n, m
    fill_local_costs(query, frames, pairs, is_cosine, costs)
    return costs


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
        costs: what is filled.
    """
    count, d = pairs.shape[0], query.shape[1]
    eight, sums = np.empty((TOGETHER, 2), np.int64), np.empty(TOGETHER)
    for first in range(0, count, TOGETHER):
        for i in range(TOGETHER):
            eight[i] = pairs[min(first + i, count - 1)]
            sums[i] = 0
        for k in range(d):
            for i in range(TOGETHER):
                e = query[eight[i, 0], k] - number_of(frames[eight[i, 1], k])
                sums[i] += e * e
        for i in range(min(TOGETHER, count - first)):
            costs[eight[i, 0], eight[i, 1]] = 0.5 * sums[i] if is_cosine else np.sqrt(sums[i])
