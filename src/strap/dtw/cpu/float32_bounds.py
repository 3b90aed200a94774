"""Lower bounds of the cost of every (query, trajectory) pair, from float32 products.

Proof that a bound of `Float32Bounds` never exceeds the cost that `alignment.align` returns. Let
u = 2⁻²⁴, and let a and b be frames in float64 (divided by their norms under cosine).

1. Both are centered by the same mean, scaled by the same power of two and rounded to float32:
   a' = (a − μ)s + e with |e| ≤ u(1 + 2⁻²⁸)|a'|. So, with A = |a'|², B = |b'|², d' = |a' − b'|:
   s|a − b| ≥ d' − u(1 + 2⁻²⁸)(|a'| + |b'|), and since (x − y)² ≥ (1 − u)x² − y²/u,
   s²|a − b|² ≥ (1 − u)d'² − 2u(1 + 2⁻²⁶)(A + B) ≥ d'² − 4.1u(A + B), as d'² ≤ 2(A + B).
2. A dot product of d terms in float32, in any order, fused or not, errs by at most
   γ|a'||b'| ≤ γ(A + B)/2 with γ = du/(1 − du). The product P is that of −2a' (exact) with b':
   d'² ≥ (A + B) + P − γ(A + B).
3. The kernel adds three float32 numbers, (α + β) + P: each sum errs by at most u times its
   value, |P| ≤ (1 + γ)(A + B), so together by less than 3.2u(A + B).
4. A and B are summed in float32 over spans of 256 (error below 256u), then in float64, and rounded
   down. In total: with t = d + 256 + 16, κ = tu/(1 − tu), α = ⌊(1 − κ)A − τ⌋ and β = ⌊(1 − κ)B⌋,
   the kernel's sum is at most s²|a − b|². τ = 1e−33 covers underflow, which adds at most
   d·2⁻¹⁴⁹ to P and √d·2⁻¹⁵⁰ to |e|.
5. Root and sums round: a path of p cells gains at most the factor (1 + u)^(p + 1), and the
   float64 cost itself is below the true one by far less than u. min does not round. So the
   result times 1 − (p + 8)u, divided by s (s² under cosine), is a lower bound. p is N, or
   N + M − 1 if a path can stay in a query row.

Step 2 requires that nothing overflows: trajectories with |b'|² > 1e30 get the bound 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strap.dtw.alignment import cheapest_cost
from strap.dtw.batching import as_floats, split_into_tiles
from strap.dtw.buffers import Buffers
from strap.dtw.cpu.query_stack import QueryStack
from strap.dtw.cpu.rounding import MAX_SQUARED_NORM, U, center, round_down
from strap.dtw.steps import StepSet
from strap.dtw.types import Bools, Floats, Frames, Ints, Real, Singles
from strap.jit import njit

SPAN_DIMS = 256  # dimensions summed in float32 before their sum is added in float64
UNDERFLOW = 1e-33
MAX_FLOAT32_DIM = 2**20  # κ stays small


class Float32Bounds:
    """Queries prepared for lower bounds from float32 products; a `tiled_bounds.TileBounds`."""

    tile_frames = 1024  # so that centered frames, product and recurrences fit in a core's cache

    def __init__(self, stack: QueryStack, steps: StepSet, metric: str, group_rows: int) -> None:
        self.stack, self.steps, self.metric = stack, steps, metric
        n_rows, dim = stack.frames.shape
        self._rows, squares = np.empty((n_rows, dim), np.float32), np.empty(n_rows)
        _center_all(*stack.centering(stack.frames), self._rows, squares)
        self._rows *= np.float32(-2)
        self._is_usable = dim <= MAX_FLOAT32_DIM
        n_terms = dim + SPAN_DIMS + 16
        self._shrink = 1 - n_terms * U / (1 - n_terms * U)
        self._alpha = round_down(self._shrink * squares - UNDERFLOW)
        self._groups = split_into_tiles(stack.borders, group_rows)
        self._buffers = Buffers()

    def bound_tile(self, frames: Sequence[Frames]) -> tuple[Singles, Bools]:
        """Return bounds [q t] before step 5, and whether each trajectory's are valid [t]."""
        offsets = np.cumsum([0, *map(len, frames)])
        total = int(offsets[-1])
        bounds = np.zeros((self.stack.n_queries, len(frames)), np.float32)
        values = self._buffers.get("values", np.float32, total, self.stack.frames.shape[1])
        squares, is_valid = np.empty(total), np.zeros(len(frames), np.bool_)
        for i, trajectory in enumerate(frames):
            span = slice(offsets[i], offsets[i + 1])
            is_valid[i] = self._load(trajectory, values[span], squares[span])
        if self._is_usable:
            beta = round_down(self._shrink * squares)
            for group in self._groups:
                self._bound_group(group, values, beta, offsets, bounds)
        return bounds, is_valid

    def _load(self, frames: Frames, out: Singles, squares: Floats) -> bool:
        """Fill out [m d] and squares [m]; return False if numbers are NaN, ∞ or too large."""
        with np.errstate(invalid="ignore"):  # 0/0 under cosine: check_numbers reports it later
            values = as_floats(frames, self.metric)
        _center_all(*self.stack.centering(values), out, squares)
        if (squares <= MAX_SQUARED_NORM).all():
            return True
        out[:], squares[:] = 0, 0
        return False

    def _bound_group(
        self, group: range, values: Singles, beta: Singles, offsets: Ints, bounds: Singles
    ) -> None:
        """Write the bounds [q t] of a group of queries: one product, then their recurrences."""
        borders = self.stack.borders
        top, bottom = int(borders[group.start]), int(borders[group.stop])
        products = self._buffers.get("products", np.float32, bottom - top, len(values))
        np.dot(self._rows[top:bottom], values.T, out=products)
        for q in group:
            _bound_pairs(
                self._alpha[borders[q] : borders[q + 1]],
                beta,
                products[borders[q] - top : borders[q + 1] - top],
                offsets,
                self.steps.moves,
                self.metric == "cosine",
                bounds[q],
            )


