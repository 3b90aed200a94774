"""Lower bounds of the cost of every (query, trajectory), from one float32 product per piece.

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
4. A and B come from float64 sums (error far below u) and are rounded down to float32.
   All in all: with κ = (d + 16)u/(1 − (d + 16)u), α = ⌊(1 − κ)A − τ⌋ and β = ⌊(1 − κ)B⌋,
   what the kernel gets is at most s²|a − b|². τ = 1e−33 covers underflow, which adds at most
   d·2⁻¹⁴⁹ to P and √d·2⁻¹⁵⁰ to |e|.
5. Root and sums round: a path of p cells gains at most the factor (1 + u)^(p + 1), and the
   float64 cost itself is below the true one by far less than u. min rounds nothing. So the
   result times 1 − (p + 8)u, divided by s (s² under cosine), is a lower bound; p is N, and
   N + M − 1 under `classic`.

Step 2 needs that nothing overflows: trajectories with |b'|² > 1e30 get the bound 0.
The mean is that of the query frames; embeddings share a large common part, and without it
κ(A + B) is several times smaller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np

from strap.dtw import checks, kernels, reference
from strap.dtw.types import Floats, Frames, Ints, Name, Singles

U = 2.0**-24
UNDERFLOW = 1e-33
LARGEST_SQUARE = 1e30
LARGEST_DIM = 2**20  # κ stays small
PIECE_BYTES = 48 * 2**20
GROUP_ROWS = 4096


@dataclass(frozen=True, eq=False)
class Piece:
    """Some trajectories that are bounded together; ids [t] are their global indices."""

    ids: list[int]
    frames: list[Frames]


def pieces(stream: Iterable[tuple[int, Frames]], limit: int) -> Iterable[Piece]:
    """Cut a stream of (id, frames) so that a piece has at most `limit` frames, or one trajectory.

    A trajectory is never cut: its recurrence needs all of it.
    """
    piece, size = Piece([], []), 0
    for index, frames in stream:
        if piece.ids and size + len(frames) > limit:
            yield piece
            piece, size = Piece([], []), 0
        piece.ids.append(index)
        piece.frames.append(frames)
        size += len(frames)
    if piece.ids:
        yield piece


def _round_down(values: Floats) -> Singles:
    singles = values.astype(np.float32)
    above = singles.astype(np.float64) > values
    singles[above] = np.nextafter(singles[above], np.float32(-np.inf))
    return singles


def _groups(borders: Ints) -> list[range]:
    """Whole queries in groups of at most GROUP_ROWS frames (or one query): bounds the product."""
    groups, first = [], 0
    for q in range(1, len(borders)):
        if q - 1 > first and borders[q] - borders[first] > GROUP_ROWS:
            groups.append(range(first, q - 1))
            first = q - 1
    groups.append(range(first, len(borders) - 1))
    return groups


class Filter:
    """The query side of the bound, prepared once; `bounds` is called for every piece."""

    def __init__(self, queries: Sequence[Frames], steps: str, metric: str, pool: Executor) -> None:
        self.metric, self.code, self.pool = metric, kernels.CODES[steps], pool
        stacked = np.concatenate([self._values(query) for query in queries]).astype(np.float64)
        self.borders = np.cumsum([0, *(len(query) for query in queries)])
        self.mean = stacked.mean(axis=0).astype(np.float32).astype(np.float64)
        if not np.isfinite(self.mean).all():
            self.mean = np.zeros(stacked.shape[1])
        largest = np.abs(stacked - self.mean).max()
        self.scale = math.ldexp(1.0, -math.frexp(largest)[1]) if largest > 0 else 1.0
        self.rows, squares = self._center(stacked)
        self.usable = stacked.shape[1] <= LARGEST_DIM and bool((squares <= LARGEST_SQUARE).all())
        dim = stacked.shape[1]
        self.shrink = 1 - (dim + 16) * U / (1 - (dim + 16) * U)
        self.alpha = _round_down(self.shrink * squares - UNDERFLOW)
        self.rows *= np.float32(-2)
        self._buffers: dict[str, Singles] = {}

    def frames_per_piece(self) -> int:
        """How many frames fit into PIECE_BYTES, with their product."""
        rows = min(len(self.rows), GROUP_ROWS)
        return max(1, PIECE_BYTES // (4 * (int(self.rows.shape[1]) + rows)))

    def bounds(self, piece: Piece, name: Name) -> Floats:
        """Lower bounds [q t] of the costs; ∞ where no path fits. Raises on invalid frames."""
        offsets = np.cumsum([0, *(len(frames) for frames in piece.frames)])
        values = self._buffer("values", int(offsets[-1]), self.rows.shape[1])
        squares = np.empty(int(offsets[-1]))

        def prepare(i: int) -> bool:
            part = slice(offsets[i], offsets[i + 1])
            return self._prepare(piece.frames[i], name(piece.ids[i]), values[part], squares[part])

        good = np.array(_spread(self.pool, prepare, len(piece.ids)))
        lows = np.zeros((len(self.borders) - 1, len(piece.ids)), np.float32)
        if self.usable:
            beta = _round_down(self.shrink * np.where(squares <= LARGEST_SQUARE, squares, 0))
            for group in _groups(self.borders):
                self._group(group, values, beta, offsets, lows)
        return self._certain(lows, np.diff(offsets), good)

    def _group(
        self, group: range, values: Singles, beta: Singles, offsets: Ints, lows: Singles
    ) -> None:
        """One product for the queries of a group, then the recurrences, spread over threads."""
        first, last = int(self.borders[group.start]), int(self.borders[group.stop])
        products = self._buffer("products", last - first, len(values))
        np.dot(self.rows[first:last], values.T, out=products)
        trajectories = lows.shape[1]
        cuts = np.linspace(0, trajectories, min(trajectories, 8) + 1).astype(int)

        def recur(task: int) -> None:
            q, part = group.start + task % len(group), task // len(group)
            rows = slice(self.borders[q], self.borders[q + 1])
            own = products[self.borders[q] - first : self.borders[q + 1] - first]
            some = slice(cuts[part], cuts[part + 1])
            borders = offsets[cuts[part] : cuts[part + 1] + 1]
            half = self.metric == "cosine"
            kernels.low_costs(self.alpha[rows], beta, own, borders, self.code, half, lows[q, some])

        _spread(self.pool, recur, len(group) * (len(cuts) - 1))

    def _certain(self, lows: Singles, lengths: Ints, good: Any) -> Floats:
        """Take off what rounding may have added, undo the scale; 0 where nothing is proved."""
        cells = np.diff(self.borders)[:, None].astype(np.float64)
        if self.code == kernels.CODES["classic"]:
            cells = cells + lengths[None, :]
        scale = self.scale**2 if self.metric == "cosine" else self.scale
        with np.errstate(over="ignore", invalid="ignore"):
            certain = lows * np.maximum(1 - (cells + 8) * U, 0) / scale
        certain[np.isnan(certain)] = 0
        certain[:, ~good] = 0
        return np.asarray(certain, np.float64)

    def _values(self, frames: Frames) -> Frames:
        """Frames as the compiled loop reads them, without loss; normalised under cosine."""
        if self.metric == "cosine":
            return reference.unit(frames)
        if frames.dtype in (np.float32, np.float64):
            return np.asarray(frames)
        return frames.astype(np.float32 if frames.dtype == np.float16 else np.float64)

    def _center(self, frames: Frames) -> tuple[Singles, Floats]:
        out, squares = np.empty(frames.shape, np.float32), np.empty(len(frames))
        kernels.center(frames, self.mean, self.scale, out, squares)
        return out, squares

    def _prepare(self, frames: Frames, what: str, out: Singles, squares: Floats) -> bool:
        """Fill out [m d] and squares [m]; False where the bound can't be used."""
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            kernels.center(self._values(frames), self.mean, self.scale, out, squares)
        if (squares <= LARGEST_SQUARE).all():
            return True
        # Something is NaN, infinite or very large: only now look at every number.
        checks.values(frames, what, self.metric)
        out[:] = 0
        return False

    def _buffer(self, key: str, rows: int, columns: int) -> Singles:
        """Memory kept from piece to piece: fresh pages cost more than the copy into them."""
        if self._buffers.get(key, np.empty(0)).size < rows * columns:
            self._buffers[key] = np.empty(rows * columns, np.float32)
        return self._buffers[key][: rows * columns].reshape(rows, columns)


def _spread(pool: Executor, work: Callable[[int], Any], count: int) -> list[Any]:
    """work(0) … work(count − 1), in order, on the threads of the pool."""
    return list(pool.map(work, range(count)))
