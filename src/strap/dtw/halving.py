"""The compiled loops of lower bounds from bfloat16 products, see `halves`.

As in `bounding`, step sets come as numbers, and the innermost loops run over whole slices from 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strap.dtw import amx, bits, bounding
from strap.dtw.bounds import U
from strap.dtw.jit import carray, njit, njit_reordered
from strap.dtw.types import Floats, Frames, Halves, Ints, Singles

BITS_OF_HALVES, SINGLES, DOUBLES = 0, 1, 2  # kinds of frames


class Rows(NamedTuple):
    """The queries' frames, for compiled loops: in groups, each filled up to whole tiles."""

    tiles: Halves
    """−2a' of all groups, packed"""
    alpha: Singles
    """[R']"""
    slack: Singles
    """[R'] bounds of |f|"""
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
    is_split: bool


class _Tile(NamedTuple):
    """One trajectory's frames, for compiled loops."""

    values: Halves
    """[m d'] moved and rounded"""
    beta: Singles
    """[m]"""
    slack: Singles
    """[m] bounds of |e|"""
    cells: Singles
    """memory for those of 64 frames, [64 R' + 16]"""


@njit
def raised(error: float, square: float) -> np.float32:
    """Steps 1 and 4: a bound of |e|, rounded up, from its computed square."""
    sure = np.sqrt(error) * (1 + 2.0**-10) + 10 * U * np.sqrt(square) + 1e-30
    return np.float32(sure * (1 + 2.0**-20))


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
    is_split: bool,
    out: Halves,
    squares: Floats,
    errors: Floats,
) -> None:
    """Step 1: out [m d'] = (frames [m d] − mean)·scale; [m] squared norms, and those of errors.

    Split numbers are (b₂, b₁, b₁).
    """
    dim = frames.shape[1]
    for i in range(frames.shape[0]):
        squares[i], errors[i] = 0, 0
        for k in range(0, dim, bounding.RUN):
            end = min(k + bounding.RUN, dim)
            own, middle, row = frames[i, k:end], mean[k:end], out[i]
            if is_split:
                low, high = row[k:end], row[dim + k : dim + end]
                again = row[2 * dim + k : 2 * dim + end]
                more, off = _split_run(own, middle, scale, low, high, again)
            else:
                more, off = _round_run(own, middle, scale, row[k:end])
            squares[i] += np.float64(more)
            errors[i] += np.float64(off)


@njit
def _costs(
    alpha: Singles, slack: Singles, beta: np.float32, more: np.float32, products: Singles
) -> None:
    """Products [R] to lower bounds of one frame's distances, in place."""
    zero = np.float32(0)
    for n in range(products.shape[0]):
        square = (alpha[n] + beta) + products[n]
        products[n] = max(np.sqrt(max(square, zero)) - (slack[n] + more), zero)


@njit
def _halve_squares(costs: Singles) -> None:
    for n in range(costs.shape[0]):
        costs[n] = np.float32(0.5) * (costs[n] * costs[n])


@njit
def _cells(rows: Rows, group: int, tile: _Tile, first: int) -> int:
    """Fill tile.cells with lower bounds of the costs of up to 64 frames; returns how many."""
    top, bottom = rows.blocks[group], rows.blocks[group + 1]
    count: int = min(tile.beta.shape[0] - first, amx.FRAMES)
    amx.multiply(tile.values[first:], count, rows.tiles[top:bottom], tile.cells)
    part = slice(top * amx.ROWS, bottom * amx.ROWS)
    alpha, slack, R = rows.alpha[part], rows.slack[part], part.stop - part.start
    for i in range(count):
        _costs(alpha, slack, tile.beta[first + i], tile.slack[first + i], tile.cells[i, :R])
        if rows.is_cosine:
            _halve_squares(tile.cells[i, :R])
    return count


@njit
def _walk(
    cells: Singles, count: int, first: int, begins: Ints, ends: Ints, before: Singles, out: Singles
) -> None:
    """Go on by `count` frames; queries are rows begins[q]:ends[q] of the cells."""
    R = before.shape[1] - 1
    for i in range(count):
        m = first + i
        now = before[m % 3]
        one, two = before[(m + 2) % 3, :R], before[(m + 1) % 3, :R]
        bounding.add_least(cells[i, :R], one, two, now[1:])
        for q in range(begins.shape[0]):
            out[q] = min(out[q], now[ends[q]])
        for q in range(begins.shape[0]):
            now[begins[q]] = 0


