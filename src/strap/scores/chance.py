"""The scores of random segments with the same lengths as the matches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from strap.scores.labelled_frames import Flags, LabelledFrames
from strap.types import Match, Segment

DRAWS = 20
"""random segments for each match; fewer would give noisier means, and they are cheap"""


@dataclass(frozen=True)
class RandomScores:
    """The scores of random retrievals: as many segments as matches, with the same lengths."""

    precision: float
    covered: float
    """mean number of different frames that were retrieved for a query that wants them"""
    border_error: float


def score_random_segments(
    matches: Sequence[Match],
    wanted: Mapping[Segment, Flags],
    frames: LabelledFrames,
    *,
    seed: int = 0,
) -> RandomScores:
    """Score `DRAWS` random retrievals from all trajectories of the prior.

    Args:
        matches: the retrieved matches.
        wanted: query -> which labels it wants, [label].
        frames: the prior's frames.
        seed: seed of the random segments.
    """
    rng = np.random.default_rng(seed)
    covered = np.zeros((DRAWS, len(frames.codes)), bool)
    hits = total = distance = 0
    for match in matches:
        is_wanted = wanted[match.query]
        segments = _draw_segments(frames, len(match.segment), rng)
        for row, (trajectory, start, stop) in zip(covered, segments, strict=True):
            first = frames.spans[trajectory][0]
            is_hit = is_wanted[frames.codes[first + start : first + stop]]
            row[first + start : first + stop] |= is_hit
            hits += int(is_hit.sum())
            total += stop - start
            distance += frames.border_distance(trajectory, start, stop)
    mean = float(covered.sum(axis=1).mean())
    return RandomScores(hits / total, mean, distance / (2 * DRAWS * len(matches)))


def _draw_segments(
    frames: LabelledFrames, length: int, rng: np.random.Generator
) -> Iterator[tuple[int, int, int]]:
    """Yield (trajectory, start, stop) of random segments; shorter trajectories are taken whole."""
    for _ in range(DRAWS):
        trajectory = int(rng.integers(len(frames.spans)))
        first, last = frames.spans[trajectory]
        taken = min(length, last - first)
        start = int(rng.integers(last - first - taken + 1))
        yield trajectory, start, start + taken
