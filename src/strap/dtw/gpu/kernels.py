"""The Triton kernels: cells of the filter, their recurrence, and the exact evaluation.

They run on any GPU that Triton knows, and on the CPU under `TRITON_INTERPRET=1`, which is how
they are tested where there is no GPU. Step sets come as numbers (`CODES`); inputs are taken as
valid.

The recurrences hold one column of D, a row of it in each lane of a warp, and walk along the
trajectory. Under `strap` and `fmp` every predecessor lies in an earlier column, so all rows go
at once; D moves down one row by a shuffle:

        column    m−2  m−1   m
        row n−1    o    o    .
        row n      .    .    x

Under `classic` row n also needs row n − 1 of its own column: row n then works on column t − n at
time t, and everything it needs is one or two steps old.

Of the last two columns the better one is carried, `near`, not the older one: Triton 3.6 takes a
value that a loop only hands on (two = one) for one that never changes.
"""

# Triton compiles these functions, and knows no annotations but its own.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

CODES = {"strap": 0, "fmp": 1, "classic": 2}
UNROLL = 8  # columns that are loaded together
LONGEST = 1024  # query frames that one warp can hold; of longer queries the first ones count
UNREACHED = 2**30  # in units of a cell: more than any path that fits
_FAR = tl.constexpr(UNREACHED)
_LONGEST = tl.constexpr(LONGEST)
_FOUR_U = tl.constexpr(2.0**-22)
_TINY = tl.constexpr(1e-12)
_ROUND = tl.constexpr(2.0**-22)  # more than rounding to float32 can add
_MAGIC = tl.constexpr(8388608.0)  # 2²³: adding it leaves the nearest whole number in the low bits
_POWER = tl.constexpr(0x7F800000)  # the bits of a float32 that make it a power of two


