"""Rounding of bounds in float32: always down."""

from __future__ import annotations

import numpy as np

from strap.dtw.types import Bools, Floats, Singles

U = 2.0**-24  # a float32 operation errs by at most this share of its result
MAX_SQUARED_NORM = 1e30  # of a centered and scaled frame: beyond, float32 products overflow


def round_down(values: Floats) -> Singles:
    """Return float32 numbers that are no larger."""
    singles = values.astype(np.float32)
    above = singles.astype(np.float64) > values
    singles[above] = np.nextafter(singles[above], np.float32(-np.inf))
    return singles


def subtract_rounding(bounds: Singles, n_cells: Floats, scale: float, is_valid: Bools) -> Floats:
    """Do step 5 of `float32_bounds`, for bounds [q t] of paths of at most `n_cells` cells.

    Those are [q t] or [q 1]. Bounds become 0 where a trajectory's [t] are not valid.
    """
    numbers = np.where(np.isnan(bounds), 0, bounds)
    lower = numbers * np.maximum(1 - (n_cells + 8) * U, 0) / scale
    lower[:, ~is_valid] = 0
    return np.asarray(lower, np.float64)
