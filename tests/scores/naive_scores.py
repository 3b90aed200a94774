"""A slow, readable twin of `strap.scores.score`: sets of (query, dataset, trajectory, frame)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from strap.scores import Label, Labels
from strap.types import Match, Segment

Frame = tuple[str, str, int]


class NaiveScores(NamedTuple):
    precision: float
    best_precision: float
    recall: float
    best_recall: float
    border_error: float


def naive_scores(
    matches: Sequence[Match],
    target: Labels,
    prior: Mapping[str, Labels],
    queries: Sequence[Segment],
) -> NaiveScores:
    wanted = {q: set(target[q.trajectory_id][q.start : q.stop]) for q in queries}
    label = {
        (name, key, i): own
        for name, labels in prior.items()
        for key, sequence in labels.items()
        for i, own in enumerate(sequence)
    }
    retrieved: dict[Segment, set[Frame]] = {q: set() for q in queries}
    for match in matches:
        segment = match.segment
        for i in range(segment.start, segment.stop):
            retrieved[match.query].add((match.dataset, segment.trajectory_id, i))
    pairs = [(q, frame) for q in queries for frame in retrieved[q]]
    hits = [(q, frame) for q, frame in pairs if label[frame] in wanted[q]]
    available = {q: [f for f, own in label.items() if own in wanted[q]] for q in queries}
    best_hits = sum(min(len(retrieved[q]), len(available[q])) for q in queries)
    any_wanted = {frame for q in queries for frame in available[q]}
    slots = [q for q in queries for _ in retrieved[q]]
    return NaiveScores(
        len(hits) / len(pairs),
        best_hits / len(pairs),
        len({frame for _, frame in hits}) / max(len(any_wanted), 1),
        largest_assignment(slots, available) / max(len(any_wanted), 1),
        sum(border_errors(match, prior) for match in matches) / (2 * len(matches)),
    )


def largest_assignment(
    slots: Sequence[Segment], available: Mapping[Segment, Sequence[Frame]]
) -> int:
    """How many slots can each have a frame of its own: one augmenting path after another."""
    taken_by: dict[Frame, int] = {}

    def place(slot: int, seen: set[Frame]) -> bool:
        for frame in available[slots[slot]]:
            if frame not in seen:
                seen.add(frame)
                if frame not in taken_by or place(taken_by[frame], seen):
                    taken_by[frame] = slot
                    return True
        return False

    return sum(place(slot, set()) for slot in range(len(slots)))


def border_errors(match: Match, prior: Mapping[str, Labels]) -> int:
    """The distances of start and stop, added."""
    own: Sequence[Label] = prior[match.dataset][match.segment.trajectory_id]
    borders = [0, len(own), *(i for i in range(1, len(own)) if own[i] != own[i - 1])]
    ends = (match.segment.start, match.segment.stop)
    return sum(min(abs(end - border) for border in borders) for end in ends)
