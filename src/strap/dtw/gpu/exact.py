"""Exact evaluation of some (query, trajectory) pairs: float64, the bits of the definition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl

from strap.dtw.gpu import kernels
from strap.dtw.types import Floats, Frames, Ints

ROWS, COLUMNS, WARPS = 8, 64, 1  # of a tile of costs
TILE = 32  # frames and dimensions that are transposed together
BYTES = 2**31  # of costs and of frames that are held at a time
_TYPES = {torch.float16: tl.float16, torch.float32: tl.float32, torch.float64: tl.float64}


@dataclass(frozen=True, eq=False)
class Pairs:
    """Queries and trajectories to be evaluated: where their frames lie, and how many there are."""

    query: Ints  # [p]
    address: Ints  # [p] of the trajectory's frames in the device's memory
    length: Ints  # [p]

    def __len__(self) -> int:
        return len(self.query)

    def part(self, some: slice) -> Pairs:
        """Some of them."""
        return Pairs(self.query[some], self.address[some], self.length[some])


class Exact:
    """All queries as columns on the device."""

    def __init__(self, queries: Sequence[Frames], steps: str, device: torch.device) -> None:
        self.code, self.device = kernels.CODES[steps], device
        self.counts = np.array([len(query) for query in queries])
        self.tops = np.cumsum([0, *self.counts[:-1]])
        stacked = torch.as_tensor(np.concatenate(queries), device=device)
        self.columns = stacked.to(torch.float64).T.contiguous()
        self.held = max(16, 1 << (int(self.counts.max()) - 1).bit_length())

    def align(self, pairs: Pairs, dtype: torch.dtype) -> tuple[Floats, Ints, Ints]:
        """cost, start, stop [p] of each pair; the cost is ∞ where no path fits."""
        found = []
        size = 8 * self.held + dtype.itemsize * len(self.columns)
        limit = max(1, BYTES // (size * int(pairs.length.max(initial=1))))
        for first in range(0, len(pairs), limit):
            found.append(self._some(pairs.part(slice(first, first + limit)), dtype))
        packed = torch.cat(found, dim=1).cpu().numpy()
        return packed[0], packed[1].astype(np.int64), packed[2].astype(np.int64)

    def _some(self, pairs: Pairs, dtype: torch.dtype) -> torch.Tensor:
        """[3 p]: cost, start and stop as float64."""
        count, longest = len(pairs), int(pairs.length.max())
        table = np.stack(
            [
                pairs.address,
                pairs.length,
                self.tops[pairs.query],
                self.counts[pairs.query],
                np.cumsum([0, *pairs.length[:-1]]),
            ]
        )
        address, length, top, rows, place = torch.as_tensor(table, device=self.device)
        total, dim = int(pairs.length.sum()), len(self.columns)
        columns = torch.empty(total * dim, dtype=dtype, device=self.device)
        tiles = triton.cdiv(longest, TILE), triton.cdiv(dim, TILE)
        kernels.transposed[(count, *tiles)](
            address, length, place, columns, dim, TILE=TILE, DTYPE=_TYPES[dtype], num_warps=4
        )
        costs = torch.empty(total * self.held, dtype=torch.float64, device=self.device)
        tiles = triton.cdiv(longest, COLUMNS), triton.cdiv(self.held, ROWS)
        kernels.exact_costs[(count, *tiles)](
            columns,
            length,
            self.columns,
            top,
            rows,
            place,
            costs,
            dim,
            self.columns.shape[1],
            ROWS=ROWS,
            COLUMNS=COLUMNS,
            ALL_ROWS=self.held,
            num_warps=WARPS,
            enable_fp_fusion=False,
        )
        out = torch.empty(count, dtype=torch.float64, device=self.device)
        start = torch.empty(count, dtype=torch.int32, device=self.device)
        stop = torch.empty(count, dtype=torch.int32, device=self.device)
        kernels.alignments[(count,)](
            costs,
            place,
            length,
            rows,
            out,
            start,
            stop,
            ROWS=self.held,
            STEPS=self.code,
            num_warps=1,
            enable_fp_fusion=False,
        )
        return torch.stack([out, start.to(torch.float64), stop.to(torch.float64)])
