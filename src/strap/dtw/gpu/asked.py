"""The queries on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from strap.dtw.types import Frames, Ints


@dataclass(frozen=True, eq=False)
class Asked:
    """All queries' frames end to end: sent once, used by the filter and by the exact evaluation."""

    frames: torch.Tensor  # [n d]
    counts: Ints  # [q]
    tops: Ints  # [q]: the first row of each
    table: torch.Tensor  # [2 q] int64: tops and counts

    @classmethod
    def of(cls, queries: Sequence[Frames], device: torch.device) -> Asked:
        """Send the queries."""
        counts = np.array([len(query) for query in queries])
        tops = np.cumsum([0, *counts[:-1]])
        frames = torch.as_tensor(np.concatenate(queries), device=device)
        # Now, not when it is needed: sending waits for all that the device has been told to do.
        table = torch.as_tensor(np.stack([tops, counts]), device=device)
        return cls(frames, counts, tops, table)

    @property
    def longest(self) -> int:
        """Frames of the longest query."""
        return int(self.counts.max())
