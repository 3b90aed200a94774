"""All scores of a retrieval, each beside the best that the prior allows and beside random's."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from strap.datasets.labels import Labels
from strap.errors import StrapError
from strap.scores.chance import score_random_segments
from strap.scores.labelled_frames import Flags, LabelledFrames, Numbers, query_labels
from strap.scores.oracle import best_coverage, best_hits
from strap.types import Match, Segment


@dataclass(frozen=True)
class Score:
    """A score of what was retrieved, between the two that it should be compared with."""

    value: float
    best: float
    """the best that this prior allows with as many retrieved frames for each query"""
    random: float
    """of segments of the same lengths, drawn at random from the prior"""

    @property
    def lift(self) -> float:
        """How many times better than random."""
        return self.value / self.random if self.random else float("inf")


@dataclass(frozen=True)
class Scores:
    """What skill labels say of a retrieval.

    A query wants the labels (skill, object) of its own frames. A frame is retrieved for a query
    when a match of the query holds it, and counts once for the query however many matches do. A hit
    is a frame retrieved for a query that wants the frame's label.
    """

    precision: Score
    """hits / frames retrieved, both counted for each query. Best: an oracle retrieves for each
    query as many frames, wanted ones first"""
    recall: Score
    """different frames among the hits / frames of the prior with a label that any query wants (0
    where there is none). Best: the oracle, taking other frames for each query where it can"""
    border_error: Score
    """how many frames a match's start and stop lie from the nearest border of their trajectory (a
    change of label, or an end), mean. Best: 0"""
    frames: int
    """retrieved, counted for each query"""
    matches: int
    trajectories: int
    """different ones that a match lies in"""
    effective_tasks: float
    """exp of the entropy of `tasks`: n when n tasks have as many matches each"""
    tasks: Mapping[str, int]
    """instruction -> how many matches, most first"""

    def to_json(self) -> dict[str, Any]:
        """Return the numbers by name, for JSON."""
        plain = {
            name: value.__dict__ if isinstance(value, Score) else value
            for name, value in self.__dict__.items()
        }
        return {**plain, "tasks": dict(self.tasks)}


def score(
    matches: Sequence[Match],
    target: Labels,
    prior: Mapping[str, Labels] | LabelledFrames,
    *,
    queries: Sequence[Segment] | None = None,
    seed: int = 0,
) -> Scores:
    """Score a retrieval by skill labels; `Scores` defines each score.

    Args:
        matches: what was retrieved, sub-trajectories or single states with frames around them.
        target: labels of the target dataset.
        prior: dataset's name -> its labels; of all that could have been retrieved.
        queries: all that were searched for, those without a match too; they count for the recall.
            By default the queries of the matches.
        seed: of the random segments.
    """
    if not matches:
        raise StrapError("there is no match to score")
    frames = prior if isinstance(prior, LabelledFrames) else LabelledFrames.of(prior)
    searched = dict.fromkeys((*(queries or ()), *(match.query for match in matches)))
    wanted = {query: frames.wanted(query_labels(target, query)) for query in searched}
    retrieved = _retrieved(matches, frames)
    hits = {query: held[wanted[query][frames.codes[held]]] for query, held in retrieved.items()}
    allocated = [len(retrieved.get(query, ())) for query in searched]
    total = sum(allocated)
    flags: list[Flags] = list(wanted.values())
    n_wanted = int(frames.counts[np.any(flags, axis=0)].sum())
    random = score_random_segments(matches, wanted, frames, seed=seed)
    n_covered = len(np.unique(np.concatenate(list(hits.values()))))
    n_coverable = best_coverage(flags, allocated, frames.counts)
    tasks = Counter(match.instruction or "(no instruction)" for match in matches)
    return Scores(
        precision=Score(
            sum(map(len, hits.values())) / total,
            best_hits(flags, allocated, frames.counts) / total,
            random.precision,
        ),
        recall=Score(*(n / max(n_wanted, 1) for n in (n_covered, n_coverable, random.covered))),
        border_error=Score(_border_error(matches, frames), 0.0, random.border_error),
        frames=total,
        matches=len(matches),
        trajectories=len({(match.dataset, match.segment.trajectory_id) for match in matches}),
        effective_tasks=effective_count(list(tasks.values())),
        tasks=dict(tasks.most_common()),
    )


def _retrieved(matches: Sequence[Match], frames: LabelledFrames) -> dict[Segment, Numbers]:
    """Return for each query the frames of the prior that its matches hold, each once."""
    held: dict[Segment, list[Numbers]] = {}
    for match in matches:
        first = frames.spans[frames.trajectory(match)][0]
        span = np.arange(first + match.segment.start, first + match.segment.stop)
        held.setdefault(match.query, []).append(span)
    return {query: np.unique(np.concatenate(spans)) for query, spans in held.items()}


def _border_error(matches: Sequence[Match], frames: LabelledFrames) -> float:
    distances = (
        frames.border_distance(frames.trajectory(match), match.segment.start, match.segment.stop)
        for match in matches
    )
    return sum(distances) / (2 * len(matches))


def effective_count(counts: Sequence[int]) -> float:
    """Return how many equally frequent things would be as diverse as things of these counts.

    >>> round(effective_count([5, 5, 5]), 2)
    3.0
    >>> round(effective_count([98, 1, 1]), 2)
    1.12
    """
    shares = [count / sum(counts) for count in counts]
    return math.exp(-sum(share * math.log(share) for share in shares))
