"""Lower bounds from products of 16-bit numbers, for processors that multiply those faster.

What is proved here: `HalfFilter.bounds` never exceeds the cost that `kernels.align` returns. As in
`bounds`, let u = 2⁻²⁴, a, b be frames in float64, μ a mean and s a power of two.

First bfloat16 numbers (`amx`):

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

Integers (`vnni`) are ten times as close as bfloat16: a' = ρi, where ρ is a float32 number of the
frame's own and i the integers nearest to the moved float32 numbers x, times the inverse of ρ. In
step 1 |x − ρi| is ρ times the computed distance from i, and at most 2.1u|x| more, as the inverse
and the multiplication are rounded: together with step 4 12u|a'| cover it. In step 2 products and
sums of integers are exact, squares too, because they fit in 31 bits: ρ is chosen so that |i| is at
most 46,100, 2⁻⁹ of that (float32 sums choose ρ) and √d/2, whose square is below 2³¹, and no product
is more than |i||j|. It is also so large that no integer has more than 16 bits. P = −2ρσ(i·j) has
three more roundings of values below A + B: κ = 32u covers all of step 3. A frame whose numbers are
all below 1e−15 is taken as 0, and its length as an error. Sketches are such numbers already, with
errors of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import cast

import numpy as np
from numpy.typing import NDArray

from strap.dtw import amx, bounding, checks, halving, sweeps, vnni
from strap.dtw.bounds import Tiled, U, round_down
from strap.dtw.halving import BESIDE, BFLOAT, FRAMES, ROWS, SPLIT, WHOLE, Rows
from strap.dtw.pieces import Stacked, aligned, aligned_copy, as_values
from strap.dtw.types import Floats, Frames, Singles, Sketched

WORTH = 1e8  # multiplications from which on a filter of its own pays
LARGEST_DIM = 2**16
UNDERFLOW = 1e-32


def pays(rows: int, frames: int, dim: int) -> bool:
    """Whether a search whose first piece has that many frames should use 16-bit numbers."""
    able = amx.available() or vnni.available()
    return rows * frames * dim > WORTH and dim <= LARGEST_DIM and able


def by_integers(dim: int) -> bool:
    """Whether products of integers are faster than of float32, for some pairs."""
    return vnni.available() and vnni.STEP // 2 <= dim <= LARGEST_DIM


def fastest() -> int:
    """The kind of numbers that bound all pairs in the least time."""
    return BFLOAT if amx.available() or not vnni.available() else WHOLE


class Prepared:
    """Queries as 16-bit numbers."""

    def __init__(self, stacked: Stacked, metric: str, numbers: int, *, alone: bool) -> None:
        """`alone`: each query is a group of its own, for searches that ask for few pairs."""
        self.stacked, self.numbers = stacked, numbers
        self.is_plain = metric == "l2" and stacked.is_ordinary
        self.metric, dim = metric, stacked.frames.shape[1]
        step = vnni.STEP if numbers == WHOLE else amx.STEP
        self.width = -(-dim * (3 if numbers == SPLIT else 1) // step) * step
        queries = range(len(stacked.borders) - 1)
        groups = [range(q, q + 1) for q in queries] if alone else stacked.groups()
        self.rows = self._rows(groups)
        self.columns = int(np.diff(self.rows.blocks).max()) * ROWS + BESIDE
        self._kept = threading.local()

    def _rows(self, groups: list[range]) -> Rows:
        rows, dim = self.stacked.frames.shape
        halves = np.zeros((rows, self.width), np.uint16)
        squares, errors = np.empty((2, rows))
        worth = np.empty(rows, np.float32)
        mean, scale = self.stacked.mean, self.stacked.scale
        halving.round_frames(
            self.stacked.frames, mean, scale, self.numbers, halves, squares, errors, worth
        )
        if self.numbers == SPLIT:  # what meets (b₂, b₁, b₁)
            halves[:, : 2 * dim] = np.roll(halves[:, : 2 * dim], dim, axis=1)
        if self.numbers != WHOLE:
            doubled = (halves.astype(np.uint32) << 16).view(np.float32) * np.float32(-2)  # exact
            halves = (doubled.view(np.uint32) >> 16).astype(np.uint16)
        shrink = 1 - self._sums(dim) - 32 * U
        alpha = round_down(shrink * squares - UNDERFLOW)
        slack = halving.raise_all(errors, squares)
        borders = self.stacked.borders
        parts = [slice(borders[group.start], borders[group.stop]) for group in groups]
        packed = vnni.packed if self.numbers == WHOLE else amx.packed
        tiles = [packed(halves[part]) for part in parts]
        blocks = np.cumsum([0, *map(len, tiles)])
        begins = np.empty(len(borders) - 1, np.int64)
        padded = np.zeros((4, blocks[-1] * ROWS), np.float32)
        for group, part, block in zip(groups, parts, blocks, strict=False):
            first = block * ROWS
            begins[group.start : group.stop] = (
                borders[group.start : group.stop] - part.start + first
            )
            own = alpha[part], -2 * worth[part], slack[part]
            padded[:3, first : first + part.stop - part.start] = own
        padded[3] = np.inf
        padded[3, begins] = 0
        whole = aligned((blocks[-1], *tiles[0].shape[1:]), np.uint16)
        np.concatenate(tiles, out=whole)
        return Rows(
            whole,
            padded[0],
            padded[1],
            padded[2],
            padded,
            begins,
            begins + np.diff(borders),
            np.array([group.start for group in groups] + [groups[-1].stop]),
            blocks,
            aligned_copy(mean),
            aligned_copy(self.stacked.single_mean),
            scale,
            shrink,
            self.metric == "cosine",
            self.numbers,
        )

    def _sums(self, dim: int) -> float:
        """Steps 2 and 3: what sums may err by, and what is left out of them."""
        if self.numbers == WHOLE:
            return 0.0
        if self.numbers == SPLIT:
            return (2 * 3 * dim + 16) * 2.0**-23 + 2.0**-15 + bounding.RUN * U
        return (dim + 16) * 2.0**-23 + bounding.RUN * U

    @property
    def room(self) -> halving.Room:
        """This thread's memory for the frames that are multiplied together."""
        if not hasattr(self._kept, "room"):
            self._kept.room = halving.Room(
                aligned((FRAMES, self.width), np.uint16),
                np.empty(FRAMES),
                np.empty(FRAMES),
                np.empty(FRAMES, np.float32),
                np.empty(FRAMES, np.float32),
                np.empty(FRAMES, np.float32),
                aligned((FRAMES, self.columns), np.float32),
                np.empty(FRAMES, np.float32),
            )
            self._kept.room.values[:] = 0
        return cast("halving.Room", self._kept.room)

    def plain(self, frames: Frames) -> Frames:
        """Frames as compiled loops read them from memory: float16, float32 or float64."""
        if self.is_plain and frames.dtype.type in _KINDS:
            return np.ascontiguousarray(frames)
        with np.errstate(invalid="ignore"):  # 0/0 under cosine: reported later, by name
            return np.ascontiguousarray(as_values(frames, self.metric), np.float64)

    def low_costs(
        self,
        frames: Sequence[Frames],
        wanted: NDArray[np.bool_],
        code: int,
        lows: Singles,
        proved: NDArray[np.bool_],
    ) -> None:
        """Steps 1 to 4 and the recurrences, in one compiled call: fill lows [q t] of the wanted
        pairs and proved [t]. Frames are plain.
        """
        found = np.empty(lows.T.shape, np.float32)
        sweeps.low_costs(
            self.rows,
            np.ascontiguousarray(wanted.T),
            np.array([own.__array_interface__["data"][0] for own in frames], np.intp),
            np.array([_KINDS[own.dtype.type] for own in frames], np.int64),
            np.array([len(own) for own in frames]),
            self.stacked.frames.shape[1],
            code,
            self.room,
            found,
            proved,
        )
        lows[:] = found.T

    def low_costs_of_sketches(
        self, sketched: Sketched, wanted: NDArray[np.bool_], code: int
    ) -> Singles:
        """As `bounds.Moved.low_costs`; queries must not have been moved."""
        found = np.empty(wanted.T.shape, np.float32)
        proved = np.empty(len(found), np.bool_)
        sweeps.low_costs_of_sketches(
            self.rows,
            np.ascontiguousarray(wanted.T),
            sketched.numbers.view(np.uint16),
            sketched.scales,
            sketched.begins,
            sketched.ends,
            code,
            self.room,
            found,
            proved,
        )
        return np.where(wanted & proved, found.T, np.float32(0))


class HalfFilter(Tiled):
    """Bounds from products of 16-bit numbers: as `bounds.Filter` gives them, a little lower.

    With split numbers they are as close, and for some pairs only they can be had for less.
    """

    tile_frames = 2048

    def __init__(
        self,
        queries: Sequence[Frames],
        steps: str,
        metric: str,
        pool: Executor,
        numbers: int,
    ) -> None:
        super().__init__(Stacked.of(queries, metric), steps, metric, pool)
        self._prepared = Prepared(self.stacked, metric, numbers, alone=numbers == SPLIT)

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
        plain = [self._prepared.plain(own) for own in frames]
        self._prepared.low_costs(plain, wanted, self.code, lows, proved)


_KINDS = {
    np.float16: halving.BITS_OF_HALVES,
    np.float32: halving.SINGLES,
    np.float64: halving.DOUBLES,
}
