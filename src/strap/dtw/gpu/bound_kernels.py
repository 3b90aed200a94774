"""The Triton kernels of the lower bounds: local costs, and the recurrence over them.

They run on any GPU that Triton supports, and on the CPU under `TRITON_INTERPRET=1`, as in tests on
machines without a GPU. Inputs are assumed valid. `bounds` launches the kernels and proves that
their results never exceed a cost.

A recurrence holds one column of D, one row per lane of a warp, and moves along the trajectory; a
shuffle gives each lane the row above. `steps.StepLayout` shows where the predecessors are.

The loops carry two columns: `last`, the previous one, and `near`, the minimum of the last two. They
do not carry the one before `last`: Triton 3.6 mistakes a value that a loop only passes on
(older = last) for a constant.
"""

# Triton compiles these functions, and supports no annotations but its own.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

UNROLL = 8  # columns that are loaded together
MAX_QUERY_FRAMES = 1024  # rows that a warp can hold; longer queries are bounded by their first ones
_MAX_QUERY_FRAMES = tl.constexpr(MAX_QUERY_FRAMES)
_UNREACHED = tl.constexpr(2**30)  # exceeds the sum of the local costs of any path
_TO_INTEGER = tl.constexpr(8388608.0)  # 2²³: adding it leaves the nearest integer in the low bits
_EXPONENT = tl.constexpr(0x7F800000)  # the exponent bits of a float32: alone, a power of two


