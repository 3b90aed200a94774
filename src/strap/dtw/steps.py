"""Step sets: the moves that a warping path may make.

A move is (Δquery, Δtrajectory). `STEPS` defines the step sets; every recurrence takes its moves
from there. The predecessors (o) of a cell (x):

        strap             fmp                 classic
        m−2 m−1  m        m−2 m−1  m          m−1  m
         .   .   .         .   o   .           .   .     n−2
         o   o   .         o   o   .           o   o     n−1
         .   .   x         .   .   x           o   x     n

The default, `strap`, also has faster recurrences (`cpu/int16/recurrence.py`, `accumulate_strap` in
`gpu/bound_kernels.py`): no predecessor is in the same column, so all rows are computed at once.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np

from strap.dtw.types import Floats, Ints
from strap.errors import StrapError

STEPS: dict[str, tuple[tuple[int, int], ...]] = {
    "strap": ((1, 1), (1, 2)),
    "fmp": ((1, 1), (2, 1), (1, 2)),
    "classic": ((1, 1), (1, 0), (0, 1)),
}
"""Allowed moves (Δquery, Δtrajectory) of the warping path, by name.

If predecessors are equally cheap, a traced path takes the first of these moves: (1, 1), then the
move from the later trajectory frame (alignments prefer the later start too), then the move from
the later query frame.
"""
MAX_COLUMN_STEP = max(dm for moves in STEPS.values() for _, dm in moves)
"""the largest Δtrajectory of all moves"""


class StepSet(NamedTuple):
    """A step set in the form that numba's compiled functions take."""

    moves: Ints  # [s 2]
    min_slope: float  # the fewest trajectory frames per query frame that a path advances
    max_slope: float  # … and the most; ∞ if a query frame can match any number of frames
    is_strap: bool


@cache
def step_set(name: str) -> StepSet:
    """Return the step set with this name."""
    moves = STEPS[name]
    slopes = [dm / dn if dn else math.inf for dn, dm in moves]
    return StepSet(np.array(moves, np.int64), min(slopes), max(slopes), name == "strap")


def count_path_cells(steps: StepSet, n_rows: Floats, n_columns: Floats) -> Floats:
    """Return an upper bound of the number of cells of a path through a matrix of this size."""
    return n_rows + n_columns if steps.max_slope == math.inf else n_rows


class StepLayout(NamedTuple):
    """A step set in the form that the GPU kernels take, which compute D column by column.

    A warp holds one column of D, one row per lane, and moves along the trajectory. Under `strap`
    and `fmp` every predecessor is in an earlier column, so all rows are computed at once:

            column    m−2  m−1   m
            row n−2    .    o    .        o under `fmp` alone
            row n−1    o    o    .
            row n      .    .    x

    With a move inside one column (`classic` has one) the layout is skewed: at time t, row n
    computes column t − n, and its predecessors were computed at times t − 1 and t − 2:

            time      t−2  t−1   t
            row n−1    o    o    .
            row n      .    o    x

    So every step set has two predecessors in row n − 1, one and two times back. All its other
    predecessors are one time back, in other rows.
    """

    skew: int  # by how many times row n lags row n − 1: 0 or 1
    rows_back: tuple[int, ...]  # Δn of the other predecessors


def lay_out_steps(name: str) -> StepLayout:
    """Return the layout of a step set; raise if the kernels do not support its moves."""
    skew = int(any(dm == 0 for _, dm in STEPS[name]))
    moves = {(dn, dm + skew * dn) for dn, dm in STEPS[name]}  # (rows, times) back
    others = moves - {(1, 1), (1, 2)}
    if len(moves - others) < 2 or any(times != 1 for _, times in others):
        raise StrapError(
            f"the GPU's kernels can't take the moves of steps '{name}': they need two that go "
            "back one row, by one and by two columns or times, and others by one; "
            'use backend "cpu", or change accumulate_others and align_pairs in dtw/gpu'
        )
    return StepLayout(skew, tuple(sorted(rows for rows, _ in others)))
