"""The cost limits of `top_k` auto: what a query costs in the other demonstrations of its task."""

from __future__ import annotations

from collections.abc import Sequence

from strap.dtw import SearchOptions, align_with
from strap.errors import StrapError
from strap.retrieval.catalogue import Problem
from strap.types import Array

LANGUAGE_ALLOWANCE = 1.15
"""The factor on cost limits if instructions are compared: demonstrations of a task share their
instruction, prior trajectories seldom have the same one."""


def demonstration_limits(
    problem: Problem, vectors: Sequence[Array], search: SearchOptions
) -> list[float]:
    """Return for each query the cost of its most expensive match in the other demonstrations.

    As in a prior trajectory, the query has one best match in every other demonstration with its
    instruction. If it fits into none of them, its limit is 0. If the features contain the
    instruction, limits are multiplied by LANGUAGE_ALLOWANCE.

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
                "top_k is auto, which compares demonstrations of one task, but "
                f"'{query.trajectory_id}' is the only one of '{instruction}': give a number, as in "
                "--top-k 100"
            )
        allowed = lengths[number] if lengths else None
        found = [align(vectors[number], frames[key], allowed) for key in others]
        limits.append(max((match.cost for match in found if match), default=0.0))
    fused = [feature[0] for feature in target.config.encoder.get("fused", ())]
    allowance = LANGUAGE_ALLOWANCE if "language" in fused else 1.0
    return [allowance * limit for limit in limits]
