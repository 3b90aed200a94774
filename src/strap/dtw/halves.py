"""Lower bounds from bfloat16 products, for processors that multiply those by themselves (AMX).

What is proved here: `HalfFilter.bounds` never exceeds the cost that `kernels.align` returns. As in
`bounds`, let u = 2⁻²⁴, a, b be frames in float64, μ a mean and s a power of two.

1. Both are moved, scaled, rounded to float32 and then to bfloat16: s(a − μ) = a' + f. |f| is
   computed: the second rounding exactly, the first is at most u(1 + 2⁻²⁸) of its result. So
   s|a − b| ≥ |a' − b'| − |f| − |e|, e being the same for b.
2. Products of bfloat16 numbers are exact in float32. Sums are float32, in any order: each addition
   errs by at most 2⁻²³ of the sum of absolute values (half of that, in fact), together by γ|a'||b'|
   ≤ γ(A + B)/2 with γ = (d + 16)2⁻²³, A = |a'|², B = |b'|². With P the product of −2a' and b':
   |a' − b'|² ≥ A + B + P − γ(A + B).
3. A and B are summed in float32 over runs of 256, then in float64; the kernel's operations in
   float32 err by at most u of values below 3(A + B). κ = γ + (256 + 32)u covers all: with
   α = ⌊(1 − κ)A − τ⌋ and β = ⌊(1 − κ)B⌋ the kernel's square is at most |a' − b'|². τ = 1e−32
   covers underflow: numbers and sums below 2⁻¹²⁶ are taken as 0, d of each.
4. The root, at most |a'| + |b'| and a little, gains 2u of itself, and the subtraction of the two
   errors as much: 8u|a'| and 8u|b'| are added to |f| and |e|. Under cosine the difference is
   squared, which gains 2u. What follows is step 5 of `bounds`, whose 8u cover that.

Split numbers are tighter, for three times the products: a' = a₁ + a₂, where a₂ is what rounding to
a₁ took off, rounded itself; A is |a₁ + a₂|². P is the product of −2(a₁, a₂, a₁) with (b₂, b₁, b₁),
3d numbers instead of d. That is −2a'·b' but for 2a₂·b₂, and |a₂| ≤ 2⁻⁸|a₁| ≤ 2⁻⁸(1 + 2⁻⁷)|a'|, so
that another 2⁻¹⁵(A + B) covers it. The sums' absolute values are at most (1 + 2⁻⁵)|a'||b'|, and
2·2⁻²³ for each of 3d additions covers those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strap.dtw import amx, bits, bounding, checks
from strap.dtw.bounds import Tiled, U, round_down
from strap.dtw.jit import carray, njit, njit_reordered
from strap.dtw.pieces import Stacked, aligned, as_values
from strap.dtw.types import Floats, Frames, Halves, Ints, Singles

WORTH = 1e8  # multiplications from which on a filter of its own pays
LARGEST_DIM = 2**16
UNDERFLOW = 1e-32
BITS_OF_HALVES, SINGLES, DOUBLES = 0, 1, 2  # kinds of frames


def pays(rows: int, frames: int, dim: int) -> bool:
    """Whether a search whose first piece has that many frames should use bfloat16 products."""
    return rows * frames * dim > WORTH and usable(dim)


def usable(dim: int) -> bool:
    """Whether the processor multiplies such numbers by itself, and bounds of them are any good."""
    return dim <= LARGEST_DIM and amx.available()


class _Rows(NamedTuple):
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


class HalfFilter(Tiled):
    """Bounds from bfloat16 products: as `bounds.Filter` gives them, a little lower.

    With split numbers they are as close, and for some pairs only they can be had for less.
    """

    tile_frames = 2048

    def __init__(
        self,
        queries: Sequence[Frames],
        steps: str,
        metric: str,
        pool: Executor,
        *,
        split: bool = False,
    ) -> None:
        super().__init__(Stacked.of(queries, metric), steps, metric, pool)
        self.split = split
        numbers = self.stacked.frames.shape[1] * (3 if split else 1)
        self.width = -(-numbers // amx.STEP) * amx.STEP
        self._rows = self._prepared()
        self._columns = int(np.diff(self._rows.blocks).max()) * amx.ROWS + amx.BESIDE

    def _prepared(self) -> _Rows:
        rows, dim = self.stacked.frames.shape
        halves = np.zeros((rows, self.width), np.uint16)
        squares, errors = np.empty((2, rows))
        mean, scale = self.stacked.mean, self.stacked.scale
        _round(self.stacked.frames, mean, scale, self.split, halves, squares, errors)
        if self.split:  # what meets (b₂, b₁, b₁)
            halves[:, : 2 * dim] = np.roll(halves[:, : 2 * dim], dim, axis=1)
        additions = 2 * 3 * dim if self.split else dim
        shrink = 1 - (additions + 16) * 2.0**-23 - (bounding.RUN + 32) * U
        shrink -= 2.0**-15 if self.split else 0
        doubled = (halves.astype(np.uint32) << 16).view(np.float32) * np.float32(-2)  # exact
        halves = (doubled.view(np.uint32) >> 16).astype(np.uint16)
        singles = np.stack(
            [round_down(shrink * squares - UNDERFLOW), _raised(errors, squares)], axis=1
        )
        borders, groups = self.stacked.borders, self._groups()
        parts = [slice(borders[group.start], borders[group.stop]) for group in groups]
        tiles = [amx.packed(halves[part]) for part in parts]
        blocks = np.cumsum([0, *map(len, tiles)])
        begins, padded = np.empty(len(borders) - 1, np.int64), np.zeros((blocks[-1] * amx.ROWS, 2))
        for group, part, block in zip(groups, parts, blocks, strict=False):
            first = block * amx.ROWS
            begins[group.start : group.stop] = (
                borders[group.start : group.stop] - part.start + first
            )
            padded[first : first + part.stop - part.start] = singles[part]
        whole = aligned((blocks[-1], *tiles[0].shape[1:]), np.uint16)
        np.concatenate(tiles, out=whole)
        return _Rows(
            whole,
            padded[:, 0].astype(np.float32),
            padded[:, 1].astype(np.float32),
            begins,
            begins + np.diff(borders),
            np.array([group.start for group in groups] + [groups[-1].stop]),
            blocks,
            mean,
            self.stacked.single_mean,
            scale,
            shrink,
            self.metric == "cosine",
            self.split,
        )

    def _groups(self) -> list[range]:
        """Queries that are multiplied together: each on its own where few are asked for."""
        if self.split:
            return [range(q, q + 1) for q in range(len(self.stacked.borders) - 1)]
        return self.stacked.groups()

    def some(self, frames: Sequence[Frames], wanted: NDArray[np.bool_]) -> Floats:
        """Lower bounds of the wanted pairs [q t], 0 for the others; on the caller's thread.

        Frames are taken as valid.
        """
        lows, proved = np.zeros(wanted.shape, np.float32), np.zeros(len(frames), np.bool_)
        self._fill(frames, wanted, lows, proved)
        lengths = np.array([len(own) for own in frames])
        return self._certain(np.where(wanted, lows, 0), lengths, proved)

    def _tile(
        self,
        frames: Sequence[Frames],
        name: Callable[[int], str],
        lows: Singles,
        proved: NDArray[np.bool_],
    ) -> None:
        self._fill(frames, np.ones(lows.shape, np.bool_), lows, proved)
        for i in np.flatnonzero(~proved):
            checks.values(frames[int(i)], name(int(i)), self.metric)

    def _fill(
        self,
        frames: Sequence[Frames],
        wanted: NDArray[np.bool_],
        lows: Singles,
        proved: NDArray[np.bool_],
    ) -> None:
        """Fill lows [q t] of the wanted pairs and proved [t], in one compiled call."""
        plain = [self._plain(own) for own in frames]
        lengths = np.array([len(own) for own in frames])
        longest = -(-int(lengths.max()) // amx.FRAMES) * amx.FRAMES
        found = np.empty(lows.T.shape, np.float32)
        _low_costs(
            self._rows,
            np.ascontiguousarray(wanted.T),
            np.array([own.__array_interface__["data"][0] for own in plain], np.intp),
            np.array([_KINDS[own.dtype.type] for own in plain], np.int64),
            lengths,
            self.stacked.frames.shape[1],
            self.code,
            self.buffers.get("values", np.uint16, longest, self.width),
            self.buffers.get("products", np.float32, amx.FRAMES, self._columns),
            found,
            proved,
        )
        lows[:] = found.T

    def _plain(self, frames: Frames) -> Frames:
        """Frames as the compiled loop reads them from memory."""
        if self.metric == "l2" and self.stacked.is_ordinary and frames.dtype.type in _KINDS:
            return np.ascontiguousarray(frames)
        with np.errstate(invalid="ignore"):  # 0/0 under cosine: reported later, by name
            return np.ascontiguousarray(as_values(frames, self.metric), np.float64)


_KINDS = {np.float16: BITS_OF_HALVES, np.float32: SINGLES, np.float64: DOUBLES}


def _raised(errors: Floats, squares: Floats) -> Singles:
    """`_raise` of many."""
    return np.array([_raise(*pair) for pair in zip(errors, squares, strict=True)], np.float32)


@njit
def _raise(error: float, square: float) -> np.float32:
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
def _round(
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
def _add_distances(
    alpha: Singles,
    slack: Singles,
    beta: np.float32,
    more: np.float32,
    products: Singles,
    one: Singles,
    two: Singles,
    out: Singles,
) -> None:
    """out [R] = lower bounds of one frame's distances + the smaller predecessor."""
    zero = np.float32(0)
    for n in range(out.shape[0]):
        square = (alpha[n] + beta) + products[n]
        distance = max(np.sqrt(max(square, zero)) - (slack[n] + more), zero)
        out[n] = distance + min(one[n], two[n])