@triton.jit
def bound_local_costs(
    frames, rows, costs,  # tensor descriptors: [F DIM], [R DIM] float16, [F R] uint16
    alpha, beta, row_errors, frame_errors, squares,  # [R], [F], [R], [F], [R]
    largest_norm, unit, cost_step,  # of the frames; σ or σ² []; the cost of one unit []
    n_frame_tiles, n_row_tiles, n_frames,
    DIM: tl.constexpr, FRAMES: tl.constexpr, ROWS: tl.constexpr, DIM_TILE: tl.constexpr,
    IS_ROUNDED: tl.constexpr, IS_COSINE: tl.constexpr,
):  # fmt: skip
    """Write lower bounds of the local costs as integers below 2¹⁶, and the cost of one unit.

    The kernel computes the scale, a power of two, from the largest |a'|² (`squares`) and the
    largest |b' − μ'|, so that the host does not wait for the queries' norms.
    """
    largest = tl.zeros([ROWS], tl.float64)
    for part in range(n_row_tiles):
        largest = tl.maximum(largest, tl.load(squares + part * ROWS + tl.arange(0, ROWS)))
    highest = (tl.sqrt(tl.max(largest, 0)) + largest_norm) * 1.001 + 1e-30
    if IS_COSINE:
        highest = 0.5 * highest * highest
    ratio = tl.minimum(tl.maximum(65535.0 / highest, 2.0**-100), 2.0**100).to(tl.float32)
    scale = (ratio.to(tl.int32, bitcast=True) & _EXPONENT).to(tl.float32, bitcast=True)
    if tl.program_id(0) == 0:
        tl.store(cost_step, (1 - 1e-9) / (scale.to(tl.float64) * tl.load(unit)))
    n_tiles = n_frame_tiles * n_row_tiles
    for tile in tl.range(tl.program_id(0), n_tiles, tl.num_programs(0), flatten=True):
        first, top = (tile // n_row_tiles) * FRAMES, (tile % n_row_tiles) * ROWS
        products = tl.zeros([FRAMES, ROWS], tl.float32)
        for k in range(0, DIM, DIM_TILE):
            products = tl.dot(frames.load([first, k]), rows.load([top, k]).T, products)
        row = top + tl.arange(0, ROWS)
        column = first + tl.arange(0, FRAMES)
        inside = column < n_frames
        a = tl.load(alpha + row)
        b = tl.load(beta + column, mask=inside, other=0.0)
        # If rounding makes it negative, the root is NaN, and the last maximum returns 0.
        cost = tl.sqrt((a[None, :] + b[:, None]) - 2.0 * products)
        if IS_ROUNDED:
            cost -= tl.load(frame_errors + column, mask=inside, other=0.0)[:, None]
        row_error = tl.load(row_errors + row)
        if IS_COSINE:
            cost = tl.maximum(cost - row_error[None, :], 0.0)
            cost = 0.5 * cost * cost
            row_error = tl.zeros([ROWS], tl.float32)
        # A multiple of ½: below 2²³ these are exact in float32.
        offset = _TO_INTEGER - 0.5 * tl.ceil(2 * (row_error * scale + 0.75))
        integer = tl.maximum(cost * scale + offset[None, :], _TO_INTEGER)
        costs.store([first, top], integer.to(tl.int32, bitcast=True).to(tl.uint16))


@triton.jit
def _find_pair(offsets, first_rows, lengths, n_queries, group_row):
    """Return this program's query and trajectory, their first rows and frames, and N and M."""
    query = tl.program_id(0) % n_queries
    trajectory = tl.program_id(0) // n_queries
    first = tl.load(offsets + trajectory)
    M = (tl.load(offsets + trajectory + 1) - first).to(tl.int32)
    top = (tl.load(first_rows + query) - group_row).to(tl.int32)
    N = tl.minimum(tl.load(lengths + query), _MAX_QUERY_FRAMES).to(tl.int32)
    return query, trajectory, top, N, first, M


@triton.jit
def _store_bound(costs, cost_step, lower_bound):
    """Store the smallest of the integer costs as a float64 cost; ∞ if no path fits."""
    smallest = tl.min(costs, 0)
    cost = smallest.to(tl.float64) * tl.load(cost_step)
    tl.store(lower_bound, tl.where(smallest >= _UNREACHED, float("inf"), cost))


@triton.jit
def _accumulate_columns(base, inside, before, state, PITCH: tl.constexpr, COUNT: tl.constexpr):
    """Return the state of `accumulate_strap` after COUNT more columns."""
    even, odd, near_even, near_odd, best_even, best_odd = state
    for i in tl.static_range(COUNT):
        both = tl.load(base + i * PITCH, mask=inside, other=0).to(tl.uint32, bitcast=True)
        shifted = tl.where(before < 0, 0, tl.gather(near_odd, tl.maximum(before, 0), 0))
        now_odd = (both >> 16).to(tl.int32, bitcast=True) + near_even
        now_even = (both & 0xFFFF).to(tl.int32, bitcast=True) + shifted
        near_even, near_odd = tl.minimum(now_even, even), tl.minimum(now_odd, odd)
        even, odd = now_even, now_odd
        best_even, best_odd = tl.minimum(best_even, even), tl.minimum(best_odd, odd)
    return even, odd, near_even, near_odd, best_even, best_odd


@triton.jit(do_not_specialize=["group_row"])
def accumulate_strap(
    costs,  # [F R] uint16, two at a time as int32
    offsets, first_rows, lengths, cost_step,  # [t + 1], [q], [q] int64, [] float64
    lower_bounds, stride, n_queries, group_row,  # [q t] float64
    PITCH: tl.constexpr, PAIRS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Write the smallest D(N, m) of every pair under `strap`; ∞ if no path fits.

    There is one program per (trajectory, query). The queries of a trajectory run together, since
    they read neighbouring costs. The first row of costs is row group_row of all queries' rows. Each
    lane holds an even and an odd row, so that only even rows need the shuffle, and one load reads
    two costs:

        lane      0      1      2
        even    row 0  row 2  row 4     predecessors: the odd row of the previous lane
        odd     row 1  row 3  row 5     predecessors: the even row of the same lane
    """
    query, trajectory, top, N, first, M = _find_pair(
        offsets, first_rows, lengths, n_queries, group_row
    )
    lane = tl.arange(0, PAIRS)
    inside, before = 2 * lane < N, lane - 1
    far = tl.full([PAIRS], _UNREACHED, tl.int32)
    state = far, far, far, far, far, far
    base = costs + first * PITCH + top // 2 + lane
    unrolled = M // UNROLL * UNROLL
    for _ in range(0, unrolled, UNROLL):
        state = _accumulate_columns(base, inside, before, state, PITCH, UNROLL)
        base += UNROLL * PITCH
    for _ in range(unrolled, M):
        state = _accumulate_columns(base, inside, before, state, PITCH, 1)
        base += PITCH
    best = tl.where(N % 2 == 1, state[4], state[5])
    lower_bound = lower_bounds + query * stride + trajectory
    _store_bound(tl.where(lane == (N - 1) // 2, best, _UNREACHED), cost_step, lower_bound)


@triton.jit
def move_down(column, n, ROWS_BACK: tl.constexpr):
    """Return a column [row n] shifted down; its first ROWS_BACK rows are undefined."""
    if ROWS_BACK > 0:
        column = tl.gather(column, tl.maximum(n - ROWS_BACK, 0), 0)
    return column


@triton.jit(do_not_specialize=["group_row"])
def accumulate_others(
    costs, pitch,  # [F R] uint16
    offsets, first_rows, lengths, cost_step,  # as in accumulate_strap
    lower_bounds, stride, n_queries, group_row,
    ROWS: tl.constexpr, SKEW: tl.constexpr, ROWS_BACK: tl.constexpr,  # see StepLayout
):  # fmt: skip
    """Write the smallest D(N, m) of every pair under any step set; ∞ if no path fits."""
    query, trajectory, top, N, first, M = _find_pair(
        offsets, first_rows, lengths, n_queries, group_row
    )
    n = tl.arange(0, ROWS)
    last = tl.full([ROWS], _UNREACHED, tl.int32)
    near, best = last, last
    base = costs + first * pitch + top + n
    for t in range(M + SKEW * (N - 1)):
        m = t - SKEW * n
        inside = (n < N) & (m >= 0) & (m < M)
        cost = tl.load(base + m.to(tl.int64) * pitch, mask=inside, other=0).to(tl.int32)
        before = move_down(near, n, 1)
        for i in tl.static_range(len(ROWS_BACK)):
            other = move_down(last, n, ROWS_BACK[i])
            before = tl.minimum(before, tl.where(n < ROWS_BACK[i], _UNREACHED, other))
        d = tl.minimum(cost + tl.where(n == 0, 0, before), _UNREACHED)
        d = tl.where(inside, d, _UNREACHED)
        near = tl.minimum(d, last)
        last = d
        best = tl.minimum(best, d)
    in_last_row = tl.where(n == N - 1, best, _UNREACHED)
    _store_bound(in_last_row, cost_step, lower_bounds + query * stride + trajectory)
