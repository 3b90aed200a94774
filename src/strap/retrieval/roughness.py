"""Roughness: how jerkily the end effector moves. Matches much rougher than their query can go.

    roughness = mean |Δ³p|² · n⁴ / (mean |Δp|)²

with p the positions of n frames: squared jerk, times duration to the power of 4, over squared
speed. It has no unit: neither the unit of length, nor the frame rate, nor the speed of a motion
changes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from strap.datasets import Dataset
from strap.errors import StrapError
from strap.position_columns import positions
from strap.types import Array, Match, Matches, Segment


def roughness(places: Array) -> float | None:
    """Return the roughness of a motion [n p]; None if it has fewer than 4 frames or never moves.

    >>> roughness(np.arange(8.0)[:, None])
    0.0
    """
    if len(places) < 4:
        return None
    speed = float(np.linalg.norm(np.diff(places, axis=0), axis=1).mean())
    if not speed:
        return None
    jerk = float((np.diff(places, 3, axis=0) ** 2).sum(axis=1).mean())
    return jerk * len(places) ** 4 / speed**2


def drop_rough(
    matches: Matches,
    target: Dataset,
    priors: Sequence[Dataset],
    max_ratio: float,
    position: str | None = None,
) -> Matches:
    """Return the matches that are at most `max_ratio` times as rough as their query.

    A match is kept if it or its query has no roughness: it is too short or does not move.

    Args:
        matches: the retrieved matches.
        target: the demonstrations.
        priors: the datasets that the matches are from.
        max_ratio: how many times as rough as its query a match may be.
        position: which proprioception is the position, as for `strap.position_columns.positions`.
    """
    by_name = matches.locate(priors)

    def measure(dataset: Dataset, segment: Segment) -> float | None:
        places = positions(dataset[segment.trajectory_id], position)
        return roughness(places[segment.start : segment.stop])

    limits = {query: measure(target, query) for query in matches.queries}
    kept: list[Match] = []
    ranks: Counter[Segment] = Counter()
    for match in matches:
        limit, found = limits[match.query], measure(by_name[match.dataset], match.segment)
        if limit is None or found is None or found <= max_ratio * limit:
            ranks[match.query] += 1
            kept.append(replace(match, rank=ranks[match.query]))
    if not kept:
        raise StrapError(
            f"every match is more than {max_ratio:g} times as rough as its query: raise "
            "--max-roughness, or leave it out"
        )
    return Matches(tuple(kept))
