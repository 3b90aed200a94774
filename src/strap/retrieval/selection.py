"""Selection of the matches to keep: a number, a fraction, or those that are similar enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from strap.errors import StrapError, unknown
from strap.retrieval.options import MatchOptions, Rule


def select(
    costs: Sequence[Sequence[float]], frames: Sequence[int], options: MatchOptions
) -> list[int]:
    """Return how many of its cheapest matches each query keeps.

    Args:
        costs: for each query the costs of its matches, ascending.
        frames: the number of frames of each query.
        options: how many to keep (`top_k`, `fraction` or `threshold`, with `rule`), and `max_cost`.
    """
    costs = drop_expensive(costs, frames, options.max_cost)
    if options.threshold is not None:
        return _count_similar(costs, frames, options.threshold)
    available = sum(map(len, costs))
    if options.fraction is not None:
        return quotas(costs, max(1, round(options.fraction * available)), rule=options.rule)
    return quotas(costs, int(options.top_k or 1), rule=options.rule)


def drop_expensive(
    costs: Sequence[Sequence[float]], frames: Sequence[int], max_cost: float | None
) -> Sequence[Sequence[float]]:
    """Return the costs that are at most `max_cost` for each frame of their query."""
    if max_cost is None:
        return costs
    limits = [max_cost * count for count in frames]
    return [[c for c in found if c <= limit] for found, limit in zip(costs, limits, strict=True)]


def _count_similar(
    costs: Sequence[Sequence[float]], frames: Sequence[int], threshold: float
) -> list[int]:
    """Return how many matches of each query reach the threshold, by their cost per query frame."""
    every = [c / n for found, n in zip(costs, frames, strict=True) for c in found]
    if not every:
        return [0] * len(costs)
    limit = max(every) - threshold * (max(every) - min(every))
    return [sum(c / n <= limit for c in found) for found, n in zip(costs, frames, strict=True)]


def quotas(costs: Sequence[Sequence[float]], top_k: int, *, rule: Rule = "even") -> list[int]:
    """Return how many of its cheapest matches each query keeps.

    Args:
        costs: for each query the costs of its matches, ascending.
        top_k: how many matches to keep in total.
        rule: `even` keeps exactly min(top_k, available): the same number for each query, the
            remainder from the queries whose next match is cheapest. `released` does what the
            authors' code does: int(top_k / queries) each but at least one, so usually fewer than
            top_k.

    >>> quotas([[1.0, 4.0, 9.0], [2.0, 3.0, 5.0]], 3)
    [1, 2]
    >>> quotas([[1.0, 4.0, 9.0], [2.0, 3.0, 5.0]], 3, rule="released")
    [1, 1]
    """
    if top_k < 1:
        raise StrapError(f"top_k is {top_k}: it must be at least 1")
    if rule not in get_args(Rule):
        raise unknown("selection rule", rule, get_args(Rule))
    if rule == "released":
        each = max(1, int(top_k / len(costs))) if costs else 0
        return [min(each, len(matches)) for matches in costs]
    return _even(costs, top_k)


def _even(costs: Sequence[Sequence[float]], top_k: int) -> list[int]:
    taken = [0] * len(costs)
    remaining = min(top_k, sum(map(len, costs)))
    while remaining:
        # A query that runs out of matches leaves its share to the others, round by round.
        open_queries = [q for q, matches in enumerate(costs) if taken[q] < len(matches)]
        each = remaining // len(open_queries)
        if each == 0:
            open_queries.sort(key=lambda q: (costs[q][taken[q]], q))
            open_queries, each = open_queries[:remaining], 1
        for q in open_queries:
            count = min(each, len(costs[q]) - taken[q])
            taken[q] += count
            remaining -= count
    return taken