@njit
def _costs_of_frame(
    rows: _Rows, part: slice, beta: np.float32, more: np.float32, products: Singles, out: Singles
) -> None:
    """out [R] = lower bounds of one frame's costs."""
    alpha, slack, zero = rows.alpha[part], rows.slack[part], np.float32(0)
    for n in range(out.shape[0]):
        square = (alpha[n] + beta) + products[n]
        out[n] = max(np.sqrt(max(square, zero)) - (slack[n] + more), zero)
    if rows.is_cosine:
        for n in range(out.shape[0]):
            out[n] = np.float32(0.5) * (out[n] * out[n])


@njit
def _by_frame(
    rows: _Rows,
    group: int,
    values: Halves,
    beta: Singles,
    slack: Singles,
    products: Singles,
    out: Singles,
) -> None:
    """out [q] = least D(N, m) of steps `strap` for a group, frame by frame, all queries at once.

    Predecessors lie one row up and one or two frames back, so that a frame's cells don't wait for
    each other. `before` keeps of the last frames, for every row, the D one row up: 0 above a
    query's first row.
    """
    first, last = rows.blocks[group], rows.blocks[group + 1]
    top, R = first * amx.ROWS, (last - first) * amx.ROWS
    part, queries = slice(top, top + R), range(rows.groups[group], rows.groups[group + 1])
    before = np.full((3, R + 1), np.float32(np.inf))
    costs = np.empty(R, np.float32)
    for q in queries:
        before[:, rows.begins[q] - top] = 0
    M = beta.shape[0]
    for m in range(M):
        if m % amx.FRAMES == 0:
            count = min(M - m, amx.FRAMES)
            amx.multiply(values[m:], count, rows.tiles[first:last], products)
        now, one, two = before[m % 3], before[(m + 2) % 3, :R], before[(m + 1) % 3, :R]
        own = products[m % amx.FRAMES, :R]
        if rows.is_cosine:
            _costs_of_frame(rows, part, beta[m], slack[m], own, costs)
            bounding.add_least(costs, one, two, now[1:])
        else:
            alpha, errors = rows.alpha[part], rows.slack[part]
            _add_distances(alpha, errors, beta[m], slack[m], own, one, two, now[1:])
        for q in queries:
            out[q] = min(out[q], now[rows.ends[q] - top])
        for q in queries:
            now[rows.begins[q] - top] = 0


