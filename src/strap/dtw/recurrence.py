"""The recurrence of subsequence DTW without the starts of paths, which lower bounds don't need.

Row after row, in float32 or float64. The innermost loops run over whole slices from 0, so that the
compiler works on several columns at once. `alignment` has the recurrence that carries starts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strap.dtw.steps import MAX_COLUMN_STEP
from strap.dtw.types import Ints
from strap.jit import njit


@njit
def _keep_smaller(out: NDArray[Any], other: NDArray[Any]) -> None:
    for m in range(out.shape[0]):
        out[m] = min(out[m], other[m])


@njit
def _add(out: NDArray[Any], costs: NDArray[Any]) -> None:
    for m in range(out.shape[0]):
        out[m] = out[m] + costs[m]


@njit
def accumulate_rows(costs: NDArray[Any], moves: Ints) -> NDArray[Any]:
    """Return D [n, 2 + m] of local costs [n m].

    Two columns of ∞ come first, as many as a move reaches back, so that m − 2 needs no test:

        column    ∞   ∞   0   1   2 …
        index     0   1   2   3   4 …
    """
    N, M = costs.shape
    D = np.full((N, MAX_COLUMN_STEP + M), np.inf, costs.dtype)
    D[0, MAX_COLUMN_STEP:] = costs[0]
    for n in range(1, N):
        row = D[n, MAX_COLUMN_STEP:]
        for s in range(moves.shape[0]):
            dn, dm = moves[s]
            if 0 < dn <= n:
                _keep_smaller(row, D[n - dn, MAX_COLUMN_STEP - dm : MAX_COLUMN_STEP - dm + M])
        _add(row, costs[n])
        for s in range(moves.shape[0]):
            dn, dm = moves[s]
            if dn == 0:  # along the row: each column after the one before
                for m in range(dm, M):
                    row[m] = min(row[m], row[m - dm] + costs[n, m])
    return D


@njit
def cheapest_path(costs: NDArray[Any], moves: Ints) -> Any:
    """Return the least D(N, m) over local costs [n m]; ∞ when no path fits."""
    return accumulate_rows(costs, moves)[-1].min()
