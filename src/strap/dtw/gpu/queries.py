"""A search request for GPUs, and its queries on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from strap.dtw.types import Excluded, Fetch, Frames, Ints, SearchOptions


@dataclass(frozen=True)
class GpuTuning:
    """Settings of the GPU backend that affect its speed, never the result."""

    batch_bytes: int = 2**28  # size of a batch that is sent to a device, in float16
    min_extra: int = 4  # candidates in the shortlist in addition to k, at least …
    extra_share: float = 0.1  # … and as a share of k: so that few candidates remain afterwards
    n_reserve: int = 64  # candidates listed after the shortlist: most that remain are among them

    def get_batch_frames(self, dim: int) -> int:
        """Return the maximum number of frames [dim] in a batch."""
        return max(1, self.batch_bytes // (2 * dim))

    def get_shortlist_size(self, k: int) -> int:
        """Return the number of candidates of a query that are aligned first."""
        return k + max(self.min_extra, int(self.extra_share * k))


@dataclass(frozen=True, eq=False)
class SearchRequest:
    """The arguments of a search, which are checked already."""

    queries: Sequence[Frames]  # each [n d]
    options: SearchOptions
    exclude: Excluded  # for each query the ids that it must not match
    fetch: Fetch
    tuning: GpuTuning


@dataclass(frozen=True, eq=False)
class DeviceQueries:
    """The concatenated frames of all queries, for the bounds and for the exact alignment.

    Every query starts at an even row: the last frame of a query of odd length is repeated.
    """

    frames: torch.Tensor  # [row, dimension]
    lengths: Ints  # [query]
    first_rows: Ints  # [query]
    table: torch.Tensor  # [2, query] int64: first_rows and lengths

    @property
    def longest(self) -> int:
        """The number of frames of the longest query."""
        return int(self.lengths.max())


def upload_queries(queries: Sequence[Frames], device: torch.device) -> DeviceQueries:
    """Send the queries to a device."""
    lengths = np.array([len(query) for query in queries])
    even = lengths + lengths % 2
    first_rows = np.cumsum(even) - even
    rows = [part for query in queries for part in (query, query[len(query) & ~1 : len(query)])]
    dtype = torch.from_numpy(np.empty(0, np.result_type(*queries))).dtype
    shape = int(even.sum()), queries[0].shape[1]
    # Page-locked memory, so that the copy is asynchronous; torch reuses it later.
    host = torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")
    np.concatenate(rows, out=host.numpy())
    frames = host.to(device, non_blocking=True)
    # Sent with the frames: if sent when needed, it would queue behind all work launched until then.
    table = torch.from_numpy(np.stack([first_rows, lengths])).to(device, non_blocking=True)
    return DeviceQueries(frames, lengths, first_rows, table)
