"""The compiled loops of `int16_bounds`: from frames to the least D of each query.

Under steps `strap` 64 frames at a time are multiplied and go through the recurrence in registers;
under others the local costs of all frames come first, and then row after row. Where both can be
used they give the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strap.dtw.alignment import cheapest_cost
from strap.dtw.cpu.int16 import gemm
from strap.dtw.cpu.int16.gemm import BLOCK_ROWS
from strap.dtw.cpu.int16.register_recurrence import accumulate_cosine, accumulate_l2
from strap.dtw.cpu.int16.workspace import LOADED_FRAMES, PackedQueries, Workspace, load
from strap.dtw.llvm import pointer_to
from strap.dtw.steps import StepSet
from strap.dtw.types import Bools, Ints, Real, Singles
from strap.jit import carray, njit


@njit
def fill_lower_costs(
    queries: PackedQueries,
    first: int,
    terms: Singles,
    products: NDArray[np.int32],
    factor: Real,
    out: NDArray[Any],
) -> None:
    """Write lower bounds of local costs, times a factor, into out [n m].

    Args:
        first: the first of their rows.
        terms: of the frames, [3 m] or with more columns, see `Workspace`.
        products: [m n], or with more columns.
        factor: 1, or what rounding and scale take off.
        out: what is filled, float32 or float64.
    """
    zero, costs = np.float32(0), np.empty(out.shape[0], np.float32)
    rows, (beta, scales, error_bounds) = slice(first, first + out.shape[0]), terms
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
def _accumulate_frames(
    queries: PackedQueries, group: int, count: int, workspace: Workspace, state: Singles
) -> None:
    """Continue the recurrence over the frames just multiplied, for a group's rows under `strap`.

    `state` [3 R'] keeps D of all rows for the last two frames, and the least of all frames; it
    begins at ∞.
    """
    products, top = workspace.products, queries.blocks[group]
    workspace.carry[:count] = np.inf
    for block in range(top, queries.blocks[group + 1]):
        arguments = (
            np.intp(products.ctypes.data) + (block - top) * (BLOCK_ROWS * 4),
            np.intp(products.shape[1] * 4),
            np.intp(count),
            np.intp(workspace.terms.ctypes.data),
            np.intp(workspace.terms.shape[1] * 4),
            np.intp(workspace.carry.ctypes.data),
            np.intp(queries.terms.ctypes.data) + block * (BLOCK_ROWS * 4),
            np.intp(state.ctypes.data) + block * (BLOCK_ROWS * 4),
            np.intp(state.shape[1] * 4),
        )
        if queries.is_cosine:
            accumulate_cosine(arguments)
        else:
            accumulate_l2(arguments)


@njit
def _bound_trajectory(
    queries: PackedQueries,
    wanted: Bools,
    frames: NDArray[Any],
    sketch_scales: Singles,
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
    for first in range(0, M, LOADED_FRAMES):
        count = load(queries, frames, sketch_scales, first, workspace)
        if count == 0:
            return False
        for group in range(queries.groups.shape[0] - 1):
            if not wanted[queries.groups[group] : queries.groups[group + 1]].any():
                continue
            top, bottom = queries.blocks[group], queries.blocks[group + 1]
            gemm.multiply(workspace.integers, count, queries.packed, top, bottom, products)
            if steps.is_strap:
                _accumulate_frames(queries, group, count, workspace, state)
            else:
                row, end = top * BLOCK_ROWS, bottom * BLOCK_ROWS
                part = costs[row:end, first : first + count]
                fill_lower_costs(queries, row, workspace.terms, products, np.float32(1), part)
    for q in range(out.shape[0]):
        if steps.is_strap:
            out[q] = state[2, queries.ends[q] - 1]
        elif wanted[q]:
            out[q] = cheapest_cost(costs[queries.begins[q] : queries.ends[q]], steps.moves)
    return True


@njit
def bound_trajectories(
    queries: PackedQueries,
    wanted: Bools,
    addresses: NDArray[np.intp],
    scale_addresses: NDArray[np.intp],
    lengths: Ints,
    example: NDArray[Any],
    steps: StepSet,
    workspace: Workspace,
    out: Singles,
    is_valid: Bools,
) -> None:
    """Write the bounds of the wanted pairs [t q] into out [t q], see `_bound_trajectory`.

    In one call: threads that come back to Python between small steps wait for each other.

    Args:
        queries: the queries; not centered where trajectories are sketches.
        wanted: of which pairs bounds are wanted.
        addresses: where each trajectory's frames or sketches lie [t], row by row.
        scale_addresses: where the scales of its sketches lie [t]; 0 for frames.
        lengths: how many frames or sketches those are [t].
        example: [0 d] of their kind; float16 ones and sketches as their bits.
        out: what is filled; ∞ where no path fits or where it is not wanted.
        is_valid: what is filled, see `_bound_trajectory` [t].
    """
    for i in range(addresses.shape[0]):
        out[i] = np.inf
        frames = carray(pointer_to(addresses[i]), (lengths[i], example.shape[1]), example.dtype)
        n_scales = lengths[i] if scale_addresses[i] else 0
        scales = carray(pointer_to(scale_addresses[i]), (n_scales, 3), np.float32)
        is_valid[i] = not wanted[i].any() or _bound_trajectory(
            queries, wanted[i], frames, scales, steps, workspace, out[i]
        )
