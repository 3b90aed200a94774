"""The Triton kernels of the exact alignment, in float64: they equal the definition bit by bit.

The recurrence is laid out as in `bound_kernels`; it also tracks the start column of each path. A
pair is one query and one trajectory. The pairs' matrices are concatenated; that of pair p starts at
column first_columns[p].
"""

# Triton compiles these functions, and supports no annotations but its own.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from strap.dtw.gpu.bound_kernels import move_down


@triton.jit
def transpose_trajectories(
    addresses, lengths, first_columns,  # [p] int64
    columns, dim, TILE: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Write dimension k of frame m of pair p's trajectory to first_columns[p]·dim + k·M + m."""
    pair = tl.program_id(0)
    M = tl.load(lengths + pair)
    if tl.program_id(1) * TILE < M:
        frames = tl.load(addresses + pair).to(tl.pointer_type(DTYPE))
        out = columns + tl.load(first_columns + pair) * dim
        m = (tl.program_id(1) * TILE + tl.arange(0, TILE))[:, None]
        for first in range(0, dim, TILE):
            k = (first + tl.arange(0, TILE))[None, :]
            inside = (m < M) & (k < dim)
            values = tl.load(frames + m * dim + k, mask=inside, other=0.0)
            tl.store(out + k * M + m, values, mask=inside)


@triton.jit
def compute_local_costs(
    columns, lengths,  # from transpose_trajectories; [p] int64
    queries, first_rows, query_lengths,  # [dim pitch] float64, [p], [p] int64
    first_columns, costs, dim, pitch,  # [p] int64, [Σ columns, ALL_ROWS] float64
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, ALL_ROWS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Write costs[first_columns[p] + m, n] = |query frame n − trajectory frame m| of pair p.

    Squared differences are summed in order of dimension, without fused operations, to give the bits
    of `metrics.local_costs`.
    """
    pair = tl.program_id(0)
    M, N = tl.load(lengths + pair), tl.load(query_lengths + pair)
    first, top = tl.program_id(1) * COLUMNS, tl.program_id(2) * ROWS
    if (first < M) & (top < N):
        m = (first + tl.arange(0, COLUMNS))[None, :]
        n = (top + tl.arange(0, ROWS))[:, None]
        first_column = tl.load(first_columns + pair)
        query = queries + tl.load(first_rows + pair) + n
        frame = columns + first_column * dim + m
        squares = tl.zeros([ROWS, COLUMNS], tl.float64)
        for begin in range(0, dim, AHEAD):
            for i in tl.static_range(AHEAD):  # after the last dimension, this adds 0
                k = begin + i + tl.zeros([1, 1], tl.int32)
                a = tl.load(query + k * pitch, mask=(n < N) & (k < dim), other=0.0)
                b = tl.load(frame + k * M, mask=(m < M) & (k < dim), other=0.0)
                difference = a - b.to(tl.float64)
                squares += difference * difference
        out = costs + (first_column + m) * ALL_ROWS + n
        tl.store(out, tl.sqrt(squares), mask=(m < M) & (n < N))


@triton.jit
def _is_better(d, start, other_d, other_start):
    """Return in which rows D is cheaper, or equally cheap with the larger start."""
    return (d < other_d) | ((d == other_d) & (start > other_start))


@triton.jit
def align_pairs(
    costs, first_columns, lengths, query_lengths,  # [Σ columns, ROWS] float64, [p], [p], [p] int64
    best_costs, starts, stops,  # [p] float64, [p], [p] int32
    ROWS: tl.constexpr, AHEAD: tl.constexpr,
    SKEW: tl.constexpr, ROWS_BACK: tl.constexpr,  # see StepLayout
):  # fmt: skip
    """Write cost, start and stop of the cheapest path of each pair; the cost is ∞ if none fits."""
    pair = tl.program_id(0)
    M, N = tl.load(lengths + pair).to(tl.int32), tl.load(query_lengths + pair).to(tl.int32)
    n = tl.arange(0, ROWS)
    infinite = tl.full([ROWS], float("inf"), tl.float64)
    last_d, near_d, best_d = infinite, infinite, infinite
    zeros = tl.zeros([ROWS], tl.int32)
    last_start, near_start, best_start, best_m = zeros, zeros, zeros, zeros
    base = costs + tl.load(first_columns + pair) * ROWS + n
    for begin in range(0, M + SKEW * (N - 1), AHEAD):
        for i in tl.static_range(AHEAD):  # after the last column, all costs are ∞
            m = begin + i - SKEW * n
            inside = (n < N) & (m >= 0) & (m < M)
            cost = tl.load(base + m * ROWS, mask=inside, other=float("inf"))
            d, start = move_down(near_d, n, 1), move_down(near_start, n, 1)
            for j in tl.static_range(len(ROWS_BACK)):
                other_start = move_down(last_start, n, ROWS_BACK[j])
                other_d = move_down(last_d, n, ROWS_BACK[j])
                other_d = tl.where(n < ROWS_BACK[j], float("inf"), other_d)
                better = _is_better(other_d, other_start, d, start)
                d, start = tl.where(better, other_d, d), tl.where(better, other_start, start)
            d, start = tl.where(n == 0, 0.0, d) + cost, tl.where(n == 0, m, start)
            better = _is_better(d, start, last_d, last_start)
            near_d = tl.where(better, d, last_d)
            near_start = tl.where(better, start, last_start)
            last_d, last_start = d, start
            cheaper = d < best_d
            best_d = tl.where(cheaper, d, best_d)
            best_start = tl.where(cheaper, start, best_start)
            best_m = tl.where(cheaper, m, best_m)
    in_last_row = n == N - 1
    tl.store(best_costs + pair, tl.min(tl.where(in_last_row, best_d, float("inf")), 0))
    tl.store(starts + pair, tl.max(tl.where(in_last_row, best_start, -1), 0))
    tl.store(stops + pair, tl.max(tl.where(in_last_row, best_m, -1), 0) + 1)
