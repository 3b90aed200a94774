"""Lower bounds of the cost of every (query, trajectory) on a GPU, from float16 products.

What is proved here: `Filter.bounds` never exceeds the cost that `reference.align` returns.
Let u = 2⁻²⁴; a, b the frames in float64 (divided by their norms under cosine); μ a center and
σ a power of two, the same for all of a search.

1. Frames on the GPU are float16 vectors b' with σ(b − μ) = b' − μ' + e. Frames that are float16
   are taken as they are: σ = 1, μ' = μ, e = 0. Others are moved, scaled and rounded: μ' = 0,
   and |e| is computed. Query frames always are: σ(a − μ) = a' + f, a' = 2^j times a float16 vector.
   So σ|a − b| ≥ |a' + μ' − b'| − |f| − |e|.
2. |a' + μ' − b'|² = A + B − 2a'·b' with A = |a'|² + 2a'·μ' and B = |b' − μ'|², both computed in
   float64, where rounding is below 1e-12 of |a'|² + |a'||μ'| and B.
3. Tensor cores multiply exactly and add d numbers in float32, in blocks that are aligned to their
   largest exponent and cut off there, not rounded. However the blocks are made, each addition errs
   by at most 2⁻²² of the sum of absolute values, which is at most |a'||b'|: together by γ|a'||b'|,
   γ = (d + 16)2⁻²². (`benchmarks/search/gpu.py` prints the largest error seen as a share of it.)
4. The kernel computes (α + β) − 2P in float32: two additions, each with error at most u times
   its value, so 4u(|A| + B + 2|a'||b'|) covers them.
5. For any τ > 0: 2|a'||b'| ≤ τ|a'|² + |b'|²/τ. So with g = γ + 4u,
   α = ⌊A − 4u|A| − gτ|a'|² − 1e-12(…)⌋ and β = ⌊(1 − 4u − 1e-12)B − g|b'|²/τ⌋ (rounded down to
   float32) give a value that is at most |a' + μ' − b'|².
6. The root's relative error is at most 2⁻²², and likewise the few operations after it. The kernel
   multiplies by a power of two s that keeps all costs below 2¹⁶, subtracts ¾ and rounds to the
   nearest whole number: what is lost, at least ¼, is more than 2¹⁶ · 2⁻¹⁹. So a cell is at most
   s times the true cost. Sums and minima of whole numbers are exact.
7. The float64 cost of the definition is below the true one by at most (d + N + M)2⁻⁵² of it.

A frame that has no float16 near it gets |e| = ∞, and so cells of 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from strap.dtw.checks import largest
from strap.dtw.gpu import kernels
from strap.dtw.gpu.asked import Asked, sent
from strap.dtw.gpu.frames import Loaded, Space
from strap.dtw.pieces import as_values
from strap.dtw.types import Frames, Ints

U = 2.0**-24
ROW_TILE = 256  # query frames in one tile of the product
FRAME_TILE = 128
BLOCK = 64  # dimensions at a time
LONGEST = 1024  # query frames that one warp can hold; of longer queries the first ones count
CELLS = 2**16


@dataclass(frozen=True, eq=False)
class Rows:
    """Some whole queries' frames, padded to whole tiles, and what the kernel needs of them."""

    queries: range
    tops: torch.Tensor  # [q] int32: even
    counts: torch.Tensor  # [q] int32
    values: torch.Tensor  # [R d'] float16: 2^−j a'
    alpha: torch.Tensor  # [R] float32
    slack: torch.Tensor  # [R] float32: |f|
    tile: int
    gain: float  # 2^(j + 1)
    longest: int
    reach: float  # largest |a'|

    @property
    def count(self) -> int:
        """Rows with padding."""
        return len(self.values)


