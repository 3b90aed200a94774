"""The compiled loops of lower bounds from products of 16-bit numbers, see `halves`.

As in `bounding`, step sets come as numbers, and the innermost loops run over whole slices from 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strap.dtw import amx, bits, bounding, lanes, vnni
from strap.dtw.halving import (
    BITS_OF_HALVES,
    FRAMES,
    ROWS,
    SINGLES,
    WHOLE,
    Room,
    Rows,
    take,
    take_sketches,
)
from strap.dtw.jit import carray, njit
from strap.dtw.types import Frames, Halves, Ints, Singles

# The loops below run over rows of whole arrays: a slice for each row would take longer than its
# numbers.


@njit
def _costs(alpha: Singles, slack: Singles, count: int, room: Room) -> None:
    """Products of rows [R] and `count` frames to lower bounds of their distances, in place."""
    zero, cells = np.float32(0), room.cells
    for i in range(count):
        beta, more = room.beta[i], room.slack[i]
        for n in range(alpha.shape[0]):
            square = (alpha[n] + beta) + cells[i, n]
            cells[i, n] = max(np.sqrt(max(square, zero)) - (slack[n] + more), zero)


@njit
def whole_costs(
    alpha: Singles,
    factor: Singles,
    slack: Singles,
    beta: Singles,
    worth: Singles,
    more: Singles,
    cells: Singles,
) -> None:
    """As `_costs`, of products that are integers, with numbers of as many frames as there are."""
    zero = np.float32(0)
    for i in range(beta.shape[0]):
        for n in range(alpha.shape[0]):
            square = (alpha[n] + beta[i]) + bits.whole(cells[i, n]) * (factor[n] * worth[i])
            cells[i, n] = max(np.sqrt(max(square, zero)) - (slack[n] + more[i]), zero)


@njit
def _halve_squares(width: int, count: int, cells: Singles) -> None:
    for i in range(count):
        for n in range(width):
            cells[i, n] = np.float32(0.5) * (cells[i, n] * cells[i, n])


@njit
def _take(
    rows: Rows,
    frames: NDArray[Any],
    scales: Singles,
    mean: Frames,
    scale: bounding.Real,
    first: int,
    room: Room,
) -> int:
    """`take`, or `take_sketches` where there are scales."""
    if scales.shape[0] > 0:
        return take_sketches(rows, frames, scales, first, room)
    return take(rows, frames, mean, scale, first, room)


@njit
def multiply(rows: Rows, group: int, count: int, room: Room, cells: Singles) -> None:
    """Fill cells [64 R' + 16] with the products of the frames that were taken."""
    tiles = rows.tiles[rows.blocks[group] : rows.blocks[group + 1]]
    if rows.numbers == WHOLE:
        vnni.multiply(room.values, count, tiles, cells)
    else:
        amx.multiply(room.values, count, tiles, cells)


@njit
def _fill(rows: Rows, group: int, count: int, room: Room) -> None:
    """Fill room.cells with lower bounds of the costs of the frames that were taken."""
    multiply(rows, group, count, room, room.cells)
    part = slice(rows.blocks[group] * ROWS, rows.blocks[group + 1] * ROWS)
    alpha, factor, slack = rows.alpha[part], rows.factor[part], rows.slack[part]
    if rows.numbers == WHOLE:
        own = room.beta[:count], room.factor[:count], room.slack[:count]
        whole_costs(alpha, factor, slack, own[0], own[1], own[2], room.cells)
    else:
        _costs(alpha, slack, count, room)
    if rows.is_cosine:
        _halve_squares(part.stop - part.start, count, room.cells)


@njit
def walk(rows: Rows, group: int, count: int, room: Room, products: Singles, state: Singles) -> None:
    """Go on by the frames that were multiplied, block of rows by block, under steps `strap`.

    `state` [3 R'] keeps D of all rows for the last two frames, and the least of all frames; it
    begins at ∞.
    """
    top, bottom = rows.blocks[group], rows.blocks[group + 1]
    room.carry[:count] = np.inf
    frames, width = np.intp(count), np.intp(products.shape[1] * 4)
    beta, worth = np.intp(room.beta.ctypes.data), np.intp(room.factor.ctypes.data)
    more, carry = np.intp(room.slack.ctypes.data), np.intp(room.carry.ctypes.data)
    far = np.intp(state.shape[1] * 4)
    for block in range(top, bottom):
        cells = np.intp(products.ctypes.data) + (block - top) * (ROWS * 4)
        own = np.intp(rows.lanes.ctypes.data) + block * (ROWS * 4)
        kept = np.intp(state.ctypes.data) + block * (ROWS * 4)
        given = (cells, width, frames, beta, worth, more, carry, own, kept, far)
        if rows.numbers == WHOLE and rows.is_cosine:
            lanes.walk_whole_cosine(given)
        elif rows.numbers == WHOLE:
            lanes.walk_whole(given)
        elif rows.is_cosine:
            lanes.walk_floats_cosine(given)
        else:
            lanes.walk_floats(given)


@njit
def _by_frame(
    rows: Rows,
    wanted: NDArray[np.bool_],
    frames: NDArray[Any],
    scales: Singles,
    mean: Frames,
    scale: bounding.Real,
    room: Room,
    out: Singles,
) -> bool:
    """`_low_costs_of_one` under steps `strap`, frame by frame, see `lanes`."""
    groups = rows.groups.shape[0] - 1
    state = np.full((3, rows.alpha.shape[0]), np.float32(np.inf))
    asked = np.empty(groups, np.bool_)
    for group in range(groups):
        asked[group] = wanted[rows.groups[group] : rows.groups[group + 1]].any()
    for first in range(0, frames.shape[0], FRAMES):
        count = _take(rows, frames, scales, mean, scale, first, room)
        if count == 0:
            return False
        for group in range(groups):
            if asked[group]:
                multiply(rows, group, count, room, room.cells)
                walk(rows, group, count, room, room.cells, state)
    for q in range(out.shape[0]):
        out[q] = state[2, rows.ends[q] - 1]
    return True


@njit
def _by_row(
    rows: Rows,
    wanted: NDArray[np.bool_],
    frames: NDArray[Any],
    scales: Singles,
    mean: Frames,
    scale: bounding.Real,
    code: int,
    room: Room,
    out: Singles,
) -> bool:
    """`_low_costs_of_one` under any steps: the cells of a group, then row by row."""
    M = frames.shape[0]
    D = np.empty((3, M + 2), np.float32)
    for group in range(rows.groups.shape[0] - 1):
        if not wanted[rows.groups[group] : rows.groups[group + 1]].any():
            continue
        top, bottom = rows.blocks[group] * ROWS, rows.blocks[group + 1] * ROWS
        costs = np.empty((bottom - top, M), np.float32)
        for first in range(0, M, FRAMES):
            count = _take(rows, frames, scales, mean, scale, first, room)
            if count == 0:
                return False
            _fill(rows, group, count, room)
            costs[:, first : first + count] = room.cells[:count, : bottom - top].T
        for q in range(rows.groups[group], rows.groups[group + 1]):
            N = rows.ends[q] - rows.begins[q]
            D[:] = np.inf
            for n in range(N):
                bounding.accumulate(n, code, 0, M, costs[rows.begins[q] - top + n], D)
            out[q] = bounding.least(D, N, M, code)
    return True


@njit
def _low_costs_of_one(
    rows: Rows,
    wanted: NDArray[np.bool_],
    frames: NDArray[Any],
    scales: Singles,
    mean: Frames,
    scale: bounding.Real,
    code: int,
    room: Room,
    out: Singles,
) -> bool:
    """out [q] = least D(N, m) over lower-bound cells of one trajectory [m d], for groups of which
    some are wanted [q]. False where the numbers are too large, or none.
    """
    if code == 0:
        return _by_frame(rows, wanted, frames, scales, mean, scale, room, out)
    return _by_row(rows, wanted, frames, scales, mean, scale, code, room, out)


@njit
def low_costs(
    rows: Rows,
    wanted: NDArray[np.bool_],
    addresses: NDArray[np.intp],
    kinds: Ints,
    lengths: Ints,
    dim: int,
    code: int,
    room: Room,
    out: Singles,
    proved: NDArray[np.bool_],
) -> None:
    """out [t q] = least D(N, m) over lower-bound cells of trajectories that lie anywhere, for the
    wanted pairs [t q].

    In one call: threads that come back to Python between small steps wait for each other.
    """
    mean, scale = rows.single_mean, np.float32(rows.scale)
    nothing = np.empty((0, 3), np.float32)
    for i in range(addresses.shape[0]):
        place, shape, own = bits.pointer(addresses[i]), (lengths[i], dim), out[i]
        own[:] = np.inf
        if kinds[i] == BITS_OF_HALVES:
            halves = carray(place, shape, np.uint16)
            proved[i] = _low_costs_of_one(
                rows, wanted[i], halves, nothing, mean, scale, code, room, own
            )
        elif kinds[i] == SINGLES:
            singles = carray(place, shape, np.float32)
            proved[i] = _low_costs_of_one(
                rows, wanted[i], singles, nothing, mean, scale, code, room, own
            )
        else:
            doubles = carray(place, shape, np.float64)
            proved[i] = _low_costs_of_one(
                rows, wanted[i], doubles, nothing, rows.mean, rows.scale, code, room, own
            )


@njit
def low_costs_of_sketches(
    rows: Rows,
    wanted: NDArray[np.bool_],
    numbers: Halves,
    scales: Singles,
    begins: Ints,
    ends: Ints,
    code: int,
    room: Room,
    out: Singles,
    proved: NDArray[np.bool_],
) -> None:
    """As `low_costs`, of sketches [F r] from begins [t] to ends [t]; see `take_sketches`. Queries
    are not moved.
    """
    mean, scale = rows.single_mean, np.float32(rows.scale)
    for i in range(begins.shape[0]):
        part = slice(begins[i], ends[i])
        out[i] = np.inf
        proved[i] = not wanted[i].any() or _low_costs_of_one(
            rows, wanted[i], numbers[part], scales[part], mean, scale, code, room, out[i]
        )
