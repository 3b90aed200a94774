"""Lower bounds of the cost of every (query, trajectory) pair on a GPU, from float16 products.

Proof that `CostBounds.bound_batch` never exceeds the cost that `reference.align` returns. Let
u = 2⁻²⁴ be float32's unit roundoff; a and b a query's and a trajectory's frame in float64 (divided
by their norms under cosine); μ a mean and σ a power of two, both the same for a whole search.

1. Trajectory frames on the GPU are float16 vectors b' with σ(b − μ) = b' − μ' + e. Frames that are
   float16 already are not changed: σ = 1, μ' = μ, e = 0. Others are centered, scaled and rounded:
   μ' = 0, and |e| is computed. Query frames are always rounded: σ(a − μ) = a' + f, where a' is the
   nearest float16 vector. So σ|a − b| ≥ |a' + μ' − b'| − |f| − |e|.
2. |a' + μ' − b'|² = A + B − 2a'·b' with A = |a'|² + 2a'·μ' and B = |b' − μ'|². Both are computed in
   float64, where rounding is below 1e-12 of |a'|² + |a'||μ'| and of B.
3. Tensor cores multiply exactly and add d numbers in float32, in blocks that are aligned to their
   largest exponent and truncated there, not rounded. Whatever the blocks are, each addition errs
   by at most 2⁻²² of the sum of absolute values, which is at most |a'||b'|: together by γ|a'||b'|
   with γ = (d + 16)2⁻²². (`benchmarks/search/gpu.py` prints the largest observed error as a share
   of this.)
4. The kernel computes (α + β) − 2P in float32, where P is the product: two additions, each with an
   error of at most u times its result, so 4u(|A| + B + 2|a'||b'|) covers them.
5. For any τ > 0: 2|a'||b'| ≤ τ|a'|² + |b'|²/τ. So with g = γ + 4u,
   α = A − 4u|A| − gτ|a'|² − 1e-12(…) and β = (1 − 4u − 1e-12)B − g|b'|²/τ, both rounded down to
   float32, give a result that is at most |a' + μ' − b'|².
6. The root's relative error is at most 2⁻²², and so is that of the few operations after it. The
   kernel multiplies by a power of two s that keeps all costs below 2¹⁶, and adds 2²³ − (s|f| + ¾).
   The subtrahend is rounded up to a multiple of ½, so the difference is a float32 number, and the
   sum is rounded to the nearest integer. This subtracts at least ¼ less the rounding of s|f| (2⁻⁸),
   more than the 2¹⁶ · 2⁻¹⁹ that the relative errors can add. So an integer cost is at most s times
   the true local cost. If (α + β) − 2P is negative, the cost is 0. Sums and minima of integers are
   exact.
7. The float64 cost of the definition is below the true one by at most (d + N + M)2⁻⁵² of it.

A frame too large for float16 gets |e| = ∞, and so local costs of 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
from torch.nn.functional import pad
from triton.tools.tensor_descriptor import TensorDescriptor

from strap.dtw.batching import split_into_tiles
from strap.dtw.cpu.rounding import U
from strap.dtw.gpu import bound_kernels
from strap.dtw.gpu.bound_kernels import MAX_QUERY_FRAMES, UNROLL
from strap.dtw.gpu.quantize import Quantization, QuantizedBatch, round_down, round_vectors
from strap.dtw.gpu.queries import DeviceQueries, SearchRequest
from strap.dtw.gpu.streams import CostWorkspace
from strap.dtw.steps import lay_out_steps

ROW_TILE = 256  # query frames in one tile of the product, at most
FRAME_TILE = 128  # trajectory frames in one tile
DIM_TILE = 64  # dimensions loaded together


@dataclass(frozen=True, eq=False)
class RowGroup:
    """The quantized frames of some queries, padded to whole tiles; symbols as in the proof."""

    queries: range
    first_row: int  # of the group among all queries' rows
    quantized: torch.Tensor  # [R d'] float16: a'
    alpha: torch.Tensor  # [R] float32
    errors: torch.Tensor  # [R] float32: |f|
    squares: torch.Tensor  # [R] float64: |a'|²
    tile: int  # rows in one tile of the product
    held_rows: int  # rows of the recurrence: the longest query's, rounded up to a power of two

    @property
    def n_rows(self) -> int:
        """The number of rows with padding: R."""
        return len(self.quantized)


class CostBounds:
    """Queries that are prepared once, then bounded with many batches of trajectories."""

    def __init__(
        self,
        request: SearchRequest,
        queries: DeviceQueries,
        quantization: Quantization,
        workspace: CostWorkspace,
    ) -> None:
        """Prepare the queries of a request for batches with this quantization."""
        self.quantization, self._workspace = quantization, workspace
        self._steps, self._device = request.options.steps, queries.frames.device
        self._queries = queries
        self._lengths = np.minimum(queries.lengths, MAX_QUERY_FRAMES)
        # Every query begins at an even row.
        borders = np.cumsum([0, *(self._lengths + self._lengths % 2)])
        self._groups = [self._quantize_group(one) for one in split_into_tiles(borders, ROW_TILE)]

    def bound_batch(self, batch: QuantizedBatch) -> torch.Tensor:
        """Return lower bounds [query, trajectory] in float64; ∞ if no path fits.

        They are written in the background: read them only after `CostWorkspace.join_background`.
        """
        shape = len(self._lengths), len(batch.ids)
        lower_bounds = torch.empty(shape, dtype=torch.float64, device=self._device)
        for group in self._groups:
            costs, cost_step = self._bound_local_costs(batch, group)
            with self._workspace.read_in_background(batch.offsets, cost_step):
                self._accumulate(batch, group, costs, cost_step, lower_bounds)
        return lower_bounds

    def _quantize_group(self, group: range) -> RowGroup:
        """Quantize the rows of some queries: steps 1, 2 and 5 of the proof."""
        quantization = self.quantization
        lengths = self._lengths[group.start : group.stop]
        first_row = int(self._queries.first_rows[group.start])
        n_used = int(self._queries.first_rows[group.stop - 1]) + int(lengths[-1]) - first_row
        tile = min(ROW_TILE, max(16, triton.next_power_of_2(n_used)))
        used = self._queries.frames[first_row : first_row + n_used]
        quantized, errors = round_vectors(used, quantization)
        vectors = quantized.to(torch.float64)
        squares = vectors.square().sum(1)
        A = squares + 2 * (vectors @ quantization.shift)
        low = A - 4 * U * A.abs() - quantization.product_error * quantization.balance * squares
        low -= 1e-12 * (squares + squares.sqrt() * quantization.shift_norm) + 1e-37
        padding = tile * triton.cdiv(n_used, tile) - n_used
        held_rows = max(32, triton.next_power_of_2(int(lengths.max())))
        quantized = pad(quantized, (0, 0, 0, padding))
        rows = round_down(low), errors, squares
        alpha, errors, squares = (pad(numbers, (0, padding)) for numbers in rows)
        return RowGroup(group, first_row, quantized, alpha, errors, squares, tile, held_rows)

    def _bound_local_costs(
        self, batch: QuantizedBatch, group: RowGroup
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return integer bounds [frame, row] of the local costs, and the cost of one unit []."""
        total, dim = batch.quantized.shape
        n_rows, tile = group.n_rows, group.tile
        costs = self._workspace.take_buffer(total, n_rows)
        cost_step = torch.empty((), dtype=torch.float64, device=self._device)
        n_frame_tiles, n_row_tiles = triton.cdiv(total, FRAME_TILE), n_rows // tile
        n_programs = min(n_frame_tiles * n_row_tiles, count_multiprocessors(self._device))
        bound_kernels.bound_local_costs[(n_programs,)](
            TensorDescriptor(batch.quantized, [total, dim], [dim, 1], [FRAME_TILE, DIM_TILE]),
            TensorDescriptor(group.quantized, [n_rows, dim], [dim, 1], [tile, DIM_TILE]),
            TensorDescriptor(costs, [total, n_rows], [n_rows, 1], [FRAME_TILE, tile]),
            group.alpha, batch.beta, group.errors, batch.errors, group.squares,
            batch.largest_norm, self.quantization.unit, cost_step,
            n_frame_tiles, n_row_tiles, total,
            DIM=dim, FRAMES=FRAME_TILE, ROWS=tile, DIM_TILE=DIM_TILE,
            IS_ROUNDED=self.quantization.is_rounded, IS_COSINE=self.quantization.metric == "cosine",
            num_warps=8 if tile * FRAME_TILE >= 2**14 else 4, num_stages=3,
        )  # fmt: skip
        return costs, cost_step

    def _accumulate(
        self,
        batch: QuantizedBatch,
        group: RowGroup,
        costs: torch.Tensor,
        cost_step: torch.Tensor,
        lower_bounds: torch.Tensor,
    ) -> None:
        """Launch the recurrence, which fills in the group's rows of lower_bounds."""
        n_queries, first = len(group.queries), group.queries.start
        first_rows, lengths = self._queries.table[:, first:]
        group_bounds = lower_bounds[first : group.queries.stop]
        arguments = (
            batch.offsets, first_rows, lengths, cost_step,
            group_bounds, lower_bounds.stride(0), n_queries, group.first_row,
        )  # fmt: skip
        grid = (len(batch.ids) * n_queries,)
        if self._steps == "strap":
            bound_kernels.accumulate_strap[grid](
                costs.view(torch.int32), *arguments,
                PITCH=group.n_rows // 2, PAIRS=group.held_rows // 2,
                UNROLL=max(1, min(UNROLL, 512 // group.held_rows)), num_warps=1,
            )  # fmt: skip
        else:
            layout = lay_out_steps(self._steps)
            bound_kernels.accumulate_others[grid](
                costs, group.n_rows, *arguments,
                ROWS=group.held_rows, SKEW=layout.skew, ROWS_BACK=layout.rows_back, num_warps=1,
            )  # fmt: skip


def count_multiprocessors(device: torch.device) -> int:
    """Return the device's number of multiprocessors: programs of `bound_local_costs` to launch."""
    if device.type != "cuda":
        return 2  # few enough that programs take more than one tile in the interpreter too
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
