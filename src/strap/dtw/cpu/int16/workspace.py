"""Queries and frames as the 16-bit integers that are multiplied, for compiled loops."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strap.dtw.cpu.int16.quantize import quantize
from strap.dtw.cpu.rounding import MAX_SQUARED_NORM, U
from strap.dtw.types import Floats, Frames, Ints, Real, Shorts, Singles
from strap.jit import njit

LOADED_FRAMES = 64  # multiplied together, at most
SHRINK = 1 - 32 * U  # 1 − κ
PADDING_COLUMNS = 16  # unused, of each row of products: else rows compete for the same cache lines


class PackedQueries(NamedTuple):
    """The queries' frames, in groups, each filled up to whole blocks of 16 rows.

    Greek letters are those of `int16_bounds`.
    """

    packed: Shorts  # the integers of all groups, as `gemm.pack_rows` packs them
    terms: Singles  # [4 R'] of each row: α, −2ρ, the bound of |f|, and its gate:
    #                 0 at a query's first row, ∞ elsewhere
    begins: Ints  # [q] a query's first row
    ends: Ints  # [q]
    groups: Ints  # [g + 1] a group's first query
    blocks: Ints  # [g + 1] a group's first block of rows
    mean: Frames  # [d], in float64 for frames in float64, else in float32
    scale: Real  # … and so the scale
    is_cosine: bool


class Workspace(NamedTuple):
    """Memory for 64 frames of a trajectory: no more, so that queries too stay in the cache."""

    integers: Shorts  # [64 d'] 0 beyond d
    squares: Floats  # [64]
    errors: Floats  # [64]
    terms: Singles  # [3 64] of each frame: β, ρ, the bound of |e|
    products: NDArray[np.int32]  # [64 R' + 16]
    costs: Singles  # [R'] of one frame


@njit
def bound_error(error: float, square: float) -> np.float32:
    """Return a bound of |e|, rounded up, from its computed square: steps 1 and 4."""
    bound = np.sqrt(error) * (1 + 2.0**-10) + 12 * U * np.sqrt(square) + 1e-30
    return np.float32(bound * (1 + 2.0**-20))


@njit
def load(
    queries: PackedQueries,
    frames: NDArray[Any],
    sketch_scales: Singles,
    first: int,
    workspace: Workspace,
) -> int:
    """Load up to 64 frames as integers; return how many, 0 where they are too large, or none.

    Frames are centered and rounded. Sketches, which have scales [m 3], are integers already, given
    by their bits (uint16): frames of such bits are float16 ones, so nothing is compiled twice.
    """
    count: int = min(LOADED_FRAMES, frames.shape[0] - first)
    scale, squares, errors = np.float64(queries.scale), workspace.squares, workspace.errors
    beta, scales, error_bounds = workspace.terms
    is_sketch = sketch_scales.shape[0] > 0
    if is_sketch:
        for i in range(count):
            for k in range(frames.shape[1]):
                workspace.integers[i, k] = frames[first + i, k]
            scales[i] = np.float32(sketch_scales[first + i, 0] * scale)
            squares[i], errors[i] = sketch_scales[first + i, 2] * scale**2, 0.0
    else:
        part = frames[first : first + count]
        quantize(part, queries.mean, queries.scale, workspace.integers, squares, errors, scales)
    for i in range(count):
        if not squares[i] + errors[i] <= MAX_SQUARED_NORM:
            return 0
        beta[i] = np.float32(SHRINK * squares[i] * (1 - 2.0**-23))
        error_bounds[i] = bound_error(errors[i], squares[i])
        if is_sketch:
            bound = (error_bounds[i] + sketch_scales[first + i, 1] * scale) * (1 + 2.0**-20)
            error_bounds[i] = np.float32(bound)
    return count