@triton.jit
def norms(
    frames,
    mean,
    centered,
    plain,
    total,
    dim,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """centered [F] = |frame − mean|², plain [F] = |frame|², in float64."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < total
    about_mean = tl.zeros([ROWS, BLOCK], tl.float64)
    about_zero = tl.zeros([ROWS, BLOCK], tl.float64)
    for k in range(0, dim, BLOCK):
        column = k + tl.arange(0, BLOCK)
        here = inside[:, None] & (column < dim)[None, :]
        value = tl.load(frames + row[:, None] * dim + column[None, :], mask=here, other=0.0)
        value = value.to(tl.float64)
        center = tl.load(mean + column, mask=column < dim, other=0.0)
        moved = tl.where(here, value - center[None, :], 0.0)
        about_mean += moved * moved
        about_zero += value * value
    tl.store(centered + row, tl.sum(about_mean, 1), mask=inside)
    tl.store(plain + row, tl.sum(about_zero, 1), mask=inside)


@triton.jit(do_not_specialize=["first", "used"])
def rows(
    frames,
    mean,
    shift,
    constants,
    values,
    alpha,
    slack,
    squares,
    first,
    used,
    dim,
    width,
    BLOCK: tl.constexpr,
):
    """A query frame for the filter: a', α and |f| of `bounds`, and |a'|².

    Row r comes from frame first + r of frames [n dim], or is padding from row `used` on;
    values [R width] holds 2^−j a'.
    """
    row = tl.program_id(0)
    real = row + tl.zeros([BLOCK], tl.int32) < used
    scale, back, forth = tl.load(constants), tl.load(constants + 1), tl.load(constants + 2)
    share, away = tl.load(constants + 3), tl.load(constants + 4)
    square = tl.zeros([BLOCK], tl.float64)
    along, off = square, square
    for k in range(0, width, BLOCK):
        column = k + tl.arange(0, BLOCK)
        inside = column < width
        place = frames + (first + row).to(tl.int64) * dim + column
        value = tl.load(place, mask=(column < dim) & real, other=0.0).to(tl.float64)
        center = tl.load(mean + column, mask=inside, other=0.0)
        moved = tl.where(inside & real, (value - center) * scale, 0.0)
        half = (moved * back).to(tl.float32).to(tl.float16)
        tl.store(values + row * width + column, half, mask=inside)
        near = half.to(tl.float64) * forth
        square += near * near
        along += near * tl.load(shift + column, mask=inside, other=0.0)
        off += (moved - near) * (moved - near)
    total = tl.sum(square, 0)
    low = total + 2 * tl.sum(along, 0)
    low = low - _FOUR_U * tl.abs(low) - share * total
    low = low - _TINY * (total + tl.sqrt(total) * away) - 1e-37
    tl.store(alpha + row, (low - _ROUND * tl.abs(low)).to(tl.float32))
    high = tl.sqrt(tl.sum(off, 0)) * (1 + 1e-6) + 1e-37
    tl.store(slack + row, high.to(tl.float32))
    tl.store(squares + row, total)


@triton.jit
def cells(
    frames,
    rows,
    out,
    alpha,
    beta,
    row_slack,
    frame_slack,
    squares,
    reach,
    unit,
    step,
    gain,
    tiles,
    row_tiles,
    total,
    DIM: tl.constexpr,
    FRAMES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROUNDED: tl.constexpr,
    COSINE: tl.constexpr,
):
    """out [F R] = lower bounds of the local costs, as whole numbers below 2¹⁶; see `bounds`.

    `frames`, `rows` and `out` are tensor descriptors. Costs are scaled by a power of two, found
    here from |a'|² (`squares`) and the largest |b' − μ'| (`reach`); `step` becomes what a bound of
    one cell means.
    """
    farthest = tl.zeros([ROWS], tl.float64)
    for part in range(row_tiles):
        farthest = tl.maximum(farthest, tl.load(squares + part * ROWS + tl.arange(0, ROWS)))
    widest = (tl.sqrt(tl.max(farthest, 0)) + reach) * 1.001 + 1e-30
    if COSINE:
        widest = 0.5 * widest * widest
    most = tl.minimum(tl.maximum(65535.0 / widest, 2.0**-100), 2.0**100).to(tl.float32)
    scale = (most.to(tl.int32, bitcast=True) & _POWER).to(tl.float32, bitcast=True)
    if tl.program_id(0) == 0:
        tl.store(step, (1 - 1e-9) / (scale.to(tl.float64) * tl.load(unit)))
    for tile in tl.range(tl.program_id(0), tiles * row_tiles, tl.num_programs(0), flatten=True):
        first, top = (tile // row_tiles) * FRAMES, (tile % row_tiles) * ROWS
        products = tl.zeros([FRAMES, ROWS], tl.float32)
        for k in range(0, DIM, BLOCK):
            products = tl.dot(frames.load([first, k]), rows.load([top, k]).T, products)
        row = top + tl.arange(0, ROWS)
        column = first + tl.arange(0, FRAMES)
        here = column < total
        a = tl.load(alpha + row)
        b = tl.load(beta + column, mask=here, other=0.0)
        # Where rounding makes it negative its root is no number, and the last maximum leaves 0.
        cost = tl.sqrt((a[None, :] + b[:, None]) - gain * products)
        if ROUNDED:
            cost -= tl.load(frame_slack + column, mask=here, other=0.0)[:, None]
        less = tl.load(row_slack + row)
        if COSINE:
            cost = tl.maximum(cost - less[None, :], 0.0)
            cost = 0.5 * cost * cost
            less = tl.zeros([ROWS], tl.float32)
        # A multiple of ½: below 2²³ those are float32 numbers.
        less = _MAGIC - 0.5 * tl.ceil(2 * (less * scale + 0.75))
        whole = tl.maximum(cost * scale + less[None, :], _MAGIC)
        out.store([first, top], whole.to(tl.int32, bitcast=True).to(tl.uint16))


@triton.jit
def _pair(offsets, tops, counts, queries, top_row):
    """This program's query and trajectory, their first rows and columns, and their lengths."""
    query = tl.program_id(0) % queries
    trajectory = tl.program_id(0) // queries
    first = tl.load(offsets + trajectory)
    M = (tl.load(offsets + trajectory + 1) - first).to(tl.int32)
    top = (tl.load(tops + query) - top_row).to(tl.int32)
    N = tl.minimum(tl.load(counts + query), _LONGEST).to(tl.int32)
    return query, trajectory, top, N, first, M


@triton.jit
def _store_least(values, step, low):
    """The least of them as a cost; ∞ where no path fits."""
    value = tl.min(values, 0)
    cost = value.to(tl.float64) * tl.load(step)
    tl.store(low, tl.where(value >= _FAR, float("inf"), cost))


@triton.jit
def _columns(base, inside, before, state, PITCH: tl.constexpr, COUNT: tl.constexpr):
    """`least_strap` through COUNT columns: the state after them."""
    even, odd, near_even, near_odd, least_even, least_odd = state
    for i in tl.static_range(COUNT):
        both = tl.load(base + i * PITCH, mask=inside, other=0).to(tl.uint32, bitcast=True)
        shifted = tl.where(before < 0, 0, tl.gather(near_odd, tl.maximum(before, 0), 0))
        now_odd = (both >> 16).to(tl.int32, bitcast=True) + near_even
        now_even = (both & 0xFFFF).to(tl.int32, bitcast=True) + shifted
        near_even, near_odd = tl.minimum(now_even, even), tl.minimum(now_odd, odd)
        even, odd = now_even, now_odd
        least_even, least_odd = tl.minimum(least_even, even), tl.minimum(least_odd, odd)
    return even, odd, near_even, near_odd, least_even, least_odd


@triton.jit(do_not_specialize=["top_row"])
def least_strap(
    cells,
    offsets,
    tops,
    counts,
    step,
    lows,
    stride,
    queries,
    top_row,
    PITCH: tl.constexpr,
    PAIRS: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """lows [q t] = least D(N, m) under `strap` over cells [F R], times `step`; ∞ if no path fits.

    One program for each (trajectory, query); the queries of a trajectory run together, since they
    read neighbouring cells. Cells begin with row `top_row` of all queries' rows. Even and odd rows
    are held apart, so that only every other row needs the shuffle, and two cells come with one
    load:

        lane      0      1      2
        even    row 0  row 2  row 4     from the odd row of the lane before
        odd     row 1  row 3  row 5     from the even row of the same lane
    """
    query, trajectory, top, N, first, M = _pair(offsets, tops, counts, queries, top_row)
    lane = tl.arange(0, PAIRS)
    inside, before = 2 * lane < N, lane - 1
    far = tl.full([PAIRS], _FAR, tl.int32)
    state = far, far, far, far, far, far
    base = cells + first * PITCH + top // 2 + lane
    whole = M // UNROLL * UNROLL
    for _ in range(0, whole, UNROLL):
        state = _columns(base, inside, before, state, PITCH, UNROLL)
        base += UNROLL * PITCH
    for _ in range(whole, M):
        state = _columns(base, inside, before, state, PITCH, 1)
        base += PITCH
    least = tl.where(N % 2 == 1, state[4], state[5])
    low = lows + query * stride + trajectory
    _store_least(tl.where(lane == (N - 1) // 2, least, _FAR), step, low)


@triton.jit(do_not_specialize=["top_row"])
def least_costs(
    cells,
    pitch,
    offsets,
    tops,
    counts,
    step,
    lows,
    stride,
    queries,
    top_row,
    ROWS: tl.constexpr,
    STEPS: tl.constexpr,
):
    """As `least_strap`, for the other step sets."""
    query, trajectory, top, N, first, M = _pair(offsets, tops, counts, queries, top_row)
    n = tl.arange(0, ROWS)
    up, two_up = tl.maximum(n - 1, 0), tl.maximum(n - 2, 0)
    one = tl.full([ROWS], _FAR, tl.int32)
    near, least = one, one
    base = cells + first * pitch + top + n
    columns = M
    if STEPS == 2:
        columns = M + N - 1
    for t in range(columns):
        m = t + tl.zeros([ROWS], tl.int32)
        if STEPS == 2:
            m = t - n
        here = (n < N) & (m >= 0) & (m < M)
        cost = tl.load(base + m.to(tl.int64) * pitch, mask=here, other=0).to(tl.int32)
        best = tl.gather(near, up, 0)
        if STEPS == 1:
            best = tl.minimum(best, tl.where(n < 2, _FAR, tl.gather(one, two_up, 0)))
        if STEPS == 2:
            best = tl.minimum(best, one)
        now = tl.where(here, tl.minimum(cost + tl.where(n == 0, 0, best), _FAR), _FAR)
        near = tl.minimum(now, one)
        one = now
        least = tl.minimum(least, now)
    _store_least(tl.where(n == N - 1, least, _FAR), step, lows + query * stride + trajectory)


@triton.jit
def transposed(addresses, lengths, places, columns, dim, TILE: tl.constexpr, DTYPE: tl.constexpr):
    """columns [places[p]·dim + k·M + m] = dimension k of frame m of the trajectory of pair p."""
    pair = tl.program_id(0)
    M = tl.load(lengths + pair)
    if tl.program_id(1) * TILE < M:
        frames = tl.load(addresses + pair).to(tl.pointer_type(DTYPE))
        out = columns + tl.load(places + pair) * dim
        m = (tl.program_id(1) * TILE + tl.arange(0, TILE))[:, None]
        for begin in range(0, dim, TILE):
            k = (begin + tl.arange(0, TILE))[None, :]
            here = (m < M) & (k < dim)
            values = tl.load(frames + m * dim + k, mask=here, other=0.0)
            tl.store(out + k * M + m, values, mask=here)


@triton.jit
def exact_costs(
    columns,
    lengths,
    queries,
    tops,
    counts,
    places,
    costs,
    dim,
    pitch,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ALL_ROWS: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """costs [places[p] + m, n] = |query frame n − frame m| of pair p in float64.

    Differences, squares, and their sum in order of the dimension, nothing fused: the bits of
    `reference.local_costs`. Trajectories come from `transposed`; queries [dim pitch] too.
    """
    pair = tl.program_id(0)
    M, N = tl.load(lengths + pair), tl.load(counts + pair)
    first, top = tl.program_id(1) * COLUMNS, tl.program_id(2) * ROWS
    if (first < M) & (top < N):
        m = (first + tl.arange(0, COLUMNS))[None, :]
        n = (top + tl.arange(0, ROWS))[:, None]
        place = tl.load(places + pair)
        query = queries + tl.load(tops + pair) + n
        frame = columns + place * dim + m
        squares = tl.zeros([ROWS, COLUMNS], tl.float64)
        for k in range(0, dim, AHEAD):
            for i in tl.static_range(AHEAD):  # beyond the last dimension 0 is added
                at = k + i + tl.zeros([1, 1], tl.int32)
                a = tl.load(query + at * pitch, mask=(n < N) & (at < dim), other=0.0)
                b = tl.load(frame + at * M, mask=(m < M) & (at < dim), other=0.0)
                difference = a - b.to(tl.float64)
                squares += difference * difference
        where = costs + (place + m) * ALL_ROWS + n
        tl.store(where, tl.sqrt(squares), mask=(m < M) & (n < N))


@triton.jit
def _better(d, s, best, start):
    """Cheaper, or equally cheap with the larger start."""
    return (d < best) | ((d == best) & (s > start))


@triton.jit
def alignments(
    costs,
    places,
    lengths,
    counts,
    cost_out,
    start_out,
    stop_out,
    ROWS: tl.constexpr,
    STEPS: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """The cheapest path of each pair through costs [places[p] + m, n]: cost, start, stop."""
    pair = tl.program_id(0)
    M, N = tl.load(lengths + pair).to(tl.int32), tl.load(counts + pair).to(tl.int32)
    n = tl.arange(0, ROWS)
    up, two_up = tl.maximum(n - 1, 0), tl.maximum(n - 2, 0)
    infinite = tl.full([ROWS], float("inf"), tl.float64)
    one_d, near_d, best_d = infinite, infinite, infinite
    zeros = tl.zeros([ROWS], tl.int32)
    one_s, near_s, best_s, best_m = zeros, zeros, zeros, zeros
    base = costs + tl.load(places + pair) * ROWS + n
    columns = M
    if STEPS == 2:
        columns = M + N - 1
    for begin in range(0, columns, AHEAD):
        for i in tl.static_range(AHEAD):  # beyond the last column all is ∞
            t = begin + i
            m = t + zeros
            if STEPS == 2:
                m = t - n
            here = (n < N) & (m >= 0) & (m < M)
            cost = tl.load(base + m * ROWS, mask=here, other=float("inf"))
            d, s = tl.gather(near_d, up, 0), tl.gather(near_s, up, 0)
            if STEPS == 1:
                far_d = tl.where(n < 2, float("inf"), tl.gather(one_d, two_up, 0))
                far_s = tl.gather(one_s, two_up, 0)
                better = _better(far_d, far_s, d, s)
                d, s = tl.where(better, far_d, d), tl.where(better, far_s, s)
            if STEPS == 2:
                better = _better(one_d, one_s, d, s)
                d, s = tl.where(better, one_d, d), tl.where(better, one_s, s)
            d, s = tl.where(n == 0, 0.0, d) + cost, tl.where(n == 0, m, s)
            better = _better(d, s, one_d, one_s)
            near_d, near_s = tl.where(better, d, one_d), tl.where(better, s, one_s)
            one_d, one_s = d, s
            cheaper = d < best_d
            best_d = tl.where(cheaper, d, best_d)
            best_s = tl.where(cheaper, s, best_s)
            best_m = tl.where(cheaper, m, best_m)
    last = n == N - 1
    tl.store(cost_out + pair, tl.min(tl.where(last, best_d, float("inf")), 0))
    tl.store(start_out + pair, tl.max(tl.where(last, best_s, -1), 0))
    tl.store(stop_out + pair, tl.max(tl.where(last, best_m, -1), 0) + 1)
