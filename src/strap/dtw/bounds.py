"""Lower bounds of the cost of every (query, trajectory), from float32 products.

What is proved here: `Filter.bounds` never exceeds the cost that `kernels.align` returns.
Let u = 2⁻²⁴, and let a, b be the frames in float64 (divided by their norms under cosine).

1. Both are moved by the same mean, scaled by the same power of two and rounded to float32:
   a' = (a − μ)s + e with |e| ≤ u(1 + 2⁻²⁸)|a'|. So, with A = |a'|², B = |b'|², d' = |a' − b'|:
   s|a − b| ≥ d' − u(1 + 2⁻²⁸)(|a'| + |b'|), and since (x − y)² ≥ (1 − u)x² − y²/u,
   s²|a − b|² ≥ (1 − u)d'² − 2u(1 + 2⁻²⁶)(A + B) ≥ d'² − 4.1u(A + B), as d'² ≤ 2(A + B).
2. A dot product of d terms in float32, in any order, fused or not, errs by at most
   γ|a'||b'| ≤ γ(A + B)/2 with γ = du/(1 − du). The product P is that of −2a' (exact) with b':
   d'² ≥ (A + B) + P − γ(A + B).
3. The kernel adds three float32 numbers, (α + β) + P: each sum errs by at most u times its
   value, |P| ≤ (1 + γ)(A + B), so together by less than 3.2u(A + B).
4. A and B are summed in float32 over runs of 256 (error below 256u), then in float64, and rounded
   down. All in all: with t = d + 256 + 16, κ = tu/(1 − tu), α = ⌊(1 − κ)A − τ⌋ and β = ⌊(1 − κ)B⌋,
   what the kernel gets is at most s²|a − b|². τ = 1e−33 covers underflow, which adds at most
   d·2⁻¹⁴⁹ to P and √d·2⁻¹⁵⁰ to |e|.
5. Root and sums round: a path of p cells gains at most the factor (1 + u)^(p + 1), and the
   float64 cost itself is below the true one by far less than u. min rounds nothing. So the
   result times 1 − (p + 8)u, divided by s (s² under cosine), is a lower bound; p is N, and
   N + M − 1 under `classic`.

Step 2 needs that nothing overflows: trajectories with |b'|² > 1e30 get the bound 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from strap.dtw import bounding, checks, kernels
from strap.dtw.pieces import Buffers, Piece, Stacked, as_values, tiles
from strap.dtw.types import Floats, Frames, Ints, Name, Singles, Sketched

U = 2.0**-24
UNDERFLOW = 1e-33
LARGEST_DIM = 2**20  # κ stays small
_NOTHING = np.empty(0, np.float32)


def round_down(values: Floats) -> Singles:
    """To float32, never upwards."""
    singles = values.astype(np.float32)
    above = singles.astype(np.float64) > values
    singles[above] = np.nextafter(singles[above], np.float32(-np.inf))
    return singles


def certain(lows: Singles, cells: Floats, scale: float, proved: NDArray[np.bool_]) -> Floats:
    """Step 5: take off what rounding may have added, undo the scale; 0 where nothing is proved."""
    shrunk = np.where(np.isnan(lows), 0, lows) * np.maximum(1 - (cells + 8) * U, 0) / scale
    shrunk[:, ~proved] = 0
    return np.asarray(shrunk, np.float64)


class Moved:
    """The queries' frames moved, scaled and rounded (step 1), and trajectories treated alike."""

    def __init__(self, stacked: Stacked) -> None:
        self.stacked = stacked
        rows, dim = self.stacked.frames.shape
        self.rows, squares = np.empty((rows, dim), np.float32), np.empty(rows)
        bounding.center(*self.stacked.move(self.stacked.frames), self.rows, squares)
        self.usable = dim <= LARGEST_DIM
        self._reach = float(np.sqrt(squares.max(initial=0)))
        terms = dim + bounding.RUN + 16
        self.shrink = 1 - terms * U / (1 - terms * U)
        self.alpha = round_down(self.shrink * squares - UNDERFLOW)
        self.rows *= np.float32(-2)
        self.buffers = Buffers()

    def take(self, values: Frames, out: Singles, squares: Floats) -> bool:
        """Fill out [m d] and squares [m]; False where they are too large, or no numbers."""
        bounding.center(*self.stacked.move(values), out, squares)
        return bool((squares <= bounding.LARGEST_SQUARE).all())

    def beta(self, squares: Floats) -> Singles:
        """Step 4."""
        return round_down(self.shrink * squares)

    @cached_property
    def _compiled(self) -> bounding.Rows:
        return bounding.Rows(
            self.rows,
            self.stacked.borders,
            self.alpha,
            np.float32(self.stacked.scale),
            self.shrink,
            self._reach,
        )

    def low_costs(self, sketched: Sketched, wanted: NDArray[np.bool_], code: int) -> Singles | None:
        """Steps 1 to 4 and the recurrences for sketches, in one compiled call.

        Their integers times scales[:, 0] are the frames, scales[:, 2] their squared norms, and
        scales[:, 1] is taken off from every cell. A root errs by less than 4u of itself and is at
        most |a'| + |b'|: 8u of those are taken off with it. Queries must not have been moved.

        Returns:
            What step 5 is still to be done for [q t], 0 where it isn't wanted or can't be had;
            None where the queries' scale is no ordinary one.
        """
        if not self.usable or not self.stacked.is_ordinary:
            return None
        lows, asked = np.zeros(wanted.T.shape, np.float32), np.ascontiguousarray(wanted.T)
        numbers, begins, ends = sketched.numbers, sketched.begins, sketched.ends
        size = numbers.shape[1] + len(self.rows)
        room = self.buffers.get("room", np.float32, int((ends - begins).max()), size).ravel()
        bounding.wanted_low_costs(
            self._compiled, asked, numbers, sketched.scales, begins, ends, code, room, lows
        )
        return lows.T


