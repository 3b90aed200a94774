"""The queries on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from strap.dtw.types import Frames, Ints


@dataclass(frozen=True, eq=False)
class Asked:
    """All queries' frames end to end: sent once, used by the filter and by the exact evaluation.

    Every query begins at an even row; the last frame of one of odd length is there twice.
    """

    frames: torch.Tensor  # [n d]
    counts: Ints  # [q]
    tops: Ints  # [q]: the first row of each
    table: torch.Tensor  # [2 q] int64: tops and counts

    @classmethod
    def of(cls, queries: Sequence[Frames], device: torch.device) -> Asked:
        """Send the queries."""
        counts = np.array([len(query) for query in queries])
        even = counts + counts % 2
        tops = np.cumsum(even) - even
        frames = _joined(queries, device)
        # Now, not when it is needed: it would come after all that the device is told until then.
        table = torch.from_numpy(np.stack([tops, counts])).to(device, non_blocking=True)
        return cls(frames, counts, tops, table)

    @property
    def longest(self) -> int:
        """Frames of the longest query."""
        return int(self.counts.max())


def _joined(queries: Sequence[Frames], device: torch.device) -> torch.Tensor:
    """The rows on a device, by way of page-locked memory, which torch keeps for later."""
    rows = [part for query in queries for part in (query, query[len(query) & ~1 : len(query)])]
    dtype = torch.from_numpy(np.empty(0, np.result_type(*queries))).dtype
    shape = sum(map(len, rows)), queries[0].shape[1]
    host = torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")
    np.concatenate(rows, out=host.numpy())
    return host.to(device, non_blocking=True)
