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

import numpy as np
from numpy.typing import NDArray

from strap.dtw import amx, bounding, checks, halving
from strap.dtw.bounds import Tiled, U, round_down
from strap.dtw.halving import Rows
from strap.dtw.pieces import Stacked, aligned, as_values
from strap.dtw.types import Floats, Frames, Singles

WORTH = 1e8  # multiplications from which on a filter of its own pays
LARGEST_DIM = 2**16
UNDERFLOW = 1e-32


def pays(rows: int, frames: int, dim: int) -> bool:
    """Whether a search whose first piece has that many frames should use bfloat16 products."""
    return rows * frames * dim > WORTH and usable(dim)


def usable(dim: int) -> bool:
    """Whether the processor multiplies such numbers by itself, and bounds of them are any good."""
    return dim <= LARGEST_DIM and amx.available()


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

    def _prepared(self) -> Rows:
        rows, dim = self.stacked.frames.shape
        halves = np.zeros((rows, self.width), np.uint16)
        squares, errors = np.empty((2, rows))
        mean, scale = self.stacked.mean, self.stacked.scale
        halving.round_frames(self.stacked.frames, mean, scale, self.split, halves, squares, errors)
        if self.split:  # what meets (b₂, b₁, b₁)
            halves[:, : 2 * dim] = np.roll(halves[:, : 2 * dim], dim, axis=1)
        additions = 2 * 3 * dim if self.split else dim
        shrink = 1 - (additions + 16) * 2.0**-23 - (bounding.RUN + 32) * U
        shrink -= 2.0**-15 if self.split else 0
        doubled = (halves.astype(np.uint32) << 16).view(np.float32) * np.float32(-2)  # exact
        halves = (doubled.view(np.uint32) >> 16).astype(np.uint16)
        alpha = round_down(shrink * squares - UNDERFLOW)
        slack = [halving.raised(*pair) for pair in zip(errors, squares, strict=True)]
        borders, groups = self.stacked.borders, self._groups()
        parts = [slice(borders[group.start], borders[group.stop]) for group in groups]
        tiles = [amx.packed(halves[part]) for part in parts]
        blocks = np.cumsum([0, *map(len, tiles)])
        begins = np.empty(len(borders) - 1, np.int64)
        padded = np.zeros((2, blocks[-1] * amx.ROWS), np.float32)
        for group, part, block in zip(groups, parts, blocks, strict=False):
            first = block * amx.ROWS
            begins[group.start : group.stop] = (
                borders[group.start : group.stop] - part.start + first
            )
            padded[:, first : first + part.stop - part.start] = alpha[part], slack[part]
        whole = aligned((blocks[-1], *tiles[0].shape[1:]), np.uint16)
        np.concatenate(tiles, out=whole)
        return Rows(
            whole,
            padded[0],
            padded[1],
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
        halving.low_costs(
            self._rows,
            np.ascontiguousarray(wanted.T),
            np.array([own.__array_interface__["data"][0] for own in plain], np.intp),
            np.array([_KINDS[own.dtype.type] for own in plain], np.int64),
            lengths,
            self.stacked.frames.shape[1],
            self.code,
            self.buffers.get("values", np.uint16, longest, self.width),
            self.buffers.get("cells", np.float32, amx.FRAMES, self._columns),
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


_KINDS = {
    np.float16: halving.BITS_OF_HALVES,
    np.float32: halving.SINGLES,
    np.float64: halving.DOUBLES,
}