@njit
def _by_frame(rows: Rows, group: int, tile: _Tile, out: Singles) -> None:
    """out [q] = least D(N, m) of steps `strap` for a group, frame by frame, all queries at once.

    Predecessors lie one row up and one or two frames back, so that a frame's cells don't wait for
    each other. `before` keeps of the last frames, for every row, the D one row up: 0 above a
    query's first row.
    """
    top, bottom = rows.blocks[group] * amx.ROWS, rows.blocks[group + 1] * amx.ROWS
    own = slice(rows.groups[group], rows.groups[group + 1])
    begins, ends = rows.begins[own] - top, rows.ends[own] - top
    before = np.full((3, bottom - top + 1), np.float32(np.inf))
    for q in range(begins.shape[0]):
        before[:, begins[q]] = 0
    for first in range(0, tile.beta.shape[0], amx.FRAMES):
        count = _cells(rows, group, tile, first)
        _walk(tile.cells, count, first, begins, ends, before, out[own])


@njit
def _by_row(rows: Rows, group: int, tile: _Tile, code: int, out: Singles) -> None:
    """As `_by_frame`, for any steps, row by row."""
    top, bottom = rows.blocks[group] * amx.ROWS, rows.blocks[group + 1] * amx.ROWS
    M = tile.beta.shape[0]
    costs = np.empty((bottom - top, M), np.float32)
    for first in range(0, M, amx.FRAMES):
        count = _cells(rows, group, tile, first)
        costs[:, first : first + count] = tile.cells[:count, : bottom - top].T
    D = np.empty((3, M + 2), np.float32)
    for q in range(rows.groups[group], rows.groups[group + 1]):
        N = rows.ends[q] - rows.begins[q]
        D[:] = np.inf
        for n in range(N):
            bounding.accumulate(n, code, 0, M, costs[rows.begins[q] - top + n], D)
        out[q] = bounding.least(D, N, M, code)


@njit
def _low_costs_of_one(
    rows: Rows,
    wanted: NDArray[np.bool_],
    frames: NDArray[Any],
    mean: Frames,
    scale: bounding.Real,
    code: int,
    values: Halves,
    cells: Singles,
    out: Singles,
) -> bool:
    """out [q] = least D(N, m) over lower-bound cells of one trajectory [m d], for groups of which
    some are wanted [q]; values are memory for its moved frames, 0 beyond d. False where the numbers
    are too large, or none.
    """
    M = frames.shape[0]
    squares, errors = np.empty(M), np.empty(M)
    beta, slack = np.empty(M, np.float32), np.empty(M, np.float32)
    round_frames(frames, mean, scale, rows.is_split, values, squares, errors)
    for m in range(M):
        if not squares[m] + errors[m] <= bounding.LARGEST_SQUARE:
            return False
        beta[m] = np.float32(rows.shrink * squares[m] * (1 - 2.0**-23))
        slack[m] = raised(errors[m], squares[m])
    tile = _Tile(values, beta, slack, cells)
    for group in range(rows.groups.shape[0] - 1):
        if not wanted[rows.groups[group] : rows.groups[group + 1]].any():
            continue
        if code == 0:
            _by_frame(rows, group, tile, out)
        else:
            _by_row(rows, group, tile, code, out)
    return True


@njit
def low_costs(
    rows: Rows,
    wanted: NDArray[np.bool_],
    addresses: NDArray[np.intp],
    kinds: Ints,
    lengths: Ints,
    dim: int,
    code: int,
    values: Halves,
    cells: Singles,
    out: Singles,
    proved: NDArray[np.bool_],
) -> None:
    """out [t q] = least D(N, m) over lower-bound cells of trajectories that lie anywhere, for the
    wanted pairs [t q].

    In one call: threads that come back to Python between small steps wait for each other.
    """
    values[:, (3 if rows.is_split else 1) * dim :] = 0
    mean, scale = rows.single_mean, np.float32(rows.scale)
    for i in range(addresses.shape[0]):
        place, shape, own = bits.pointer(addresses[i]), (lengths[i], dim), out[i]
        own[:] = np.inf
        if kinds[i] == BITS_OF_HALVES:
            halves = carray(place, shape, np.uint16)
            proved[i] = _low_costs_of_one(
                rows, wanted[i], halves, mean, scale, code, values, cells, own
            )
        elif kinds[i] == SINGLES:
            singles = carray(place, shape, np.float32)
            proved[i] = _low_costs_of_one(
                rows, wanted[i], singles, mean, scale, code, values, cells, own
            )
        else:
            doubles = carray(place, shape, np.float64)
            proved[i] = _low_costs_of_one(
                rows, wanted[i], doubles, rows.mean, rows.scale, code, values, cells, own
            )
