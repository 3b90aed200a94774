"""Rounding to float32 for lower bounds: frames to nearest, bounds down."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strap.dtw.llvm import number_of
from strap.dtw.types import Floats, Frames, Real, Singles
from strap.jit import njit_reordered

U = 2.0**-24  # float32's unit roundoff: the largest relative error of one operation
MAX_SQUARED_NORM = 1e30  # of a centered and scaled frame: above, float32 products overflow


@njit_reordered
def center(frame: NDArray[Any], mean: Frames, scale: Real, out: Singles) -> np.float32:
    """Write (frame − mean)·scale, rounded once; return its approximate squared norm in float32."""
    total = np.float32(0)
    for k in range(frame.shape[0]):
        value = np.float32((number_of(frame[k]) - mean[k]) * scale)
        out[k] = value
        total += value * value
    return total


def round_down(values: Floats) -> Singles:
    """Return values as float32, rounded down."""
    singles = values.astype(np.float32)
    above = singles.astype(np.float64) > values
    singles[above] = np.nextafter(singles[above], np.float32(-np.inf))
    return singles


def subtract_rounding(bounds: Singles, n_cells: Floats, scale: float) -> Floats:
    """Return bounds [q t] less rounding errors, unscaled: step 5 of the proof in `float32_bounds`.

    Paths have at most `n_cells` cells, [q t] or [q 1].
    """
    numbers = np.where(np.isnan(bounds), 0, bounds)
    return np.asarray(numbers * np.maximum(1 - (n_cells + 8) * U, 0) / scale, np.float64)
