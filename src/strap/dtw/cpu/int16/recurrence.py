"""The compiled loops of `int16_bounds`: from frames to the least D of each query.

Under steps `strap` 64 frames at a time are multiplied and go through the recurrence in registers;
under others the local costs of all frames come first, and then row after row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strap.dtw.cpu.float32_recurrence import Real, cheapest_path
from strap.dtw.cpu.int16 import gemm
from strap.dtw.cpu.int16.gemm import BLOCK_ROWS
from strap.dtw.cpu.int16.register_recurrence import accumulate_cosine, accumulate_l2
from strap.dtw.cpu.int16.workspace import FRAMES, PackedQueries, Workspace, load
from strap.dtw.llvm import pointer_to
from strap.dtw.steps import StepSet
from strap.dtw.types import Bools, Frames, Ints, Singles
from strap.jit import carray, njit

FLOAT16, FLOAT32, FLOAT64 = 0, 1, 2  # kinds of frames


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
    if not queries.accumulates_in_registers:
        rows = slice(top * BLOCK_ROWS, bottom * BLOCK_ROWS)
        _accumulate_plainly(queries, rows, count, workspace, products, state)
        return
    workspace.carry[:count] = np.inf
    for block in range(top, bottom):
        given = (
            np.intp(products.ctypes.data) + (block - top) * (BLOCK_ROWS * 4),
            np.intp(products.shape[1] * 4),
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
def _accumulate_plainly(
    queries: PackedQueries,
    rows: slice,
    count: int,
    workspace: Workspace,
    products: NDArray[np.int32],
    state: Singles,
) -> None:
    """Do what `register_recurrence` does, frame by frame in memory."""
    N = rows.stop - rows.start
    costs, now = np.empty((count, N), np.float32), np.empty(N, np.float32)
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
    gates = queries.terms[3, rows]
    one, two, best = state[0, rows], state[1, rows], state[2, rows]
    for m in range(count):
        now[0] = gates[0]
        for n in range(1, N):
            now[n] = min(min(one[n - 1], two[n - 1]), gates[n])
        for n in range(N):
            now[n] += costs[m, n]
            best[n] = min(best[n], now[n])
        two[:] = one
        one[:] = now


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

    It is written for the wanted queries [q], and maybe for others. Returns False where the numbers
    are too large, or none.
    """
    M, n_rows, products = frames.shape[0], queries.terms.shape[1], workspace.products
    state = np.full((3, n_rows), np.float32(np.inf))
    costs = np.empty((n_rows, 0 if steps.is_strap else M), np.float32)
    for first in range(0, M, FRAMES):
        count = load(queries, frames, sketch_scales, mean, scale, first, workspace)
        if count == 0:
            return False
        for group in range(queries.groups.shape[0] - 1):
            if not wanted[queries.groups[group] : queries.groups[group + 1]].any():
                continue
            top, bottom = queries.blocks[group], queries.blocks[group + 1]
            gemm.multiply(workspace.integers, count, queries.packed, top, bottom, products)
            if steps.is_strap:
                accumulate_frames(queries, group, count, workspace, products, state)
            else:
                fill_lower_costs(
                    queries,
                    top * BLOCK_ROWS,
                    workspace.beta,
                    workspace.scales,
                    workspace.error_bounds,
                    products,
                    np.float32(1),
                    costs[top * BLOCK_ROWS : bottom * BLOCK_ROWS, first : first + count],
                )
    for q in range(out.shape[0]):
        if steps.is_strap:
            out[q] = state[2, queries.ends[q] - 1]
        elif wanted[q]:
            out[q] = cheapest_path(costs[queries.begins[q] : queries.ends[q]], steps.moves)
    return True


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

    A trajectory's sketches lie from begins [t] to ends [t]. Queries are not centered.
    """
    mean, scale = queries.single_mean, np.float32(queries.scale)
    for i in range(begins.shape[0]):
        span = slice(begins[i], ends[i])
        out[i] = np.inf
        is_valid[i] = not wanted[i].any() or _bound_trajectory(
            queries, wanted[i], integers[span], scales[span], mean, scale, steps, workspace, out[i]
        )
