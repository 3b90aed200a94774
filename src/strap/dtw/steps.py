"""Step sets: the moves that a warping path may make.

A move is (Δquery, Δtrajectory). Here, and nowhere else, is written which moves a set has; every
recurrence reads them from a `StepSet`. The cells from which x is reached:

        strap             fmp                 classic
        m−2 m−1  m        m−2 m−1  m          m−1  m
         .   .   .         .   o   .           .   .     n−2
         o   o   .         o   o   .           o   o     n−1
         .   .   x         .   .   x           o   x     n

The default, `strap`, has a recurrence of its own besides (`is_strap`): a frame's rows don't depend
on each other, so that all are computed at once (`cpu/int16/recurrence.py`).
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

They are in the order in which a traced path prefers equally cheap ones: first (1, 1), by which both
go on; then the one from the later trajectory frame, as of equally cheap alignments the one with the
later start is preferred; then from the later query frame.
"""
MAX_COLUMN_STEP = max(dm for moves in STEPS.values() for _, dm in moves)
"""columns that a move goes back, at most"""


class StepSet(NamedTuple):
    """A step set, as compiled loops take it."""

    moves: Ints  # [s 2]
    min_slope: float  # trajectory frames that a path passes for each query frame, at least
    max_slope: float  # … and at most; ∞ where a query frame may meet any number of them
    is_strap: bool


@cache
def step_set(name: str) -> StepSet:
    """Return the step set of a name."""
    moves = STEPS[name]
    slopes = [dm / dn if dn else math.inf for dn, dm in moves]
    return StepSet(np.array(moves, np.int64), min(slopes), max(slopes), name == "strap")


def count_path_cells(steps: StepSet, n_rows: Floats, n_columns: Floats) -> Floats:
    """Return how many cells a path through so many rows and columns has at most, or one more."""
    return n_rows + n_columns if steps.max_slope == math.inf else n_rows


class StepLayout(NamedTuple):
    """A step set as the GPU's kernels take it, whose recurrences go on by columns.

    A warp holds one column of D, one row in each lane, and goes along the trajectory. Under `strap`
    and `fmp` every predecessor lies in an earlier column, so all rows are computed at once:

            column    m−2  m−1   m
            row n−2    .    o    .        o under `fmp` alone
            row n−1    o    o    .
            row n      .    .    x

    A move that stays in its column (`classic` has one) skews the layout: row n works on column
    t − n at time t, and everything it needs is one or two times old:

            time      t−2  t−1   t
            row n−1    o    o    .
            row n      .    o    x

    So every step set has the two predecessors in row n − 1, and some one time back in other rows.
    """

    skew: int  # how many times row n is behind row n − 1: 0 or 1
    rows_back: tuple[int, ...]  # rows up to the predecessors besides those in row n − 1


def lay_out_steps(name: str) -> StepLayout:
    """Return the layout of a step set; raises where the kernels lack one of its moves."""
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
