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

from strap.dtw.gpu import kernels
from strap.dtw.gpu.frames import Loaded, Space, lowered
from strap.dtw.pieces import as_values
from strap.dtw.types import Frames

U = 2.0**-24
TINY = 1e-12
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
        self, queries: Sequence[Frames], steps: str, metric: str, space: Space, device: torch.device
    ) -> None:
        self.code, self.cosine = kernels.CODES[steps], metric == "cosine"
        self.space, self.device = space, device
        exact = metric == "l2" and all(query.dtype.kind == "f" for query in queries)
        self.queries = [
            (query if exact else as_values(query, metric))[:LONGEST] for query in queries
        ]

    @cached_property
    def groups(self) -> list[Rows]:
        """Whole queries in groups of at most one tile (or one query)."""
        groups, first, size = [], 0, 0
        for q, query in enumerate(self.queries):
            if q > first and size + len(query) > ROW_TILE:
                groups.append(self._rows(range(first, q)))
                first, size = q, 0
            size += len(query) + len(query) % 2
        groups.append(self._rows(range(first, len(self.queries))))
        return groups

    def _rows(self, group: range) -> Rows:
        """Steps 1, 2 and 5 for the rows of a group."""
        space, own = self.space, [self.queries[q] for q in group]
        counts = np.array([len(query) for query in own])
        tops = np.cumsum([0, *(counts[:-1] + counts[:-1] % 2)])
        used = int(tops[-1] + counts[-1])
        tile = min(ROW_TILE, max(16, 1 << (used - 1).bit_length()))
        stacked = np.zeros((tile * -(-used // tile), space.dim), np.result_type(*own))
        real = np.zeros((len(stacked), 1), np.bool_)
        for top, query in zip(tops, own, strict=True):
            stacked[top : top + len(query), : query.shape[1]] = query
            real[top : top + len(query)] = True
        mean, shift = space.on(self.device)
        raw = torch.as_tensor(stacked, device=self.device).to(torch.float64)
        moved = (raw - mean) * space.scale
        moved = torch.where(torch.as_tensor(real, device=self.device), moved, 0)
        j = max(0, math.frexp(float(moved.abs().max()))[1] - 14)
        values = (moved * 2.0**-j).to(torch.float16)
        near = values.to(torch.float64) * 2.0**j
        squares = (near * near).sum(1)
        alpha = squares + 2 * (near @ shift)
        spread = squares.sqrt() * shift.norm()
        alpha = alpha - 4 * U * alpha.abs() - self._g * space.balance * squares
        alpha = alpha - TINY * (squares + spread) - 1e-37
        slack = (moved - near).norm(dim=1) * (1 + 1e-6) + 1e-40
        return Rows(
            group,
            torch.as_tensor(tops, dtype=torch.int32, device=self.device),
            torch.as_tensor(counts, dtype=torch.int32, device=self.device),
            values,
            lowered(alpha),
            -lowered(-slack),
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
