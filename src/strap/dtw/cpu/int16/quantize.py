"""Frames as 16-bit integers, each frame with a separate scale, see `int16_bounds`.

A frame is read twice: centered, scaled and measured, then rounded to integers by what was measured.
Sums may be taken in any order, and numbers are 32 bits wide throughout: so the compiler works on
several registers of them at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strap.dtw.cpu.rounding import MAX_SQUARED_NORM, center
from strap.dtw.types import Floats, Frames, Real, Shorts, Singles
from strap.jit import njit, njit_reordered

MAX_NORM = 46100.0  # of a frame of integers: products with others as long fit in 31 bits
MAX_INTEGER = 32767.0
MIN_MAGNITUDE = 1e-15  # a frame of smaller numbers is taken as 0
MAGNITUDE_BITS = 0x7FFFFFFF  # of a float32, all but the sign: ordered as magnitudes are


@njit
def quantize(
    frames: NDArray[Any],
    mean: Frames,
    scale: Real,
    out: Shorts,
    squares: Floats,
    errors: Floats,
    scales: Singles,
) -> None:
    """Write (frames − mean)·scale as integers times a separate scale for each frame.

    Args:
        frames: [m d], float16 (their bits) or float32, with mean and scale in float32, or all
            float64.
        mean: [d].
        scale: of all frames.
        out: integers [m d'], d' at least d.
        squares: squared norms [m] of the integers times their scale.
        errors: squared norms [m] of what rounding took off.
        scales: what a frame's integers are to be multiplied with [m].
    """
    dim = frames.shape[1]
    centered = np.empty(dim, np.float32)
    for i in range(frames.shape[0]):
        square = np.float64(center(frames[i], mean, scale, centered))
        largest = np.float64(_largest_magnitude(centered))
        if not square <= MAX_SQUARED_NORM or largest < MIN_MAGNITUDE:
            out[i, :dim] = 0
            squares[i], errors[i], scales[i] = 0.0 * square, dim * largest**2, 1
            continue
        unit = np.float32(max(np.sqrt(square) / MAX_NORM, largest / MAX_INTEGER))
        off, integer_square = _round(centered, np.float32(1) / unit, out[i])
        unit_square = np.float64(unit) ** 2
        squares[i] = integer_square * unit_square
        errors[i] = off * (1 + dim * 2.0**-22) * unit_square
        scales[i] = unit


@njit
def _largest_magnitude(singles: Singles) -> np.float32:
    """Return the largest absolute value; NaN is larger than any number."""
    bits, largest = singles.view(np.int32), np.int32(0)
    for k in range(bits.shape[0]):
        largest = max(largest, np.int32(bits[k] & MAGNITUDE_BITS))
    return np.float32(np.array([largest]).view(np.float32)[0])


@njit_reordered
def _round(singles: Singles, inverse: np.float32, out: Shorts) -> tuple[np.float32, np.int32]:
    """Write the nearest integers to singles·inverse; return the squared norms of what that takes
    off, and of the integers, which is exact.
    """
    off, square = np.float32(0), np.int32(0)
    for k in range(singles.shape[0]):
        scaled = singles[k] * inverse
        nearest = np.rint(scaled)
        integer = np.int32(nearest)
        out[k] = np.int16(integer)
        square = np.int32(square + np.int32(integer * integer))
        off += (scaled - nearest) * (scaled - nearest)
    return off, square
