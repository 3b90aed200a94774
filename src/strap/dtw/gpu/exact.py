"""Exact alignment of (query, trajectory) pairs on a device: equals the definition bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl

from strap.dtw.gpu import exact_kernels
from strap.dtw.gpu.queries import DeviceQueries
from strap.dtw.steps import lay_out_steps
from strap.dtw.types import Floats, Ints

TILE_ROWS, TILE_COLUMNS, TILE_WARPS = 4, 128, 2  # of local costs
AHEAD = 8  # dimensions, and columns of costs, that are loaded together to hide latency
TRANSPOSE_TILE = 32  # frames and dimensions that are transposed together
MAX_CHUNK_BYTES = 2**31  # of local costs and frames in one launch
TRITON_DTYPES = {torch.float16: tl.float16, torch.float32: tl.float32, torch.float64: tl.float64}


@dataclass(frozen=True, eq=False)
class LocatedFrames:
    """The addresses of some trajectories' frames in a device's memory."""

    addresses: Ints  # [trajectory]
    lengths: Ints  # [trajectory]
    dtype: torch.dtype
    owner: object  # keeps the memory alive


def locate_frames(frames: torch.Tensor, lengths: Sequence[int] | Ints) -> LocatedFrames:
    """Return the addresses of concatenated trajectories, frames [frame, dimension]."""
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    addresses = frames.data_ptr() + starts * (frames.element_size() * frames.shape[1])
    return LocatedFrames(addresses, np.asarray(lengths), frames.dtype, frames)


class ExactAligner:
    """Queries on a device that are aligned exactly with trajectories."""

    def __init__(self, queries: DeviceQueries, steps: str) -> None:
        self._layout, self._queries = lay_out_steps(steps), queries
        self._device = queries.frames.device
        self._columns = queries.frames.to(torch.float64).T.contiguous()  # [dimension, row]
        self._n_rows = max(16, triton.next_power_of_2(queries.longest))  # of local costs

    def align(
        self, query: Ints, address: Ints, length: Ints, dtype: torch.dtype
    ) -> tuple[Floats, Ints, Ints]:
        """Return cost, start and stop [pair] of some pairs; the cost is ∞ if no path fits."""
        pairs = torch.as_tensor(np.stack([query, address, length]), device=self._device)
        found = self.align_on_device(pairs, int(length.max(initial=1)), dtype).cpu().numpy()
        return found[0], found[1].astype(np.int64), found[2].astype(np.int64)

    def align_on_device(
        self, pairs: torch.Tensor, longest: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """Return cost, start and stop, [3, pair] float64, without waiting for the device.

        Args:
            pairs: [3, pair] int64: query, address and length of the trajectory.
            longest: an upper bound of the lengths.
            dtype: the dtype of the trajectories.
        """
        frame_bytes = 8 * self._n_rows + dtype.itemsize * len(self._columns)
        n_pairs = max(1, MAX_CHUNK_BYTES // (frame_bytes * longest))
        chunks = torch.split(pairs, n_pairs, dim=1)
        return torch.cat([self._align_chunk(chunk, longest, dtype) for chunk in chunks], dim=1)

    def _align_chunk(self, pairs: torch.Tensor, longest: int, dtype: torch.dtype) -> torch.Tensor:
        query, address, length = pairs.contiguous()
        first_row, query_length = self._queries.table[:, query]
        count, dim, n_rows = len(query), len(self._columns), self._n_rows
        total = count * longest
        first_column = torch.arange(0, total, longest, device=self._device)
        columns = torch.empty(total * dim, dtype=dtype, device=self._device)
        exact_kernels.transpose_trajectories[(count, triton.cdiv(longest, TRANSPOSE_TILE))](
            address, length, first_column, columns, dim,
            TILE=TRANSPOSE_TILE, DTYPE=TRITON_DTYPES[dtype], num_warps=4,
        )  # fmt: skip
        costs = torch.empty(total * n_rows, dtype=torch.float64, device=self._device)
        tiles = triton.cdiv(longest, TILE_COLUMNS), triton.cdiv(n_rows, TILE_ROWS)
        exact_kernels.compute_local_costs[(count, *tiles)](
            columns, length, self._columns, first_row, query_length, first_column, costs,
            dim, self._columns.shape[1],
            ROWS=TILE_ROWS, COLUMNS=TILE_COLUMNS, ALL_ROWS=n_rows, AHEAD=AHEAD,
            num_warps=TILE_WARPS, enable_fp_fusion=False,
        )  # fmt: skip
        cost = torch.empty(count, dtype=torch.float64, device=self._device)
        start = torch.empty(count, dtype=torch.int32, device=self._device)
        stop = torch.empty(count, dtype=torch.int32, device=self._device)
        exact_kernels.align_pairs[(count,)](
            costs, first_column, length, query_length, cost, start, stop,
            ROWS=n_rows, AHEAD=AHEAD, SKEW=self._layout.skew, ROWS_BACK=self._layout.rows_back,
            num_warps=1, enable_fp_fusion=False,
        )  # fmt: skip
        return torch.stack([cost, start.to(torch.float64), stop.to(torch.float64)])
