"""Exact evaluation of some (query, trajectory) pairs: float64, the bits of the definition."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl

from strap.dtw.gpu import kernels
from strap.dtw.gpu.asked import Asked
from strap.dtw.types import Floats, Ints

ROWS, COLUMNS, WARPS = 4, 128, 2  # of a tile of costs
AHEAD = 8  # dimensions, and columns of costs, that are loaded together: latency is what costs
TILE = 32  # frames and dimensions that are transposed together
BYTES = 2**31  # of costs and of frames that are held at a time
_TYPES = {torch.float16: tl.float16, torch.float32: tl.float32, torch.float64: tl.float64}


@dataclass(frozen=True, eq=False)
class Pairs:
    """Queries and trajectories to be evaluated: where their frames lie, and how many there are."""

    query: Ints  # [p]
    address: Ints  # [p] of the trajectory's frames in the device's memory
    length: Ints  # [p]


class Exact:
    """All queries as columns on the device."""

    def __init__(self, asked: Asked, steps: str) -> None:
        self.code, self.device, self.asked = kernels.CODES[steps], asked.frames.device, asked
        self.columns = asked.frames.to(torch.float64).T.contiguous()
        self.held = max(16, 1 << (asked.longest - 1).bit_length())

    def align(self, pairs: Pairs, dtype: torch.dtype) -> tuple[Floats, Ints, Ints]:
        """cost, start, stop [p] of each pair; the cost is ∞ where no path fits."""
        table = np.stack([pairs.query, pairs.address, pairs.length])
        on_device = torch.as_tensor(table, device=self.device)
        found = self.found(on_device, int(pairs.length.max(initial=1)), dtype).cpu().numpy()
        return found[0], found[1].astype(np.int64), found[2].astype(np.int64)

    def found(self, pairs: torch.Tensor, longest: int, dtype: torch.dtype) -> torch.Tensor:
        """As `align`, all on the device: [3 p] int64 query, address, length -> [3 p] float64."""
        size = 8 * self.held + dtype.itemsize * len(self.columns)
        limit = max(1, BYTES // (size * longest))
        parts = [self._some(part, longest, dtype) for part in torch.split(pairs, limit, dim=1)]
        return torch.cat(parts, dim=1)

    def _some(self, pairs: torch.Tensor, longest: int, dtype: torch.dtype) -> torch.Tensor:
        query, address, length = pairs.contiguous()
        top, rows = self.asked.table[:, query]
        count = len(query)
        place = torch.arange(0, count * longest, longest, device=self.device)
        total, dim = count * longest, len(self.columns)
        columns = torch.empty(total * dim, dtype=dtype, device=self.device)
        kernels.transposed[(count, triton.cdiv(longest, TILE))](
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
            AHEAD=AHEAD,
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
            AHEAD=AHEAD,
            num_warps=1,
            enable_fp_fusion=False,
        )
        return torch.stack([out, start.to(torch.float64), stop.to(torch.float64)])
