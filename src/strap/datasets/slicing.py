"""A stretch of a trajectory as a trajectory of its own, with the context a policy needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from strap.errors import StrapError
from strap.lazy_arrays import LazyArray, lazy
from strap.types import Array, Segment, Trajectory

HISTORY = 5
"""Frames kept before a retrieved segment: the policy's history."""
CHUNK = 5
"""Frames kept after a retrieved segment: the actions it predicts at once."""


def slice_trajectory(
    trajectory: Trajectory,
    segment: Segment,
    *,
    before: int = HISTORY,
    after: int = CHUNK,
    id: str,
    provenance: Mapping[str, Any] | None = None,
) -> Trajectory:
    """Return the segment with `before` frames ahead of it and `after` behind, nothing read yet.

    Where the trajectory ends, its edge frame is repeated; `extras["is_pad"]` marks these frames,
    `extras["is_context"]` the real ones outside the segment. Every per-frame array is cut alike:

        frames      0 1 2 3 4 5 6 7      segment [1, 4), before 2, after 2
        kept    0 0 1 2 3 4 5
        is_pad  1 0 0 0 0 0 0
        context 0 1 0 0 0 1 1
    """
    if not 0 <= segment.start < segment.stop <= trajectory.length:
        raise StrapError(
            f"segment {segment} lies outside the {trajectory.length} frames of '{trajectory.id}': "
            "were the matches made from another version of the dataset?"
        )
    wanted = np.arange(segment.start - before, segment.stop + after)
    rows = wanted.clip(0, trajectory.length - 1)
    is_pad = wanted != rows
    outside = (wanted < segment.start) | (wanted >= segment.stop)
    cut = {name: _cut(array, rows) for name, array in trajectory.extras.items()}
    cut |= {"is_pad": lazy(is_pad), "is_context": lazy(outside & ~is_pad)}
    return replace(
        trajectory,
        id=id,
        length=len(rows),
        cameras={name: _cut(array, rows) for name, array in trajectory.cameras.items()},
        proprioception={n: _cut(array, rows) for n, array in trajectory.proprioception.items()},
        actions=_cut(trajectory.actions, rows),
        extras=cut,
        attributes={**trajectory.attributes, "provenance": dict(provenance or {})},
    )


def _cut(array: LazyArray, rows: Array) -> LazyArray:
    def read(start: int, stop: int) -> Array:
        frames = rows[start:stop]
        if not len(frames):
            return array[0:0]
        block = array[int(frames[0]) : int(frames[-1]) + 1]
        return np.asarray(block[frames - frames[0]])

    return LazyArray((len(rows), *array.shape[1:]), array.dtype, read)
