"""The best precision and recall that are possible with a prior."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from strap.scores.labelled_frames import Flags, Numbers


def best_hits(wanted: Sequence[Flags], frames: Sequence[int], counts: Numbers) -> int:
    """Return the number of hits of an oracle.

    The oracle retrieves the same number of frames for each query, those with a wanted label first,
    and no frame twice for the same query. Its hits are the sum over queries q of
    min(frames[q], number of the prior's frames that q wants).

    Args:
        wanted: for each query which labels it wants, [label].
        frames: for each query the number of retrieved frames.
        counts: the number of the prior's frames with each label, [label].
    """
    return sum(
        min(count, int(counts[flags].sum())) for flags, count in zip(wanted, frames, strict=True)
    )


def best_coverage(wanted: Sequence[Flags], frames: Sequence[int], counts: Numbers) -> int:
    """Return how many different frames an oracle can retrieve, each for a query that wants it.

    The arguments are those of `best_hits`. Here a frame counts only once, so the oracle retrieves
    different frames for different queries. The best assignment of frames to queries is a flow:

        source ──frames[q]──▶ query q ──where q wants it──▶ label ──counts[label]──▶ sink
    """
    merged: dict[bytes, int] = {}  # queries that want the same labels are one node
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
