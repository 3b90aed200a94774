"""The best precision and recall that a prior allows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from strap.scores.labelled_frames import Flags, Numbers


def best_hits(wanted: Sequence[Flags], frames: Sequence[int], counts: Numbers) -> int:
    """Return how many of the retrieved frames an oracle gets right.

    It retrieves for each query as many frames as were retrieved, those with a wanted label first,
    and none twice for the same query: min(frames[q], frames of the prior that q wants), summed.

    Args:
        wanted: for each query which labels it wants, [label].
        frames: for each query how many frames were retrieved.
        counts: how many frames of the prior have each label, [label].
    """
    return sum(
        min(count, int(counts[flags].sum())) for flags, count in zip(wanted, frames, strict=True)
    )


def best_coverage(wanted: Sequence[Flags], frames: Sequence[int], counts: Numbers) -> int:
    """Return how many different frames, each wanted by its query, an oracle can retrieve.

    As in `best_hits`, but what the oracle takes for one query it need not take for another. Which
    frames go to which query is a flow:

        source ──frames[q]──▶ query q ──where q wants it──▶ label ──counts[label]──▶ sink
    """
    merged: dict[bytes, int] = {}  # queries that want the same labels act as one
    for flags, count in zip(wanted, frames, strict=True):
        merged[flags.tobytes()] = merged.get(flags.tobytes(), 0) + count
    queries, labels = len(merged), len(counts)
    source, sink = queries + labels, queries + labels + 1
    capacities = np.zeros((sink + 1, sink + 1), np.int32)
    available = np.minimum(counts, np.iinfo(np.int32).max)
    for query, (key, count) in enumerate(merged.items()):
        capacities[source, query] = count
        capacities[query, queries:source] = np.where(np.frombuffer(key, bool), available, 0)
    capacities[queries:source, sink] = available
    return int(maximum_flow(csr_array(capacities), source, sink).flow_value)