@njit
def _center_all(frames: Frames, mean: Frames, scale: Real, out: Singles, squares: Floats) -> None:
    """Write (frames − mean)·scale as float32 into out [m d], and its squared norms [m].

    Frames, mean and scale are all float32 or all float64, so that the difference is rounded once.
    Norms are summed in spans, so that their relative error is below SPAN_DIMS·u.
    """
    for i in range(frames.shape[0]):
        total = 0.0
        for k in range(0, frames.shape[1], SPAN_DIMS):
            span = slice(k, k + SPAN_DIMS)
            total += np.float64(center(frames[i, span], mean[span], scale, out[i, span]))
        squares[i] = total


@njit
def _bound_pairs(
    alpha: Singles,
    beta: Singles,
    products: Singles,
    offsets: Ints,
    moves: Ints,
    is_cosine: bool,
    out: Singles,
) -> None:
    """Write the smallest D(N, m) over lower bounds of local costs, for one query, into out [t].

    A cell's squared distance is alpha [n] + beta [F] + products [n F]. Trajectory i is columns
    offsets[i]:offsets[i + 1]. Starts are not tracked: only exact alignments need them.
    """
    for i in range(out.shape[0]):
        span = slice(offsets[i], offsets[i + 1])
        costs = np.empty((alpha.shape[0], offsets[i + 1] - offsets[i]), np.float32)
        for n in range(alpha.shape[0]):
            row, betas, others = costs[n], beta[span], products[n, span]
            for m in range(row.shape[0]):
                square = max((alpha[n] + betas[m]) + others[m], np.float32(0))
                row[m] = np.float32(0.5) * square if is_cosine else np.sqrt(square)
        out[i] = cheapest_cost(costs, moves)
