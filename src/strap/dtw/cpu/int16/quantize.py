"""Quantization of frames to int16, each frame with its own scale; see `int16_bounds`.

It takes two passes over a frame: the first centers and scales it and computes its norm and largest
magnitude, the second rounds it to integers. Both are vectorised: sums are allowed in any order, and
all numbers have 32 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strap.dtw.cpu.rounding import MAX_SQUARED_NORM, center
from strap.dtw.types import Floats, Frames, Real, Shorts, Singles
from strap.jit import njit, njit_reordered

MAX_NORM = 46100.0  # of a frame's integers: products of two such frames fit in 31 bits
MAX_INTEGER = 32767.0
MIN_MAGNITUDE = 1e-15  # a frame of smaller numbers becomes 0
MAGNITUDE_BITS = 0x7FFFFFFF  # all bits of a float32 but the sign; they sort like the magnitudes


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
    """Write (frames − mean)·scale as int16 numbers, with a scale for each frame.

    Args:
        frames: [m d], float16 (as bits) or float32 with mean and scale in float32, or all float64.
        mean: [d].
        scale: the scale of all frames.
        out: integers [m d'], d' at least d.
        squares: squared norms [m] of the integers times their scale.
        errors: squared norms [m] of the rounding errors.
        scales: the factor of each frame's integers [m].
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
    """Return the largest absolute value; NaN counts as the largest."""
    bits, largest = singles.view(np.int32), np.int32(0)
    for k in range(bits.shape[0]):
        largest = max(largest, np.int32(bits[k] & MAGNITUDE_BITS))
    return np.float32(np.array([largest]).view(np.float32)[0])


@njit_reordered
def _round(singles: Singles, inverse: np.float32, out: Shorts) -> tuple[np.float32, np.int32]:
    """Write the nearest integers to singles·inverse; return the squared norms of the rounding
    errors and of the integers (exact).
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
