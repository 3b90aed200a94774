"""Where the kernels' recurrences, which go on by columns, find the predecessors of a cell.

A warp holds one column of D, one row in each lane, and goes along the trajectory. Under `strap` and
`fmp` every predecessor lies in an earlier column, so all rows are computed at once:

        column    m−2  m−1   m
        row n−2    .    o    .        o under `fmp` alone
        row n−1    o    o    .
        row n      .    .    x

A move that stays in its column (`classic` has one) skews the layout: row n works on column t − n at
time t, and everything it needs is one or two times old:

        time      t−2  t−1   t
        row n−1    o    o    .
        row n      .    o    x

So every step set has the two predecessors in row n − 1, and some one time back in other rows.
"""

from __future__ import annotations

from typing import NamedTuple

from strap.dtw.steps import STEPS
from strap.errors import StrapError


class StepLayout(NamedTuple):
    """A step set as the kernels take it."""

    skew: int
    """how many times row n is behind row n − 1: 0 or 1"""
    rows_back: tuple[int, ...]
    """how many rows up the predecessors lie that come on top of those in row n − 1"""


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
