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
   multiplies by a power of two s that keeps all costs below 2¹⁶, and adds 2²³ − (s|f| + ¾), the
   latter rounded up to a multiple of ½, which leaves a float32 number; so the sum is rounded to the
   nearest whole number. What is lost, ¼ at least but for s|f|'s own rounding (2⁻⁸), is more than
   2¹⁶ · 2⁻¹⁹. So a cell is at most s times the true cost. Where α + β − 2P is negative, a cell is
   0. Sums and minima of whole numbers are exact.
7. The float64 cost of the definition is below the true one by at most (d + N + M)2⁻⁵² of it.

A frame that has no float16 near it gets |e| = ∞, and so cells of 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from strap.dtw.batching import as_floats as as_values
from strap.dtw.gpu import kernels
from strap.dtw.gpu.asked import Asked
from strap.dtw.gpu.frames import Loaded, Space
from strap.dtw.types import Frames
from strap.dtw.validation import largest_magnitude as largest

ROW_TILE = 256  # query frames in one tile of the product
FRAME_TILE = 128
BLOCK = 64  # dimensions at a time


@dataclass(frozen=True, eq=False)
class Rows:
    """Some whole queries' frames, padded to whole tiles, and what the kernel needs of them."""

    queries: range
    first: int  # of all queries' rows
    values: torch.Tensor  # [R d'] float16: 2^−j a'
    alpha: torch.Tensor  # [R] float32
    slack: torch.Tensor  # [R] float32: |f|
    squares: torch.Tensor  # [R] float64: |a'|²
    tile: int
    longest: int

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
    def _counts(self) -> list[int]:
        return [min(int(count), kernels.LONGEST) for count in self.asked.counts]

    @cached_property
    def _lift(self) -> int:
        """j: 0 unless a number could be too large for float16."""
        space = self.space
        if space.scale * (self.largest + space.farthest) < 2.0**14:
            return 0
        frames = self.asked.frames.to(torch.float64)
        moved = frames - space.on(self.device)[0][: frames.shape[1]]
        return max(0, math.frexp(float(moved.abs().max()) * space.scale)[1] - 14)

    @cached_property
    def _constants(self) -> torch.Tensor:
        return self.space.constants(self.device, self._lift, 2 if self.cosine else 1)

    def _rows(self, group: range) -> Rows:
        """Steps 1, 2 and 5 for the rows of a group."""
        space, device, asked = self.space, self.device, self.asked
        counts = self._counts[group.start : group.stop]
        first = int(asked.tops[group.start])
        used = int(asked.tops[group.stop - 1]) + counts[-1] - first
        tile = min(ROW_TILE, max(16, 1 << (used - 1).bit_length()))
        count = tile * -(-used // tile)
        mean, shift = space.on(device)
        values = torch.empty(count, space.dim, dtype=torch.float16, device=device)
        alpha, slack = torch.empty(2, count, dtype=torch.float32, device=device)
        squares = torch.empty(count, dtype=torch.float64, device=device)
        kernels.rows[(count,)](
            asked.frames, mean, shift, self._constants, values, alpha, slack, squares,
            first, used, asked.frames.shape[1], space.dim,
            BLOCK=min(1024, triton.next_power_of_2(space.dim)), num_warps=4,
        )  # fmt: skip
        return Rows(group, first, values, alpha, slack, squares, tile, max(counts))

    def bounds(self, piece: Loaded, lows: torch.Tensor) -> None:
        """Fill lows [q t] float64 for the trajectories of a piece; ∞ where no path fits.

        It is filled beside what is launched next, until `piece.scratch.join()`.
        """
        for rows in self.groups:
            self._group(piece, rows, lows[rows.queries.start : rows.queries.stop])

    def _group(self, piece: Loaded, rows: Rows, lows: torch.Tensor) -> None:
        step = torch.empty((), dtype=torch.float64, device=self.device)
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
            rows.squares,
            piece.reach,
            self._constants[5],
            step,
            math.ldexp(1.0, self._lift + 1),
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
        with piece.scratch.beside(piece.offsets, step):
            self._recurrence(piece, rows, cells, step, lows)

    def _recurrence(
        self,
        piece: Loaded,
        rows: Rows,
        cells: torch.Tensor,
        step: torch.Tensor,
        lows: torch.Tensor,
    ) -> None:
        grid = (len(piece.ids) * len(rows.queries),)
        tops, counts = self.asked.table[:, rows.queries.start :]
        where = piece.offsets, tops, counts, step, lows, lows.stride(0)
        group = len(rows.queries), rows.first
        held = max(32, 1 << (rows.longest - 1).bit_length())
        if self.code == kernels.CODES["strap"]:
            together = max(1, min(kernels.UNROLL, 512 // held))
            kernels.least_strap[grid](
                cells.view(torch.int32), *where, *group,
                PITCH=rows.count // 2, PAIRS=held // 2, UNROLL=together, num_warps=1,
            )  # fmt: skip
        else:
            kernels.least_costs[grid](
                cells, rows.count, *where, *group, ROWS=held, STEPS=self.code, num_warps=1
            )


def programs(device: torch.device) -> int:
    """How many programs run at a time: one for each multiprocessor."""
    if device.type != "cuda":
        return 2
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