@njit
def _by_row(
    rows: _Rows,
    group: int,
    values: Halves,
    beta: Singles,
    slack: Singles,
    products: Singles,
    code: int,
    out: Singles,
) -> None:
    """As `_by_frame`, for any steps, row by row."""
    first, last = rows.blocks[group], rows.blocks[group + 1]
    top, R, M = first * amx.ROWS, (last - first) * amx.ROWS, beta.shape[0]
    part = slice(top, top + R)
    costs = np.empty((M, R), np.float32)
    for m in range(M):
        if m % amx.FRAMES == 0:
            count = min(M - m, amx.FRAMES)
            amx.multiply(values[m:], count, rows.tiles[first:last], products)
        own = products[m % amx.FRAMES, :R]
        _costs_of_frame(rows, part, beta[m], slack[m], own, costs[m])
    row, D = np.empty(M, np.float32), np.empty((3, M + 2), np.float32)
    for q in range(rows.groups[group], rows.groups[group + 1]):
        N = rows.ends[q] - rows.begins[q]
        D[:] = np.inf
        for n in range(N):
            row[:] = costs[:, rows.begins[q] - top + n]
            bounding.accumulate(n, code, 0, M, row, D)
        out[q] = bounding.least(D, N, M, code)


@njit
def _low_costs_of_one(
    rows: _Rows,
    wanted: NDArray[np.bool_],
    frames: NDArray[Any],
    mean: Frames,
    scale: bounding.Real,
    code: int,
    values: Halves,
    products: Singles,
    out: Singles,
) -> bool:
    """out [q] = least D(N, m) over lower-bound cells of one trajectory [m d], for groups of which
    some are wanted [q]; values are memory for its moved frames, 0 beyond d. False where the numbers
    are too large, or none.
    """
    M = frames.shape[0]
    squares, errors = np.empty(M), np.empty(M)
    beta, slack = np.empty(M, np.float32), np.empty(M, np.float32)
    _round(frames, mean, scale, rows.is_split, values, squares, errors)
    for m in range(M):
        if not squares[m] + errors[m] <= bounding.LARGEST_SQUARE:
            return False
        beta[m] = np.float32(rows.shrink * squares[m] * (1 - 2.0**-23))
        slack[m] = _raise(errors[m], squares[m])
    for group in range(rows.groups.shape[0] - 1):
        if not wanted[rows.groups[group] : rows.groups[group + 1]].any():
            continue
        if code == 0:
            _by_frame(rows, group, values, beta, slack, products, out)
        else:
            _by_row(rows, group, values, beta, slack, products, code, out)
    return True


@njit
def _low_costs(
    rows: _Rows,
    wanted: NDArray[np.bool_],
    addresses: NDArray[np.intp],
    kinds: Ints,
    lengths: Ints,
    dim: int,
    code: int,
    values: Halves,
    products: Singles,
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
                rows, wanted[i], halves, mean, scale, code, values, products, own
            )
        elif kinds[i] == SINGLES:
            singles = carray(place, shape, np.float32)
            proved[i] = _low_costs_of_one(
                rows, wanted[i], singles, mean, scale, code, values, products, own
            )
        else:
            doubles = carray(place, shape, np.float64)
            proved[i] = _low_costs_of_one(
                rows, wanted[i], doubles, rows.mean, rows.scale, code, values, products, own
            )
