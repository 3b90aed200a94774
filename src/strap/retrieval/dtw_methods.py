"""Retrieval of segments or whole trajectories by subsequence DTW: STRAP and D-T."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

from strap.dtw import Constraints, SearchOptions
from strap.errors import StrapError
from strap.retrieval.catalogue import Problem, Retrieved
from strap.retrieval.demonstration_costs import demonstration_limits
from strap.retrieval.options import TOP_K, MatchOptions
from strap.retrieval.selection import drop_expensive, select
from strap.search import StoreMatch, StoreSearch, search_stores
from strap.types import Matches, Segment


def retrieve_segments(problem: Problem) -> Retrieved:
    """Retrieve the cheapest segments, spread evenly over the queries.

    Each (query, prior trajectory) has one best match: the segment with the lowest accumulated cost
    under subsequence dynamic time warping. If `matches_per_trajectory` is above 1, each further
    match is the best segment that does not overlap the earlier ones.
    """
    options = problem.options
    target, priors = problem.stores()
    queries = [target[query.trajectory_id][query.start : query.stop] for query in problem.queries]
    ratio = options.length_ratio
    lengths = ratio and [length_limits(len(query), ratio) for query in queries]
    constraints = Constraints(options.matches_per_trajectory, lengths)
    every = sum(map(len, priors)) * options.matches_per_trajectory
    search = SearchOptions(every, options.steps, options.metric, options.backend, constraints)
    excluded, searcher = problem.excluded(), problem.searcher or search_stores

    def find(k: int) -> StoreSearch:
        return searcher(
            queries,
            priors,
            replace(search, k=k),
            exclude=excluded,
            execution=problem.execution,
            progress=problem.progress,
        )

    reason, frames = None, [len(query) for query in queries]
    if options.top_k == "auto":
        limits = demonstration_limits(problem, queries, search)
        found = _find_below(find, limits, every)
        costs = drop_expensive(_costs(found), frames, options.max_cost)
        pairs = zip(costs, limits, strict=True)
        kept = [sum(cost <= limit for cost in of_query) for of_query, limit in pairs]
        reason = _explain_auto(kept, limits, frames)
    else:
        found = _find_enough(find, options.top_k or every, frames, options)
        costs = _costs(found)
        kept = select(costs, frames, options)
    _report_shortfalls(costs, kept, options)
    numbers = {id(store): number for number, store in enumerate(priors)}
    rows = [
        problem.match(query, numbers[id(match.store)], _segment(match), match.cost, rank)
        for query, matches, count in zip(problem.queries, found.matches, kept, strict=True)
        for rank, match in enumerate(matches[:count], 1)
    ]
    return Retrieved(Matches(tuple(rows)), found.statistics, reason)


def _find_enough(
    find: Callable[[int], StoreSearch], top_k: int, frames: Sequence[int], options: MatchOptions
) -> StoreSearch:
    """Search for enough matches of each query to keep `top_k` in total."""
    if options.top_k is None:
        return find(top_k)
    # Each query's share and one more match are enough, unless some query has fewer than that.
    share = min(top_k // len(frames) + 1, top_k)
    found = find(share)
    cheap = drop_expensive(_costs(found), frames, options.max_cost)
    if share < top_k and any(len(costs) < share for costs in cheap):
        # The second search covers the same pairs, so its statistics replace those of the first.
        return find(top_k)
    return found


def _find_below(
    find: Callable[[int], StoreSearch], limits: Sequence[float], every: int
) -> StoreSearch:
    """Search for more and more matches of each query, until every one below its limit is found.

    Args:
        find: searches for the given number of matches of each query.
        limits: the highest cost that each query's matches may have.
        every: the number of matches that a query can have at most.
    """
    # A further search starts again from all pairs, so the first asks for more than is usually kept.
    k = min(max(4 * TOP_K // len(limits), 1), every)
    while True:
        found = find(k)
        if k == every or not any(
            len(costs) == k and costs[-1] <= limit
            for costs, limit in zip(_costs(found), limits, strict=True)
        ):
            return found
        k = min(2 * k, every)


def _explain_auto(kept: Sequence[int], limits: Sequence[float], frames: Sequence[int]) -> str:
    """Return the message that says how many matches `top_k` auto keeps, and why."""
    per_frame = [limit / count for limit, count in zip(limits, frames, strict=True)]
    return (
        f"K = {sum(kept)}: this many matches cost no more than their query does in the other "
        f"demonstrations of its task ({min(per_frame):.3g} to {max(per_frame):.3g} per frame); "
        f"{kept.count(0)} of {len(kept)} queries have none"
    )


def retrieve_trajectories(problem: Problem) -> Retrieved:
    """Retrieve as `retrieve_segments` does, then extend every match to its whole trajectory."""
    found = retrieve_segments(problem)
    lengths = {
        (prior.dataset, key): entry.length
        for prior in problem.priors
        for key, entry in prior.trajectories.items()
    }
    rows = [
        replace(match, segment=replace(match.segment, start=0, stop=lengths[place]))
        for match in found.matches
        for place in [(match.dataset, match.segment.trajectory_id)]
    ]
    return replace(found, matches=Matches(tuple(rows)))


def length_limits(frames: int, ratio: tuple[float, float]) -> tuple[int, int]:
    """Return the minimum and maximum length of a match for a query of `frames` frames.

    >>> length_limits(10, (0.75, 1.5))
    (8, 15)
    """
    least, most = ratio
    if not 0 < least <= most:
        raise StrapError(
            f"the length ratio is {least} to {most}: both must be above 0, the first no more than "
            "the second (1 1.5: from the query's length to 1.5 times its length)"
        )
    low, high = max(1, math.ceil(least * frames - 1e-9)), math.floor(most * frames + 1e-9)
    if low > high:
        raise StrapError(
            f"{least} to {most} times a query of {frames} frames contains no whole number of "
            "frames: widen the length ratio"
        )
    return low, high


def _costs(found: StoreSearch) -> list[list[float]]:
    return [[match.cost for match in matches] for matches in found.matches]


def _segment(match: StoreMatch) -> Segment:
    return Segment(match.trajectory_id, match.start, match.stop)


def _report_shortfalls(
    costs: Sequence[Sequence[float]], kept: Sequence[int], options: MatchOptions
) -> None:
    """Warn if fewer matches are kept than the user might expect; raise if there is none."""
    available = sum(map(len, costs))
    if not available:
        raise StrapError(
            "no query fits into any prior trajectory: under steps 'strap' a match is at least as "
            "long as its query; cut shorter queries (--segmentation window), use --step-set "
            "classic, or widen --length-ratio if you gave one"
        )
    top_k = options.top_k
    if top_k == "auto":
        return
    if top_k is not None and available < top_k:
        warnings.warn(
            f"top_k is {top_k}, but there are only {available} matches within the limits on their "
            "length and on their number per trajectory: all of them are kept",
            stacklevel=4,
        )
    if top_k is not None and top_k < len(costs):
        empty = "each still gets one" if options.rule == "released" else f"{kept.count(0)} get none"
        warnings.warn(
            f"top_k is {top_k}, smaller than the number of queries ({len(costs)}): {empty}; "
            "raise top_k, or cut fewer queries",
            stacklevel=4,
        )
