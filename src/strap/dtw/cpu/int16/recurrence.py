"""The compiled functions of `int16_bounds`: from frames to the smallest D(N, m) of each query.

Under steps `strap`, 64 frames at a time are multiplied and the recurrence continues over them, all
rows of a frame at once. Under other steps the local costs of all frames are computed first, then D
row by row. Under `strap` both would give the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strap.dtw.alignment import cheapest_cost
from strap.dtw.cpu.int16 import gemm
from strap.dtw.cpu.int16.gemm import BLOCK_ROWS
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
        queries: the packed queries.
        first: the first of their rows.
        terms: of the frames, [3 m] or with more columns, see `Workspace`.
        products: [m n], or with more columns.
        factor: 1, or a factor that undoes the scale and covers rounding.
        out: the output, float32 or float64.
    """
    costs, rows = np.empty(out.shape[0], np.float32), slice(first, first + out.shape[0])
    alpha, factors, slack = queries.terms[0, rows], queries.terms[1, rows], queries.terms[2, rows]
    for m in range(out.shape[1]):
        beta, scale, error_bound = terms[0, m], terms[1, m], terms[2, m]
        for n in range(out.shape[0]):
            square = (alpha[n] + beta) + np.float32(products[m, n]) * (factors[n] * scale)
            costs[n] = _lower_cost(square, slack[n] + error_bound, queries.is_cosine)
        for n in range(out.shape[0]):
            out[n, m] = costs[n] * factor


@njit
def _lower_cost(square: np.float32, error: np.float32, is_cosine: bool) -> Any:
    """Return a lower bound of a local cost from a lower bound of the squared distance."""
    cost = max(np.sqrt(max(square, np.float32(0))) - error, np.float32(0))
    return np.float32(0.5) * (cost * cost) if is_cosine else cost


@njit
def _accumulate_frames(
    queries: PackedQueries,
    group: int,
    frames: range,
    workspace: Workspace,
    D: Singles,
    out: Singles,
) -> None:
    """Continue the recurrence under `strap` over the frames just multiplied, for a group's rows.

    A cell's predecessors are one row up and one or two frames back, so the rows of a frame do not
    depend on each other:

        D(n, m) = cost(n, m) + min(gate(n), D(n − 1, m − 1), D(n − 1, m − 2))

    The gate is 0 in the first row of each query, where paths start, and ∞ in all other rows.

    Args:
        queries: the packed queries.
        group: the group's index.
        frames: the indices of the frames just multiplied.
        workspace: holds their products with the group.
        D: [3 R' + 1], row n in column n + 1, for the last three frames; ∞ at first.
        out: the smallest D(N, m) of each query so far [q].
    """
    top, bottom = queries.blocks[group] * BLOCK_ROWS, queries.blocks[group + 1] * BLOCK_ROWS
    rows, rows_above = slice(top + 1, bottom + 1), slice(top, bottom)
    alpha, factors = queries.terms[0, top:bottom], queries.terms[1, top:bottom]
    slack, gates = queries.terms[2, top:bottom], queries.terms[3, top:bottom]
    terms, products = workspace.terms, workspace.products
    costs = workspace.costs[: bottom - top]
    for i, m in enumerate(frames):
        beta, scale, error_bound = terms[0, i], terms[1, i], terms[2, i]
        for n in range(costs.shape[0]):
            square = (alpha[n] + beta) + np.float32(products[i, n]) * (factors[n] * scale)
            costs[n] = _lower_cost(square, slack[n] + error_bound, queries.is_cosine)
        now = D[m % 3, rows]
        before, before_that = D[(m - 1) % 3, rows_above], D[(m - 2) % 3, rows_above]
        for n in range(costs.shape[0]):
            now[n] = costs[n] + min(gates[n], min(before[n], before_that[n]))
        for q in range(queries.groups[group], queries.groups[group + 1]):
            out[q] = min(out[q], D[m % 3, queries.ends[q]])


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
    """Write the smallest D(N, m) over lower bounds of one trajectory's local costs into out [q].

    It is written for the wanted queries [q], and perhaps for others. Return False if frames are
    NaN, ∞ or too large.
    """
    M, n_rows, products = frames.shape[0], queries.terms.shape[1], workspace.products
    D = np.full((3, n_rows + 1), np.float32(np.inf))
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
                _accumulate_frames(queries, group, range(first, first + count), workspace, D, out)
            else:
                row, end = top * BLOCK_ROWS, bottom * BLOCK_ROWS
                part = costs[row:end, first : first + count]
                fill_lower_costs(queries, row, workspace.terms, products, np.float32(1), part)
    for q in range(out.shape[0]):
        if wanted[q] and not steps.is_strap:
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
    """Write the bounds of the wanted pairs [t q] into out [t q]; see `_bound_trajectory`.

    It is one call for all, because threads that return to Python often would wait for each other.

    Args:
        queries: the packed queries; not centered if the trajectories are sketches.
        wanted: the pairs whose bounds are wanted.
        addresses: the address of each trajectory's contiguous frames or sketches [t].
        scale_addresses: the address of its sketches' scales [t]; 0 for frames.
        lengths: the number of its frames or sketches [t].
        example: [0 d] of the frames' dtype; uint16 (bits) for float16 frames and sketches.
        out: the output; ∞ if no path fits, undefined if not wanted.
        is_valid: the output [t] of `_bound_trajectory`.
    """
    for i in range(addresses.shape[0]):
        out[i] = np.inf
        frames = carray(pointer_to(addresses[i]), (lengths[i], example.shape[1]), example.dtype)
        n_scales = lengths[i] if scale_addresses[i] else 0
        scales = carray(pointer_to(scale_addresses[i]), (n_scales, 3), np.float32)
        is_valid[i] = not wanted[i].any() or _bound_trajectory(
            queries, wanted[i], frames, scales, steps, workspace, out[i]
        )