class Tiled:
    """Lower bounds of every query's cost, prepared once and asked about every piece.

    A piece is worked on in tiles of a few hundred frames, each by one thread: moved frames,
    product and recurrences of a tile stay in that core's cache.
    """

    tile_frames = 1024

    def __init__(self, stacked: Stacked, steps: str, metric: str, pool: Executor) -> None:
        self.stacked, self.metric, self.pool = stacked, metric, pool
        self.code = kernels.CODES[steps]
        self.scale = stacked.scale**2 if metric == "cosine" else stacked.scale
        self.buffers = Buffers()

    def bounds(self, piece: Piece, name: Name) -> Floats:
        """Lower bounds [q t] of the costs; ∞ where no path fits. Raises on invalid frames."""
        offsets = piece.offsets
        lows = np.zeros((len(self.stacked.borders) - 1, len(piece.ids)), np.float32)
        proved = np.zeros(len(piece.ids), np.bool_)

        def work(tile: range) -> None:
            part = slice(tile.start, tile.stop)
            own = piece.ids[part]
            self._tile(piece.frames[part], lambda i: name(own[i]), lows[:, part], proved[part])

        list(self.pool.map(work, tiles(offsets, self.tile_frames)))
        return self._certain(lows, np.diff(offsets), proved)

    def _certain(self, lows: Singles, lengths: Ints, proved: NDArray[np.bool_]) -> Floats:
        """Step 5 for lows [q t] of trajectories of these lengths [t]."""
        cells = np.diff(self.stacked.borders)[:, None].astype(np.float64)
        if self.code == kernels.CODES["classic"]:
            cells = cells + lengths
        return certain(lows, cells, self.scale, proved)

    def _tile(
        self,
        frames: Sequence[Frames],
        name: Callable[[int], str],
        lows: Singles,
        proved: NDArray[np.bool_],
    ) -> None:
        """Fill lows [q t] and proved [t] for the trajectories of one tile."""
        raise NotImplementedError


class Filter(Tiled):
    """Bounds from float32 products."""

    def __init__(self, queries: Sequence[Frames], steps: str, metric: str, pool: Executor) -> None:
        self.moved = Moved(Stacked.of(queries, metric))
        super().__init__(self.moved.stacked, steps, metric, pool)

    def _tile(
        self,
        frames: Sequence[Frames],
        name: Callable[[int], str],
        lows: Singles,
        proved: NDArray[np.bool_],
    ) -> None:
        offsets = np.cumsum([0, *(len(own) for own in frames)])
        total = int(offsets[-1])
        values = self.buffers.get("values", np.float32, total, self.stacked.frames.shape[1])
        squares = np.empty(total)
        for i, own in enumerate(frames):
            part = slice(offsets[i], offsets[i + 1])
            proved[i] = self._prepare(own, values[part], squares[part])
            if not proved[i]:  # NaN, infinite or very large: only now look at every number
                checks.values(own, name(i), self.metric)
        if self.moved.usable:
            beta = self.moved.beta(squares)
            for group in self.stacked.groups():
                self._group(group, values, beta, offsets, lows)

    def _prepare(self, frames: Frames, out: Singles, squares: Floats) -> bool:
        """Fill out [m d] and squares [m]; False where the bound can't be used."""
        with np.errstate(invalid="ignore"):  # 0/0 under cosine: reported later, by name
            values = as_values(frames, self.metric)
        if self.moved.take(values, out, squares):
            return True
        out[:], squares[:] = 0, 0
        return False

    def _group(
        self,
        group: range,
        values: Singles,
        beta: Singles,
        offsets: Ints,
        lows: Singles,
    ) -> None:
        """One product for the queries of a group, then their recurrences into lows[q] [t]."""
        borders = self.stacked.borders
        top, bottom = int(borders[group.start]), int(borders[group.stop])
        products = self.buffers.get("products", np.float32, bottom - top, len(values))
        np.dot(self.moved.rows[top:bottom], values.T, out=products)
        for q in group:
            bounding.low_costs(
                self.moved.alpha[borders[q] : borders[q + 1]],
                beta,
                products[borders[q] - top : borders[q + 1] - top],
                _NOTHING,
                offsets,
                self.code,
                self.metric == "cosine",
                lows[q],
            )
