"""Retrieval of random segments: the baseline that every other method should beat."""

from __future__ import annotations

import numpy as np

from strap.dtw import SearchStatistics
from strap.errors import StrapError
from strap.retrieval.catalogue import Problem, Retrieved
from strap.types import Match, Matches, Segment


def retrieve_random(problem: Problem) -> Retrieved:
    """Draw the same number of random segments for each query, each as long as the query.

    Every trajectory is equally likely. A trajectory that is shorter than the query is taken whole.
    Nothing is compared, so every match costs 0.
    """
    top_k = problem.options.top_k
    if not isinstance(top_k, int):
        raise StrapError("method 'random' has no costs: give the number of matches with --top-k")
    rng = np.random.default_rng(problem.options.seed)
    trajectories = [
        (number, key) for number, prior in enumerate(problem.priors) for key in prior.trajectories
    ]
    rows: list[Match] = []
    each, remainder = divmod(top_k, len(problem.queries))
    pairs = zip(problem.queries, problem.excluded(), strict=True)
    for index, (query, excluded) in enumerate(pairs):
        allowed = [name for name in trajectories if name not in excluded]
        if not allowed:
            raise StrapError(
                "there is no prior trajectory to draw from: all are also in the target"
            )
        for rank in range(1, each + (index < remainder) + 1):
            number, key = allowed[int(rng.integers(len(allowed)))]
            frames = problem.priors[number].trajectories[key].length
            length = min(len(query), frames)
            start = int(rng.integers(frames - length + 1))
            rows.append(
                problem.match(query, number, Segment(key, start, start + length), 0.0, rank)
            )
    return Retrieved(Matches(tuple(rows)), SearchStatistics())
