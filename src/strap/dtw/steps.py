"""Step sets: the moves that a warping path may make.

A move is (Δquery, Δtrajectory). Here, and nowhere else, is written which moves a set has; every
recurrence reads them from a `StepSet`. The cells from which x is reached:

        strap             fmp                 classic
        m−2 m−1  m        m−2 m−1  m          m−1  m
         .   .   .         .   o   .           .   .     n−2
         o   o   .         o   o   .           o   o     n−1
         .   .   x         .   .   x           o   x     n

The default, `strap`, has a recurrence of its own besides (`is_strap`): its rows depend on the row
before only, so that sixteen of them stay in registers (`cpu/int16/register_recurrence.py`).
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np

from strap.dtw.types import Floats, Ints

STEPS: dict[str, tuple[tuple[int, int], ...]] = {
    "strap": ((1, 1), (1, 2)),
    "fmp": ((1, 1), (1, 2), (2, 1)),
    "classic": ((1, 0), (0, 1), (1, 1)),
}
"""Allowed moves (Δquery, Δtrajectory) of the warping path, by name."""
MAX_COLUMN_STEP = max(dm for moves in STEPS.values() for _, dm in moves)
"""columns that a move goes back, at most"""


class StepSet(NamedTuple):
    """A step set, as compiled loops take it."""

    moves: Ints
    """[s 2]"""
    min_slope: float
    """trajectory frames that a path passes for each query frame, at least"""
    max_slope: float
    """… and at most; ∞ where a query frame may meet any number of them"""
    is_strap: bool


@cache
def step_set(name: str) -> StepSet:
    """Return the step set of a name."""
    moves = STEPS[name]
    slopes = [dm / dn if dn else math.inf for dn, dm in moves]
    return StepSet(np.array(moves, np.int64), min(slopes), max(slopes), name == "strap")


@cache
def order_moves(name: str) -> Ints:
    """Return the moves [s 2] in the order in which a traced path prefers equally cheap ones.

    First (1, 1), by which both go on; then the one from the later trajectory frame, as of equally
    cheap alignments the one with the later start is preferred; then from the later query frame.
    """
    moves = sorted(STEPS[name], key=lambda move: (move != (1, 1), move[1], move[0]))
    return np.array(moves, np.int64)


def count_path_cells(steps: StepSet, n_rows: Floats, n_columns: Floats) -> Floats:
    """Return how many cells a path through so many rows and columns has at most, or one more."""
    return n_rows + n_columns if steps.max_slope == math.inf else n_rows
