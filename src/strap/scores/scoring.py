"""Scores of a retrieval, with the best possible scores and those of random segments."""

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
    """A score of a retrieval, with the best possible score and that of random segments."""

    value: float
    best: float
    """the best score possible with this prior and the same number of frames for each query"""
    random: float
    """the score of random segments of the prior with the same lengths"""

    @property
    def lift(self) -> float:
        """The score / that of random segments."""
        return self.value / self.random if self.random else float("inf")


@dataclass(frozen=True)
class Scores:
    """The scores of a retrieval by skill labels.

    A query wants the labels (skill, object) of its own frames. A frame is retrieved for a query if
    it is in a match of the query; it counts once for the query, even if several matches have it. A
    hit is a frame retrieved for a query that wants the frame's label.
    """

    precision: Score
    """hits / retrieved frames, both counted for each query. Best: an oracle retrieves the same
    number of frames for each query, wanted ones first"""
    recall: Score
    """different frames among the hits / frames of the prior with a label that any query wants (0 if
    there are none). Best: the oracle retrieves different frames for each query if it can"""
    border_error: Score
    """mean distance in frames from a match's start or stop to the nearest border of its trajectory
    (a change of label, or an end). Best: 0"""
    frames: int
    """retrieved frames, counted for each query"""
    matches: int
    trajectories: int
    """number of different trajectories with a match"""
    effective_tasks: float
    """exp of the entropy of `tasks`: n if n tasks have the same number of matches"""
    tasks: Mapping[str, int]
    """instruction -> number of matches, highest first"""

    def to_json(self) -> dict[str, Any]:
        """Return the scores as a JSON object."""
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
        matches: the retrieved matches: sub-trajectories, or single states padded with frames.
        target: labels of the target dataset.
        prior: dataset's name -> its labels, for all datasets that were searched.
        queries: all queries, also those without a match, which count in the recall. By default the
            queries of the matches.
        seed: seed of the random segments.
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
    """Return for each query the prior's frames that its matches contain, each once."""
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
    """Return the effective number of classes with these counts: exp of their entropy.

    >>> round(effective_count([5, 5, 5]), 2)
    3.0
    >>> round(effective_count([98, 1, 1]), 2)
    1.12
    """
    shares = [count / sum(counts) for count in counts]
    return math.exp(-sum(share * math.log(share) for share in shares))
