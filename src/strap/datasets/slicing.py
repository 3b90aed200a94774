"""Cut a segment out of a trajectory, with the frames around it that a policy needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from strap.errors import StrapError
from strap.lazy_arrays import LazyArray, lazy
from strap.types import Array, Segment, Trajectory

FRAMES_BEFORE = 5
"""frames kept before a retrieved segment: the policy's history"""
FRAMES_AFTER = 5
"""frames kept after a retrieved segment: the actions that the policy predicts at once"""


def slice_trajectory(
    trajectory: Trajectory,
    segment: Segment,
    *,
    before: int = FRAMES_BEFORE,
    after: int = FRAMES_AFTER,
    id: str,
    provenance: Mapping[str, Any] | None = None,
) -> Trajectory:
    """Return the segment as a trajectory with `before` frames before it and `after` after it.

    No array is read yet. Beyond the ends of the trajectory its first or last frame is repeated:
    `extras["is_pad"]` marks these frames. `extras["is_context"]` marks the other frames outside
    the segment. Every per-frame array is cut in the same way:

        frames      0 1 2 3 4 5 6 7      segment [1, 4), before 2, after 2
        kept    0 0 1 2 3 4 5
        is_pad  1 0 0 0 0 0 0
        context 0 1 0 0 0 1 1
    """
    if not 0 <= segment.start < segment.stop <= trajectory.length:
        raise StrapError(
            f"segment {segment} is outside the {trajectory.length} frames of '{trajectory.id}': "
            "were the matches made from another version of the dataset?"
        )
    wanted = np.arange(segment.start - before, segment.stop + after)
    rows = wanted.clip(0, trajectory.length - 1)
    is_pad = wanted != rows
    is_outside = (wanted < segment.start) | (wanted >= segment.stop)
    extras = {name: _cut(array, rows) for name, array in trajectory.extras.items()}
    extras |= {"is_pad": lazy(is_pad), "is_context": lazy(is_outside & ~is_pad)}
    return replace(
        trajectory,
        id=id,
        length=len(rows),
        cameras={name: _cut(array, rows) for name, array in trajectory.cameras.items()},
        proprioception={n: _cut(array, rows) for n, array in trajectory.proprioception.items()},
        actions=_cut(trajectory.actions, rows),
        extras=extras,
        attributes={**trajectory.attributes, "provenance": dict(provenance or {})},
    )


def _cut(array: LazyArray, rows: Array) -> LazyArray:
    """Return the rows of an array; `rows` is ascending and may repeat its ends."""

    def read(start: int, stop: int) -> Array:
        frames = rows[start:stop]
        if not len(frames):
            return array[0:0]
        block = array[int(frames[0]) : int(frames[-1]) + 1]
        return np.asarray(block[frames - frames[0]])

    return LazyArray((len(rows), *array.shape[1:]), array.dtype, read)
