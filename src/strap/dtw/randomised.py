"""Lower bounds from whole numbers of 8 bits, rounded at random: the fast filter.

A product of int8 is four times as fast as one of float32, but its worst-case error is far too
large to prune anything. Rounding each number up or down at random, so that it is right on
average, makes the errors along a path cancel, and how far they may fail to is known:
what is proved here is that `RandomisedFilter.bounds` exceeds the cost of a given pair with
probability below FAILURE = 1e−24, whatever the data, over the rounding alone. (A search of a
million pairs thus returns anything but the exact answer with probability below 1e−18; memory
errors of a computer are more frequent.) What is returned is always evaluated exactly.

Frames a, b are moved, scaled and rounded to float32 as in `bounds`, which accounts for that.
Let â = σ·⌊a/σ + r⌋ with r uniform in [0, 1) for each number, σ = max|a|/126 for each frame,
and b̂ = τ·⌊b/τ + r⌋. With A = |a|², B = |b|², D² = A + B − 2â·b̂:

1. D² = d² − 2e, where e = (â − a)·b + â·(b̂ − b), and |e| ≤ E = |â − a||b| + |â||b̂ − b|.
2. A cell gets the square D² − x, less another 2E where D² < near = c² + 2E.
   If d < c then D² < near, and the cell is at most √(D² − 2E) ≤ d for certain.
   If d ≥ c then √(D² − x) ≤ d − (e + x/2)/d: the root lies below its tangent. (Where it is
   clamped at 0 too, if c² ≥ 2E + x, with E at its largest; where not, near = ∞.)
3. Let π be the cheapest path: it depends on the data, not on the rounding. The bound is at most
   its sum over the cells of π: L ≤ cost + Σ (−e − x/2)/d over those with d ≥ c.
   Under `strap` and `fmp` a path meets each row and each column at most once, so the numbers
   rounded are independent, each in an interval of length σ (or τ): by Hoeffding's lemma
   E exp(−λ Σ e/d) ≤ exp(λ²/2 · Σ v/d²), v = (σ²B + τ²|â|²)/4.
   With x = λv/c, λx/(2d) ≥ λ²v/(2d²) as d ≥ c; so E exp(λ(L − cost)) ≤ 1, and by Markov's
   inequality L − cost > log(1/FAILURE)/λ has probability below FAILURE. That is taken off.
4. Floating point: a/σ is computed in float32 and cut to whole numbers of 2⁻¹⁶, the r are 16 bits,
   and their sum is exact. So the mean of a rounded number shifts by less
   than σ·2⁻¹⁴, and 2e by at most BIAS·√d(σ|b| + τ|â|), which is added to x. The sums have no
   dot product to round (whole numbers are exact): (1 − 128u)(A + B) covers them and the norms,
   as |â| ≤ 2.1|a| for d ≤ LARGEST_DIM. The rest is steps 1 and 5 of `bounds`.

λ is free; it is chosen so that both losses are about equal on data spread like the queries.
Cosine costs are squares, with no root to lie below a tangent: there x = λv.
Classic paths may meet a row many times: they are left to `bounds`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Executor

import numpy as np
from numpy.typing import NDArray

from strap.dtw import checks, kernels, products, rounded
from strap.dtw.bounds import UNDERFLOW, certain, round_down
from strap.dtw.pieces import PIECE_BYTES, Buffers, Piece, Stacked, as_values, cuts, spread
from strap.dtw.types import Floats, Frames, Ints, Name, Singles

FAILURE = 1e-24
LARGEST_DIM = 2**14
NEAR = 0.7  # c, as a part of the queries' root mean square norm
QUERY_SEED, SEED = 0x9E3779B9, 1


def suits(steps: str, dim: int) -> bool:
    """Whether this filter is proved for the step set and worth it on this machine."""
    return steps != "classic" and dim <= LARGEST_DIM and products.available()


def _padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


class RandomisedFilter:
    """The int8 filter: lower bounds but for an event of probability FAILURE for each pair."""

    def __init__(self, queries: Sequence[Frames], steps: str, metric: str, pool: Executor) -> None:
        self.metric, self.code, self.pool = metric, kernels.CODES[steps], pool
        self.stacked = Stacked.of(queries, metric)
        self.scale = self.stacked.scale**2 if metric == "cosine" else self.stacked.scale
        rows, self.dim = self.stacked.frames.shape
        self.depth = _padded(self.dim, products.DEPTH)
        # Below the last query some rows of zeros: a tile may reach beyond its query's end.
        self.rows = np.zeros((rows + products.TILE, self.depth), np.int8)
        sides = np.empty((3, rows))
        self._round(self.stacked.frames, self.rows[:rows], sides, QUERY_SEED)
        squares, steps_, errors = sides
        self.alpha = round_down(rounded.SHRINK * squares - UNDERFLOW)
        self.step = (2 * steps_).astype(np.float32)  # 2σ: σ is a float32, so this is exact
        self.largest_step, self.error = float(steps_.max()), float(np.sqrt(errors.max()))
        self.norm = float(np.sqrt(squares.max())) + self.largest_step * math.sqrt(self.dim)
        self._choose(float(np.sqrt(squares.mean())))
        self.buffers = Buffers()

    def _choose(self, spread_: float) -> None:
        """c, and for each query x/v and what is taken off in the end."""
        self.c = NEAR * spread_
        lengths = np.diff(self.stacked.borders)
        v = self.largest_step**2 * (spread_**2 + self.norm**2) / 4
        part = 1.0 if self.metric == "cosine" else self.c
        gain = 1.0 if self.metric == "cosine" else self.c * math.sqrt(2) * spread_
        if v > 0 and gain > 0:
            rate = np.sqrt(2 * -math.log(FAILURE) * gain / (lengths * v))
            self.rates, self.loss = rate / part, -math.log(FAILURE) / rate
        else:  # all query frames are alike: every cell falls back on the certain error
            self.c = 0.0
            self.rates, self.loss = np.zeros(len(lengths)), np.zeros(len(lengths))

    def frames_per_piece(self) -> int:
        """How many frames fit into PIECE_BYTES, with what is kept of each for each query."""
        return max(1, PIECE_BYTES // (self.depth + 16 * len(self.loss)))

    def bounds(self, piece: Piece, name: Name) -> Floats:
        """Lower bounds [q t] of the costs; ∞ where no path fits. Raises on invalid frames."""
        offsets = piece.offsets
        total, queries = int(offsets[-1]), len(self.loss)
        values = self.buffers.get("values", np.int8, total + products.TILE, self.depth)
        sides = self.buffers.get("sides", np.float32, 4 * queries, total)
        sides = sides.reshape(queries, 4, total)

        def prepare(i: int) -> bool:
            part = slice(offsets[i], offsets[i + 1])
            what, seed = name(piece.ids[i]), SEED + int(offsets[i]) * self.depth
            return self._prepare(piece.frames[i], what, values[part], sides[:, :, part], seed)

        proved = np.array(spread(self.pool, prepare, len(piece.ids)))
        lows = np.empty((queries, len(piece.ids)), np.float32)
        self._recur(values, sides, offsets, lows)
        cells = np.diff(self.stacked.borders)[:, None].astype(np.float64)
        taken = np.maximum(certain(lows, cells, 1.0, proved) - self.loss[:, None], 0)
        return np.asarray(taken / self.scale)

    def _prepare(
        self, frames: Frames, what: str, out: NDArray[np.int8], sides: Singles, seed: int
    ) -> bool:
        """Fill out [m depth] and sides [q 4 m]; False where the bound can't be used."""
        with np.errstate(invalid="ignore"):  # 0/0 under cosine: reported below, by name
            values = as_values(frames, self.metric)
        own = np.empty((3, len(frames)))
        self._round(values, out, own, seed)
        usable = bool((own[0] <= kernels.LARGEST_SQUARE).all())
        if not usable:
            # Something is NaN, infinite or very large: only now look at every number.
            checks.values(frames, what, self.metric)
            own[:] = 0
        rounded.frame_sides(
            own,
            self.largest_step,
            self.error,
            self.norm,
            self.c,
            math.sqrt(self.dim),
            self.rates,
            sides,
        )
        return usable

    def _round(self, frames: Frames, out: NDArray[np.int8], sides: Floats, seed: int) -> None:
        """Whole numbers into out [m depth]; |a|², σ and |â − a|² into sides [3 m]."""
        rounded.round_at_random(*self.stacked.move(frames), np.uint32(seed % 2**32), out, sides)

    def _recur(
        self, values: NDArray[np.int8], sides: Singles, offsets: Ints, lows: Singles
    ) -> None:
        """Products and recurrences of every pair into lows [q t], spread over threads."""
        borders = self.stacked.borders
        runs = cuts(lows.shape[1], 8)

        def recur(task: int) -> None:
            q, run = task % len(lows), task // len(lows)
            first, last = runs[run], runs[run + 1]
            top, bottom = borders[q], borders[q + 1]
            rounded.low_costs(
                self.rows[top : top + _padded(bottom - top, products.TILE)],
                self.alpha[top:bottom],
                self.step[top:bottom],
                values,
                sides[q],
                offsets[first : last + 1],
                self.code,
                self.metric == "cosine",
                lows[q, first:last],
            )

        spread(self.pool, recur, len(lows) * (len(runs) - 1))
