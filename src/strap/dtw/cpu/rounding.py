"""Numbers rounded to float32 for bounds: centered frames to the nearest, bounds down."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strap.dtw.llvm import number_of
from strap.dtw.types import Floats, Frames, Real, Singles
from strap.jit import njit_reordered

U = 2.0**-24  # a float32 operation errs by at most this share of its result
MAX_SQUARED_NORM = 1e30  # of a centered and scaled frame: beyond, float32 products overflow


@njit_reordered
def center(frame: NDArray[Any], mean: Frames, scale: Real, out: Singles) -> np.float32:
    """Write (frame − mean)·scale, rounded once; return about its squared norm, in float32."""
    total = np.float32(0)
    for k in range(frame.shape[0]):
        value = np.float32((number_of(frame[k]) - mean[k]) * scale)
        out[k] = value
        total += value * value
    return total


def round_down(values: Floats) -> Singles:
    """Return float32 numbers that are no larger."""
    singles = values.astype(np.float32)
    above = singles.astype(np.float64) > values
    singles[above] = np.nextafter(singles[above], np.float32(-np.inf))
    return singles


def subtract_rounding(bounds: Singles, n_cells: Floats, scale: float) -> Floats:
    """Do step 5 of `float32_bounds`, for bounds [q t] of paths of at most `n_cells` cells.

    Those are [q t] or [q 1].
    """
    numbers = np.where(np.isnan(bounds), 0, bounds)
    return np.asarray(numbers * np.maximum(1 - (n_cells + 8) * U, 0) / scale, np.float64)
