"""Which segments of different demonstrations of a task are the same part of it."""

from __future__ import annotations

from collections.abc import Sequence

from strap.types import Segment


def pair_segments(segments: Sequence[Segment]) -> list[tuple[Segment, Segment]]:
    """Return every segment with its counterpart in each other demonstration.

    Two demonstrations with as many segments have them in the same order; otherwise the counterpart
    is the segment whose middle is nearest in relative time.

    >>> a, b = [Segment("a", 0, 4), Segment("a", 4, 10)], [Segment("b", 0, 7)]
    >>> [f"{one} {other}" for one, other in pair_segments([*a, *b])]
    ['a[0:4] b[0:7]', 'a[4:10] b[0:7]', 'b[0:7] a[4:10]']
    """
    demonstrations: dict[str, list[Segment]] = {}
    for segment in segments:
        demonstrations.setdefault(segment.trajectory_id, []).append(segment)
    return [
        (segment, _counterpart(place, demonstration, others))
        for key, demonstration in demonstrations.items()
        for other_key, others in demonstrations.items()
        if other_key != key
        for place, segment in enumerate(demonstration)
    ]


def _counterpart(
    place: int, demonstration: Sequence[Segment], others: Sequence[Segment]
) -> Segment:
    """Return which of another demonstration's segments is that at a place of a demonstration."""
    if len(demonstration) == len(others):
        return others[place]
    middle = _relative_middle(demonstration[place], demonstration)
    return min(others, key=lambda other: abs(_relative_middle(other, others) - middle))


def _relative_middle(segment: Segment, demonstration: Sequence[Segment]) -> float:
    """Return where in its demonstration a segment's middle lies, from 0 to 1."""
    return (segment.start + segment.stop) / (2 * max(other.stop for other in demonstration))
