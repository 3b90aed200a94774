"""What a query costs inside the other demonstrations of its task: the yardstick of `top_k` auto."""

from __future__ import annotations

from collections.abc import Sequence

from strap.dtw import SearchOptions, align_with
from strap.errors import StrapError
from strap.retrieval.catalogue import Problem
from strap.types import Array

LANGUAGE_ALLOWANCE = 1.15
"""Demonstrations of a task share their instruction, prior trajectories seldom have it: where
instructions are compared, a match may cost so many times as much."""


def demonstration_limits(
    problem: Problem, vectors: Sequence[Array], search: SearchOptions
) -> list[float]:
    """Return for each query the cost of its dearest match among the other demonstrations.

    Every other demonstration of the query's instruction has one best match, as every prior
    trajectory has. A query that fits into none of them has the limit 0. Where the features hold the
    instruction, limits are LANGUAGE_ALLOWANCE times as high.

    Args:
        problem: the queries and the target.
        vectors: the frames of each query, [n d].
        search: steps, metric and allowed lengths.
    """
    target, _ = problem.stores()
    align, lengths = align_with(search), search.constraints.lengths
    keys = dict.fromkeys(query.trajectory_id for query in problem.queries)
    frames = {key: target[key][:] for key in keys}
    limits = []
    for number, query in enumerate(problem.queries):
        instruction = problem.target.instruction(query.trajectory_id)
        others = [
            key
            for key in keys
            if problem.target.instruction(key) == instruction and key != query.trajectory_id
        ]
        if not others:
            raise StrapError(
                f"top_k is auto, which compares demonstrations of one task, but '{instruction}' "
                f"has '{query.trajectory_id}' alone: say how many to keep, as in --top-k 100"
            )
        allowed = lengths[number] if lengths else None
        found = [align(vectors[number], frames[key], allowed) for key in others]
        limits.append(max((match.cost for match in found if match), default=0.0))
    fused = [feature[0] for feature in target.config.encoder.get("fused", ())]
    allowance = LANGUAGE_ALLOWANCE if "language" in fused else 1.0
    return [allowance * limit for limit in limits]
