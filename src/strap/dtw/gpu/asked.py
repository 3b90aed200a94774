"""The queries on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from strap.dtw.types import Frames, Ints


def sent(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """An array on a device; nobody waits until it is there."""
    return torch.from_numpy(array).to(device, non_blocking=True)


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
        frames = sent(np.concatenate(queries), device)
        # Now, not when it is needed: it would come after all that the device is told until then.
        table = sent(np.stack([tops, counts]), device)
        return cls(frames, counts, tops, table)

    @property
    def longest(self) -> int:
        """Frames of the longest query."""
        return int(self.counts.max())
