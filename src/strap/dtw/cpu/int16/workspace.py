"""Queries and frames as int16 numbers, in the form that the compiled functions multiply."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strap.dtw.cpu.int16.quantize import quantize
from strap.dtw.cpu.rounding import MAX_SQUARED_NORM, U
from strap.dtw.types import Floats, Frames, Ints, Real, Shorts, Singles
from strap.jit import njit

LOADED_FRAMES = 64  # frames multiplied together, at most
SHRINK = 1 - 32 * U  # 1 − κ
PADDING_COLUMNS = 16  # unused, at the end of each row of products: avoids cache set conflicts


class PackedQueries(NamedTuple):
    """The queries' frames in groups, each padded to whole blocks of 16 rows: R' rows in all.

    Greek letters are those of the proof in `int16_bounds`.
    """

    packed: Shorts  # the integers of all groups, as `gemm.pack_rows` packs them
    terms: Singles  # [4 R'] of each row: α, −2ρ, the bound of |f|, and its gate:
    #                 0 at a query's first row, ∞ elsewhere
    begins: Ints  # [q] the first row of each query
    ends: Ints  # [q] the row after its last
    groups: Ints  # [g + 1] the first query of each group
    blocks: Ints  # [g + 1] the first block of each group
    mean: Frames  # [d], in float64 for frames in float64, else in float32
    scale: Real  # … likewise
    is_cosine: bool


class Workspace(NamedTuple):
    """Buffers for 64 frames of a trajectory: few enough that the queries stay in the cache too."""

    integers: Shorts  # [64 d'] 0 beyond d
    squares: Floats  # [64]
    errors: Floats  # [64]
    terms: Singles  # [3 64] of each frame: β, ρ, the bound of |e|
    products: NDArray[np.int32]  # [64 R' + 16]
    costs: Singles  # [R'] of one frame


@njit
def bound_error(error: float, square: float) -> np.float32:
    """Return an upper bound of |e| or |f| from its computed square: steps 1 and 4 of the proof."""
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
    """Load up to 64 frames as integers from `first` on; return their number.

    It is 0 if frames are NaN, ∞ or too large. Frames are centered and quantized. Sketches, which
    have scales [m 3], are int16 already; they are passed as uint16, like the bits of float16
    frames, so that numba compiles one version for both.
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
