"""Pairs of segments that show the same part of a task in different demonstrations."""

from __future__ import annotations

from collections.abc import Sequence

from strap.types import Segment


def pair_segments(segments: Sequence[Segment]) -> list[tuple[Segment, Segment]]:
    """Return every segment with its counterpart in each other demonstration.

    If two demonstrations have the same number of segments, segments are paired in order. Otherwise
    the counterpart is the segment whose middle is nearest in relative time.

    >>> a, b = [Segment("a", 0, 4), Segment("a", 4, 10)], [Segment("b", 0, 7)]
    >>> [f"{one} {other}" for one, other in pair_segments([*a, *b])]
    ['a[0:4] b[0:7]', 'a[4:10] b[0:7]', 'b[0:7] a[4:10]']
    """
    demonstrations: dict[str, list[Segment]] = {}
    for segment in segments:
        demonstrations.setdefault(segment.trajectory_id, []).append(segment)
    return [
        (segment, _find_counterpart(index, demonstration, others))
        for key, demonstration in demonstrations.items()
        for other_key, others in demonstrations.items()
        if other_key != key
        for index, segment in enumerate(demonstration)
    ]


def _find_counterpart(
    index: int, demonstration: Sequence[Segment], others: Sequence[Segment]
) -> Segment:
    """Return the segment of another demonstration that corresponds to `demonstration[index]`."""
    if len(demonstration) == len(others):
        return others[index]
    middle = _relative_middle(demonstration[index], demonstration)
    return min(others, key=lambda other: abs(_relative_middle(other, others) - middle))


def _relative_middle(segment: Segment, demonstration: Sequence[Segment]) -> float:
    """Return the relative time, from 0 to 1, of a segment's middle in its demonstration."""
    return (segment.start + segment.stop) / (2 * max(other.stop for other in demonstration))
