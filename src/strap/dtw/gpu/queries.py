"""The request of a search on GPUs, and its queries on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from strap.dtw.types import Excluded, Fetch, Frames, Ints, SearchOptions


@dataclass(frozen=True)
class GpuTuning:
    """Sizes that decide how long a search takes, and never what it finds."""

    batch_bytes: int = 2**28  # of float16 frames on their way to a device at a time
    min_extra: int = 4  # candidates in the shortlist beyond k, at least …
    extra_share: float = 0.1  # … and as a share of k: then few candidates remain after it
    n_reserve: int = 64  # candidates after the shortlist: those that remain are mostly among them

    def get_batch_frames(self, dim: int) -> int:
        """Return how many frames of so many dimensions a batch may have."""
        return max(1, self.batch_bytes // (2 * dim))

    def get_shortlist_size(self, k: int) -> int:
        """Return how many candidates of a query are aligned first."""
        return k + max(self.min_extra, int(self.extra_share * k))


@dataclass(frozen=True, eq=False)
class SearchRequest:
    """What each device must find; checked already."""

    queries: Sequence[Frames]  # each [n d]
    options: SearchOptions
    exclude: Excluded  # for each query the ids that it must not match
    fetch: Fetch
    tuning: GpuTuning


@dataclass(frozen=True, eq=False)
class DeviceQueries:
    """All queries' frames end to end: sent once, used by the bounds and by the exact alignment.

    Every query begins at an even row: the last frame of a query of odd length is there twice.
    """

    frames: torch.Tensor  # [row, dimension]
    lengths: Ints  # [query]
    first_rows: Ints  # [query]
    table: torch.Tensor  # [2, query] int64: first_rows and lengths

    @property
    def longest(self) -> int:
        """Frames of the longest query."""
        return int(self.lengths.max())


def upload_queries(queries: Sequence[Frames], device: torch.device) -> DeviceQueries:
    """Send the queries to a device."""
    lengths = np.array([len(query) for query in queries])
    even = lengths + lengths % 2
    first_rows = np.cumsum(even) - even
    rows = [part for query in queries for part in (query, query[len(query) & ~1 : len(query)])]
    dtype = torch.from_numpy(np.empty(0, np.result_type(*queries))).dtype
    shape = int(even.sum()), queries[0].shape[1]
    # Page-locked memory, so that nobody waits; torch keeps it for later.
    host = torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")
    np.concatenate(rows, out=host.numpy())
    frames = host.to(device, non_blocking=True)
    # Sent with the frames, not when it is needed: it would queue behind all work given till then.
    table = torch.from_numpy(np.stack([first_rows, lengths])).to(device, non_blocking=True)
    return DeviceQueries(frames, lengths, first_rows, table)
