"""The compiled loops of `int16_bounds`: from frames to the least D of each query.

Under steps `strap` 64 frames at a time are multiplied and go through the recurrence in registers;
under others the local costs of all frames come first, and then row after row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strap.dtw.cpu.float32_recurrence import RING, Real, accumulate_row, cheapest_ending
from strap.dtw.cpu.int16 import gemm
from strap.dtw.cpu.int16.gemm import BLOCK_ROWS
from strap.dtw.cpu.int16.register_recurrence import accumulate_cosine, accumulate_l2
from strap.dtw.cpu.int16.workspace import (
    FRAMES,
    PackedQueries,
    Workspace,
    load_frames,
    load_sketches,
)
from strap.dtw.llvm import pointer_to
from strap.dtw.steps import StepSet
from strap.dtw.types import Bools, Frames, Ints, Singles
from strap.jit import carray, njit

FLOAT16, FLOAT32, FLOAT64 = 0, 1, 2  # kinds of frames


@njit
def multiply_group(
    queries: PackedQueries,
    group: int,
    count: int,
    workspace: Workspace,
    products: NDArray[np.int32],
) -> None:
    """Fill products [64 R' + 16] of a group's rows and the frames that were loaded."""
    packed = queries.packed[queries.blocks[group] : queries.blocks[group + 1]]
    gemm.multiply(workspace.integers, count, packed, products)


@njit
def fill_lower_costs(
    queries: PackedQueries,
    first: int,
    beta: Singles,
    scales: Singles,
    error_bounds: Singles,
    products: NDArray[np.int32],
    factor: Real,
    out: NDArray[Any],
) -> None:
    """Write lower bounds of local costs, times a factor, into out [n m].

    Args:
        queries: the queries.
        first: the first of their rows.
        beta, scales, error_bounds: of the frames [m].
        products: [m n], or with more columns.
        factor: 1, or what rounding and scale take off.
        out: what is filled, float32 or float64.
    """
    zero, costs = np.float32(0), np.empty(out.shape[0], np.float32)
    rows = slice(first, first + out.shape[0])
    alpha, factors, slack = queries.terms[0, rows], queries.terms[1, rows], queries.terms[2, rows]
    for m in range(out.shape[1]):
        for n in range(out.shape[0]):
            product = np.float32(products[m, n]) * (factors[n] * scales[m])
            square = (alpha[n] + beta[m]) + product
            costs[n] = max(np.sqrt(max(square, zero)) - (slack[n] + error_bounds[m]), zero)
        if queries.is_cosine:
            for n in range(out.shape[0]):
                costs[n] = np.float32(0.5) * (costs[n] * costs[n])
        for n in range(out.shape[0]):
            out[n, m] = costs[n] * factor


@njit
def accumulate_frames(
    queries: PackedQueries,
    group: int,
    count: int,
    workspace: Workspace,
    products: NDArray[np.int32],
    state: Singles,
) -> None:
    """Go on by the frames that were multiplied, all rows of a group, under steps `strap`.

    `state` [3 R'] keeps D of all rows for the last two frames, and the least of all frames; it
    begins at ∞.
    """
    top, bottom = queries.blocks[group], queries.blocks[group + 1]
    if queries.accumulates_in_registers:
        workspace.carry[:count] = np.inf
        for block in range(top, bottom):
            cells = products[:, (block - top) * BLOCK_ROWS :]
            _accumulate_block(queries, block, count, workspace, cells, state)
    else:
        rows = slice(top * BLOCK_ROWS, bottom * BLOCK_ROWS)
        costs = np.empty((count, rows.stop - rows.start), np.float32)
        fill_lower_costs(
            queries,
            rows.start,
            workspace.beta,
            workspace.scales,
            workspace.error_bounds,
            products,
            np.float32(1),
            costs.T,
        )
        gates, now = queries.terms[3, rows], np.empty(rows.stop - rows.start, np.float32)
        one, two, best = state[0, rows], state[1, rows], state[2, rows]
        for m in range(count):
            _accumulate_frame(costs[m], gates, now, one, two, best)


@njit
def _accumulate_frame(
    costs: Singles, gates: Singles, now: Singles, one: Singles, two: Singles, best: Singles
) -> None:
    """Go on by one frame, given its costs [n]; see `register_recurrence`. `now` is scratch."""
    now[0] = gates[0]
    for n in range(1, costs.shape[0]):
        now[n] = min(min(one[n - 1], two[n - 1]), gates[n])
    for n in range(costs.shape[0]):
        now[n] += costs[n]
        best[n] = min(best[n], now[n])
    two[:] = one
    one[:] = now


@njit
def _accumulate_block(
    queries: PackedQueries,
    block: int,
    count: int,
    workspace: Workspace,
    products: NDArray[np.int32],
    state: Singles,
) -> None:
    """Do the same for a block of rows in registers; the blocks above it must have gone before."""
    given = (
        np.intp(products.ctypes.data),
        np.intp(products.strides[0]),
        np.intp(count),
        np.intp(workspace.beta.ctypes.data),
        np.intp(workspace.scales.ctypes.data),
        np.intp(workspace.error_bounds.ctypes.data),
        np.intp(workspace.carry.ctypes.data),
        np.intp(queries.terms.ctypes.data) + block * (BLOCK_ROWS * 4),
        np.intp(state.ctypes.data) + block * (BLOCK_ROWS * 4),
        np.intp(state.shape[1] * 4),
    )
    if queries.is_cosine:
        accumulate_cosine(given)
    else:
        accumulate_l2(given)


@njit
def _load(
    queries: PackedQueries,
    frames: NDArray[Any],
    sketch_scales: Singles,
    mean: Frames,
    scale: Real,
    first: int,
    workspace: Workspace,
) -> int:
    """Load frames, or sketches where they have scales."""
    if sketch_scales.shape[0] > 0:
        return load_sketches(queries, frames, sketch_scales, first, workspace)
    return load_frames(queries, frames, mean, scale, first, workspace)


@njit
def _bound_by_frame(
    queries: PackedQueries,
    wanted: Bools,
    frames: NDArray[Any],
    sketch_scales: Singles,
    mean: Frames,
    scale: Real,
    workspace: Workspace,
    out: Singles,
) -> bool:
    """Do `_bound_trajectory` under steps `strap`, frame by frame."""
    n_groups = queries.groups.shape[0] - 1
    state = np.full((3, queries.terms.shape[1]), np.float32(np.inf))
    for first in range(0, frames.shape[0], FRAMES):
        count = _load(queries, frames, sketch_scales, mean, scale, first, workspace)
        if count == 0:
            return False
        for group in range(n_groups):
            if wanted[queries.groups[group] : queries.groups[group + 1]].any():
                multiply_group(queries, group, count, workspace, workspace.products)
                accumulate_frames(queries, group, count, workspace, workspace.products, state)
    for q in range(out.shape[0]):
        out[q] = state[2, queries.ends[q] - 1]
    return True


@njit
def _bound_by_row(
    queries: PackedQueries,
    wanted: Bools,
    frames: NDArray[Any],
    sketch_scales: Singles,
    mean: Frames,
    scale: Real,
    steps: StepSet,
    workspace: Workspace,
    out: Singles,
) -> bool:
    """Do `_bound_trajectory` under any steps: the costs of a group, then row by row."""
    M = frames.shape[0]
    D = np.empty((RING, M + 2), np.float32)
    for group in range(queries.groups.shape[0] - 1):
        members = slice(queries.groups[group], queries.groups[group + 1])
        if not wanted[members].any():
            continue
        rows = slice(queries.blocks[group] * BLOCK_ROWS, queries.blocks[group + 1] * BLOCK_ROWS)
        costs = np.empty((rows.stop - rows.start, M), np.float32)
        for first in range(0, M, FRAMES):
            count = _load(queries, frames, sketch_scales, mean, scale, first, workspace)
            if count == 0:
                return False
            multiply_group(queries, group, count, workspace, workspace.products)
            fill_lower_costs(
                queries,
                rows.start,
                workspace.beta,
                workspace.scales,
                workspace.error_bounds,
                workspace.products,
                np.float32(1),
                costs[:, first : first + count],
            )
        for q in range(members.start, members.stop):
            N = queries.ends[q] - queries.begins[q]
            D[:] = np.inf
            for n in range(N):
                row = costs[queries.begins[q] - rows.start + n]
                accumulate_row(n, 0, M, row, steps.moves, D)
            out[q] = cheapest_ending(D, N, 0, M)
    return True


@njit
def _bound_trajectory(
    queries: PackedQueries,
    wanted: Bools,
    frames: NDArray[Any],
    sketch_scales: Singles,
    mean: Frames,
    scale: Real,
    steps: StepSet,
    workspace: Workspace,
    out: Singles,
) -> bool:
    """Write the least D(N, m) over lower bounds of one trajectory's local costs into out [q].

    It is written for groups of which a query is wanted [q]. Returns False where the numbers are
    too large, or none.
    """
    if steps.is_strap:
        return _bound_by_frame(queries, wanted, frames, sketch_scales, mean, scale, workspace, out)
    return _bound_by_row(queries, wanted, frames, sketch_scales, mean, scale, steps, workspace, out)


@njit
def bound_trajectories(
    queries: PackedQueries,
    addresses: NDArray[np.intp],
    kinds: Ints,
    lengths: Ints,
    dim: int,
    steps: StepSet,
    workspace: Workspace,
    out: Singles,
    is_valid: Bools,
) -> None:
    """Write the bounds of trajectories that lie anywhere into out [t q], see `_bound_trajectory`.

    In one call: threads that come back to Python between small steps wait for each other.
    """
    mean, scale = queries.single_mean, np.float32(queries.scale)
    wanted, no_scales = np.ones(out.shape[1], np.bool_), np.empty((0, 3), np.float32)
    for i in range(addresses.shape[0]):
        place, shape, bounds = pointer_to(addresses[i]), (lengths[i], dim), out[i]
        bounds[:] = np.inf
        if kinds[i] == FLOAT16:
            bits = carray(place, shape, np.uint16)
            is_valid[i] = _bound_trajectory(
                queries, wanted, bits, no_scales, mean, scale, steps, workspace, bounds
            )
        elif kinds[i] == FLOAT32:
            singles = carray(place, shape, np.float32)
            is_valid[i] = _bound_trajectory(
                queries, wanted, singles, no_scales, mean, scale, steps, workspace, bounds
            )
        else:
            doubles = carray(place, shape, np.float64)
            is_valid[i] = _bound_trajectory(
                queries, wanted, doubles, no_scales, queries.mean, queries.scale, steps, workspace,
                bounds,
            )  # fmt: skip


@njit
def bound_sketches(
    queries: PackedQueries,
    wanted: Bools,
    integers: NDArray[np.uint16],
    scales: Singles,
    begins: Ints,
    ends: Ints,
    steps: StepSet,
    workspace: Workspace,
    out: Singles,
    is_valid: Bools,
) -> None:
    """Write the bounds of the wanted pairs [t q] of sketches [F r] into out [t q].

    A trajectory's sketches lie from begins [t] to ends [t]. Queries are not centered. Integers come
    as their bits (uint16): frames of such bits are float16 ones, so nothing is compiled twice.
    """
    mean, scale = queries.single_mean, np.float32(queries.scale)
    for i in range(begins.shape[0]):
        span = slice(begins[i], ends[i])
        out[i] = np.inf
        is_valid[i] = not wanted[i].any() or _bound_trajectory(
            queries, wanted[i], integers[span], scales[span], mean, scale, steps, workspace, out[i]
        )
