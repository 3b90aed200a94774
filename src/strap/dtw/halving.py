"""Frames and sketches as the 16-bit numbers that are multiplied, see `halves`: compiled loops."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strap.dtw import bits, bounding, wholes
from strap.dtw.bounds import U
from strap.dtw.jit import njit, njit_reordered
from strap.dtw.types import Floats, Frames, Halves, Ints, Singles

BITS_OF_HALVES, SINGLES, DOUBLES = 0, 1, 2  # kinds of frames
BFLOAT, SPLIT, WHOLE = 0, 1, 2  # kinds of numbers that are multiplied
FRAMES = 64  # multiplied together, at most
ROWS = 16  # to whose multiples the query rows of a group are filled up
BESIDE = 16  # sums beside each row that stay unused: else rows compete for the same cache lines


class Rows(NamedTuple):
    """The queries' frames, for compiled loops: in groups, each filled up to whole tiles."""

    tiles: Halves
    """a' of all groups, packed"""
    alpha: Singles
    """[R']"""
    factor: Singles
    """[R'] −2ρ of integers; of others −2 is in the tiles"""
    slack: Singles
    """[R'] bounds of |f|"""
    lanes: Singles
    """[4 R'] the three before, and the gates of `lanes`: 0 at first rows, ∞ elsewhere"""
    begins: Ints
    """[q] a query's first row"""
    ends: Ints
    """[q]"""
    groups: Ints
    """[g + 1] a group's first query"""
    blocks: Ints
    """[g + 1] a group's first block of rows"""
    mean: Floats
    single_mean: Singles
    scale: float
    shrink: float
    is_cosine: bool
    numbers: int


class Room(NamedTuple):
    """Memory for 64 frames of a trajectory: no more, so that the queries stay in the cache too."""

    values: Halves
    """[64 d'] moved and rounded, 0 beyond d"""
    squares: Floats
    errors: Floats
    beta: Singles
    slack: Singles
    """bounds of |e|"""
    factor: Singles
    """ρ of integers"""
    cells: Singles
    """[64 R' + 16]"""
    carry: Singles


@njit
def raised(error: float, square: float) -> np.float32:
    """Steps 1 and 4: a bound of |e|, rounded up, from its computed square."""
    sure = np.sqrt(error) * (1 + 2.0**-10) + 12 * U * np.sqrt(square) + 1e-30
    return np.float32(sure * (1 + 2.0**-20))


@njit
def raise_all(errors: Floats, squares: Floats) -> Singles:
    """`raised` of each."""
    out = np.empty(errors.shape[0], np.float32)
    for i in range(errors.shape[0]):
        out[i] = raised(errors[i], squares[i])
    return out


@njit_reordered
def _round_run(
    frame: NDArray[Any], mean: Frames, scale: bounding.Real, out: Halves
) -> tuple[np.float32, np.float32]:
    """out = (frame − mean)·scale as bfloat16; its squared norm, and that of what rounding took off.

    Frames are float16 (their bits) or float32, with mean and scale in float32, or all float64.
    """
    total, off = np.float32(0), np.float32(0)
    for k in range(frame.shape[0]):
        single = np.float32((bits.number(frame[k]) - mean[k]) * scale)
        rounded = bits.nearest_bfloat(single)
        out[k] = bits.upper_half(rounded)
        difference = single - rounded
        total += rounded * rounded
        off += difference * difference
    return total, off


@njit_reordered
def _split_run(
    frame: NDArray[Any],
    mean: Frames,
    scale: bounding.Real,
    low: Halves,
    high: Halves,
    again: Halves,
) -> tuple[np.float32, np.float32]:
    """As `_round_run`, with what rounding takes off, rounded itself: low + high is the number."""
    total, off = np.float32(0), np.float32(0)
    for k in range(frame.shape[0]):
        single = np.float32((bits.number(frame[k]) - mean[k]) * scale)
        upper = bits.nearest_bfloat(single)
        rest = single - upper
        lower = bits.nearest_bfloat(rest)
        low[k] = bits.upper_half(lower)
        high[k] = bits.upper_half(upper)
        again[k] = high[k]
        number, difference = upper + lower, rest - lower
        total += number * number
        off += difference * difference
    return total, off


@njit
def round_frames(
    frames: NDArray[Any],
    mean: Frames,
    scale: bounding.Real,
    numbers: int,
    out: Halves,
    squares: Floats,
    errors: Floats,
    factors: Singles,
) -> None:
    """Step 1: out [m d'] = (frames [m d] − mean)·scale; [m] squared norms, and those of errors.

    Split numbers are (b₂, b₁, b₁). Integers are worth their frame's factor [m] each.
    """
    if numbers == WHOLE:
        wholes.whole_frames(frames, mean, scale, out, squares, errors, factors)
        return
    dim = frames.shape[1]
    for i in range(frames.shape[0]):
        squares[i], errors[i], factors[i] = 0, 0, 1
        for k in range(0, dim, bounding.RUN):
            end = min(k + bounding.RUN, dim)
            own, middle, row = frames[i, k:end], mean[k:end], out[i]
            if numbers == SPLIT:
                low, high = row[k:end], row[dim + k : dim + end]
                again = row[2 * dim + k : 2 * dim + end]
                more, off = _split_run(own, middle, scale, low, high, again)
            else:
                more, off = _round_run(own, middle, scale, row[k:end])
            squares[i] += np.float64(more)
            errors[i] += np.float64(off)


@njit
def take(
    rows: Rows, frames: NDArray[Any], mean: Frames, scale: bounding.Real, first: int, room: Room
) -> int:
    """Move and round up to 64 frames; returns how many, 0 where they are too large, or none."""
    own = frames[first : first + FRAMES]
    count: int = own.shape[0]
    squares, errors = room.squares, room.errors
    round_frames(own, mean, scale, rows.numbers, room.values, squares, errors, room.factor)
    for i in range(count):
        if not squares[i] + errors[i] <= bounding.LARGEST_SQUARE:
            return 0
        room.beta[i] = np.float32(rows.shrink * squares[i] * (1 - 2.0**-23))
        room.slack[i] = raised(errors[i], squares[i])
    return count


@njit
def take_sketches(rows: Rows, numbers: Halves, scales: Singles, first: int, room: Room) -> int:
    """As `take`, of sketches: integers that are worth scales[:, 0], with errors scales[:, 1] and
    squared norms scales[:, 2].
    """
    count: int = min(FRAMES, numbers.shape[0] - first)
    values = room.values
    for i in range(count):
        for k in range(numbers.shape[1]):
            values[i, k] = numbers[first + i, k]
        square = scales[first + i, 2] * rows.scale**2
        if not square <= bounding.LARGEST_SQUARE:
            return 0
        room.factor[i] = np.float32(scales[first + i, 0] * rows.scale)
        room.beta[i] = np.float32(rows.shrink * square * (1 - 2.0**-23))
        radius = scales[first + i, 1] * rows.scale
        room.slack[i] = np.float32((raised(0.0, square) + radius) * (1 + 2.0**-20))
    return count