class Filter:
    """Lower bounds of every query's cost, prepared once and asked about every loaded piece."""

    def __init__(
        self,
        queries: Sequence[Frames],
        steps: str,
        metric: str,
        space: Space,
        asked: Asked,
        known: float | None = None,
    ) -> None:
        """Prepare the queries; `known` is their largest absolute value."""
        self.code, self.cosine = kernels.CODES[steps], metric == "cosine"
        self.space, self.device = space, asked.frames.device
        plain = metric == "l2" and asked.frames.is_floating_point()
        values = queries if plain else [as_values(query, metric) for query in queries]
        self.asked = asked if plain else Asked.of(values, self.device)
        if known is None or not plain:
            known = max(largest(query) for query in values)
        self.largest = known

    @cached_property
    def groups(self) -> list[Rows]:
        """Whole queries in groups of at most one tile (or one query)."""
        groups, first, size = [], 0, 0
        for q, count in enumerate(self._counts):
            if q > first and size + count > ROW_TILE:
                groups.append(self._rows(range(first, q)))
                first, size = q, 0
            size += count + count % 2
        groups.append(self._rows(range(first, len(self._counts))))
        return groups

    @cached_property
    def _counts(self) -> Ints:
        return np.minimum(self.asked.counts, LONGEST)

    @cached_property
    def _lift(self) -> int:
        """j: 0 unless a number could be too large for float16."""
        space = self.space
        bound = space.scale * (self.largest + float(np.abs(space.mean).max(initial=0.0)))
        if bound < 2.0**14:
            return 0
        frames = self.asked.frames.to(torch.float64)
        moved = frames - space.on(self.device)[0][: frames.shape[1]]
        return max(0, math.frexp(float(moved.abs().max()) * space.scale)[1] - 14)

    def _rows(self, group: range) -> Rows:
        """Steps 1, 2 and 5 for the rows of a group."""
        space, device, j = self.space, self.device, self._lift
        counts = self._counts[group.start : group.stop]
        tops = np.cumsum([0, *(counts[:-1] + counts[:-1] % 2)])
        used = int(tops[-1] + counts[-1])
        tile = min(ROW_TILE, max(16, 1 << (used - 1).bit_length()))
        count, q = tile * -(-used // tile), len(group)
        whole = np.full(2 * q + count, -1, np.int32)  # tops, counts, and the frame of each row
        whole[:q], whole[q : 2 * q] = tops, counts
        for place, own, size in zip(tops, self.asked.tops[group.start :], counts, strict=False):
            whole[2 * q + place : 2 * q + place + size] = np.arange(own, own + size)
        table = sent(whole, device)
        mean, shift = space.on(device)
        constants = np.array(
            [
                space.scale,
                math.ldexp(1.0, -j),
                math.ldexp(1.0, j),
                self._g * space.balance,
                space.shift_norm,
            ]
        )
        values = torch.empty(count, space.dim, dtype=torch.float16, device=device)
        singles = torch.empty(2, count, dtype=torch.float32, device=device)
        squares = torch.empty(count, dtype=torch.float64, device=device)
        given = sent(constants, device)
        kernels.rows[(count,)](
            self.asked.frames, table[2 * q :], mean, shift, given,
            values, singles[0], singles[1], squares, self.asked.frames.shape[1], space.dim,
            BLOCK=min(1024, triton.next_power_of_2(space.dim)), num_warps=4,
        )  # fmt: skip
        return Rows(
            group,
            table[:q],
            table[q : 2 * q],
            values,
            singles[0],
            singles[1],
            tile,
            math.ldexp(1.0, j + 1),
            int(counts.max()),
            math.sqrt(float(squares.max())),
        )

    @property
    def _g(self) -> float:
        return self.space.error + 4 * U

    def bounds(self, piece: Loaded, lows: torch.Tensor) -> None:
        """Fill lows [q t] float64 for the trajectories of a piece; ∞ where no path fits.

        It is filled beside what is launched next, until `piece.scratch.join()`.
        """
        for rows in self.groups:
            self._group(piece, rows, lows[rows.queries.start : rows.queries.stop])

    def _group(self, piece: Loaded, rows: Rows, lows: torch.Tensor) -> None:
        scale, step = self._scale(piece, rows)
        total, dim = piece.halves.shape
        cells = piece.cells(rows.count)
        tiles, row_tiles = triton.cdiv(total, FRAME_TILE), rows.count // rows.tile
        wide = rows.tile * FRAME_TILE >= 2**14
        kernels.cells[(min(tiles * row_tiles, programs(self.device)),)](
            TensorDescriptor(piece.halves, [total, dim], [dim, 1], [FRAME_TILE, BLOCK]),
            TensorDescriptor(rows.values, [rows.count, dim], [dim, 1], [rows.tile, BLOCK]),
            TensorDescriptor(cells, [total, rows.count], [rows.count, 1], [FRAME_TILE, rows.tile]),
            rows.alpha,
            piece.beta,
            rows.slack,
            piece.slack,
            rows.gain,
            scale,
            tiles,
            row_tiles,
            total,
            DIM=dim,
            FRAMES=FRAME_TILE,
            ROWS=rows.tile,
            BLOCK=BLOCK,
            ROUNDED=piece.rounded,
            COSINE=self.cosine,
            num_warps=8 if wide else 4,
            num_stages=3,
        )
        with piece.scratch.beside(piece.offsets):
            self._recurrence(piece, rows, cells, lows)
            lows *= step

    def _recurrence(
        self, piece: Loaded, rows: Rows, cells: torch.Tensor, lows: torch.Tensor
    ) -> None:
        grid = (len(piece.ids) * len(rows.queries),)
        where = rows.count, piece.offsets, rows.tops, rows.counts, lows, lows.stride(0)
        held = max(32, 1 << (rows.longest - 1).bit_length())
        if self.code == kernels.CODES["strap"]:
            ahead = max(1, min(kernels.UNROLL, 512 // held))
            kernels.least_strap[grid](
                cells.view(torch.int32), *where, len(rows.queries),
                PAIRS=held // 2, UNROLL=ahead, num_warps=1,
            )  # fmt: skip
        else:
            kernels.least_costs[grid](
                cells, *where, len(rows.queries), ROWS=held, STEPS=self.code, num_warps=1
            )

    def _scale(self, piece: Loaded, rows: Rows) -> tuple[float, float]:
        """Cells per unit of cost (a power of two), and the cost that a bound of one cell means."""
        reach = (rows.reach + piece.reach) * (1 + 1e-3) + 1e-30
        largest, unit = (
            (0.5 * reach**2, self.space.scale**2)
            if self.cosine
            else (
                reach,
                self.space.scale,
            )
        )
        scale = math.ldexp(1.0, math.floor(math.log2((CELLS - 1) / largest)))
        scale = min(max(scale, 2.0**-100), 2.0**100)
        return scale, (1 - 1e-9) / (scale * unit)


def programs(device: torch.device) -> int:
    """How many programs run at a time: one for each multiprocessor."""
    if device.type != "cuda":
        return 2
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
