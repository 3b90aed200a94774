"""What to retrieve: the cheapest prior segments for every target query."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from strap.dtw import Constraints, SearchOptions, SearchStatistics
from strap.errors import StrapError, unknown
from strap.progress import Progress, silent
from strap.retrieval.selection import Rule, quotas
from strap.search import Engine, Execution, StoreMatch, StoreSearch, search_stores
from strap.store import EmbeddingStore
from strap.types import Array, Match, Matches, Segment

__all__ = ["MatchOptions", "Retrieved", "Rule", "Shared", "retrieve", "retrieve_matches"]

Shared = Literal["self", "all", "keep"]
"""What to do with trajectories that are both in target and prior, known by their content:
`self` hides a query's own trajectory from it, `all` hides them from every query, `keep` hides
none."""


@dataclass(frozen=True)
class MatchOptions:
    """Everything that decides which matches are found and kept, besides the data."""

    top_k: int = 100
    """how many matches to keep in all"""
    steps: str = "strap"
    metric: str = "l2"
    backend: str = "auto"
    rule: Rule = "even"
    shared: Shared = "self"
    matches_per_trajectory: int = 1
    length_ratio: tuple[float, float] | None = None
    """the least and the greatest length of a match, as multiples of its query's"""

    @classmethod
    def of(cls, options: Any) -> MatchOptions:
        """Return those of any object that has fields of the same names."""
        return cls(**{field.name: getattr(options, field.name) for field in fields(cls)})


@dataclass(frozen=True)
class Retrieved:
    """The matches that are kept, and how they were found."""

    matches: Matches
    statistics: SearchStatistics


def retrieve(
    queries: Sequence[Segment],
    target_store: EmbeddingStore,
    prior_store: EmbeddingStore | Sequence[EmbeddingStore],
    *,
    top_k: int = 100,
    steps: str = "strap",
    metric: str = "l2",
    backend: str = "auto",
    rule: Rule = "even",
    shared: Shared = "self",
    matches_per_trajectory: int = 1,
    length_ratio: tuple[float, float] | None = None,
    progress: Progress = silent,
    engine: Engine = "local",
    workers: int = 2,
    address: str | None = None,
) -> Matches:
    """Search every prior trajectory for every query and keep the `top_k` cheapest, spread evenly.

    Each (query, prior trajectory) has one best match: the segment with the lowest accumulated cost
    under subsequence dynamic time warping. More of them are the best clear of it, and so on.

    Args:
        queries: target segments.
        target_store: embeddings of the target dataset.
        prior_store: embeddings of the prior dataset, or of several.
        top_k: how many matches to keep in all.
        steps: `strap`, `fmp` or `classic`: the moves a warping path may make.
        metric: `l2` or `cosine`.
        backend: `auto`, `gpu`, `cpu` or `reference`.
        rule: `even` keeps exactly min(top_k, available); `released` is the authors' floor.
        shared: what to do with trajectories that are in both target and prior.
        matches_per_trajectory: how many matches of a query may lie in one prior trajectory.
        length_ratio: the least and the greatest length of a match, as multiples of its query's.
        progress: called with (what, done, total).
        engine, workers, address: where to search; as in `strap.search.Execution`.
    """
    options = MatchOptions(
        top_k, steps, metric, backend, rule, shared, matches_per_trajectory, length_ratio
    )
    stores = [prior_store] if isinstance(prior_store, EmbeddingStore) else list(prior_store)
    execution = Execution(engine, workers, address)
    return retrieve_matches(queries, target_store, stores, options, execution, progress).matches


def retrieve_matches(
    queries: Sequence[Segment],
    target: EmbeddingStore,
    priors: Sequence[EmbeddingStore],
    options: MatchOptions,
    execution: Execution | None = None,
    progress: Progress = silent,
) -> Retrieved:
    """As `retrieve`, with what happened to the pairs of queries and trajectories."""
    if not queries:
        raise StrapError("there is no query: segment the target dataset first")
    if options.top_k < 1:
        raise StrapError(f"top_k is {options.top_k}: it must be at least 1")
    for prior in priors:
        _check_same_encoder(target, prior)
    arrays = [_query_array(target, query) for query in queries]
    ratio = options.length_ratio
    lengths = ratio and [limits(len(array), ratio) for array in arrays]
    constraints = Constraints(options.matches_per_trajectory, lengths)
    # A query's share and one more decide everything, unless some query has fewer than that.
    share = min(options.top_k // len(queries) + 1, options.top_k)
    search = SearchOptions(share, options.steps, options.metric, options.backend, constraints)
    exclude = _find_hidden(queries, target, priors, options.shared)

    def find(search: SearchOptions) -> StoreSearch:
        return search_stores(
            arrays, priors, search, exclude=exclude, execution=execution, progress=progress
        )

    found = find(search)
    if share < options.top_k and any(len(matches) < share for matches in found.matches):
        # It looks at the same pairs again: its statistics take the place of the first search's.
        found = find(replace(search, k=options.top_k))
    costs = [[match.cost for match in matches] for matches in found.matches]
    kept = quotas(costs, options.top_k, rule=options.rule)
    _report_shortfalls(found.matches, kept, options)
    rows = [
        _match(query, match, rank)
        for query, matches, count in zip(queries, found.matches, kept, strict=True)
        for rank, match in enumerate(matches[:count], 1)
    ]
    return Retrieved(Matches(tuple(rows)), found.statistics)


def limits(frames: int, ratio: tuple[float, float]) -> tuple[int, int]:
    """Return the least and the greatest length of a match for a query of so many frames.

    >>> limits(10, (0.75, 1.5))
    (8, 15)
    """
    least, most = ratio
    if not 0 < least <= most:
        raise StrapError(
            f"the length ratio is {least} to {most}: both must be above 0, the first no more than "
            "the second (1 1.5: from the query's own length to half as much again)"
        )
    low, high = max(1, math.ceil(least * frames - 1e-9)), math.floor(most * frames + 1e-9)
    if low > high:
        raise StrapError(
            f"no whole number of frames is {least} to {most} times the {frames} of a query: widen "
            "the length ratio"
        )
    return low, high


def _report_shortfalls(
    found: Sequence[Sequence[StoreMatch]], kept: Sequence[int], options: MatchOptions
) -> None:
    """Warn where fewer matches are kept than one might expect; raise where there is none."""
    top_k = options.top_k
    available = sum(map(len, found))
    if not available:
        raise StrapError(
            "no query fits into any prior trajectory: under steps 'strap' a match is at least as "
            "long as its query; cut shorter queries (--method window), use --steps classic, or "
            "widen --length-ratio where you gave one"
        )
    if available < top_k:
        warnings.warn(
            f"top_k is {top_k}, but there are only {available} matches of an allowed length and "
            "number for each query and prior trajectory: all of them are kept",
            stacklevel=3,
        )
    if top_k < len(found):
        empty = "each still gets one" if options.rule == "released" else f"{kept.count(0)} get none"
        warnings.warn(
            f"top_k is {top_k}, smaller than the number of queries ({len(found)}): {empty}; "
            "raise top_k, or cut fewer queries",
            stacklevel=3,
        )


def _match(query: Segment, found: StoreMatch, rank: int) -> Match:
    entry = found.store.entry(found.trajectory_id)
    segment = Segment(found.trajectory_id, found.start, found.stop)
    return Match(query, segment, found.cost, rank, entry.instruction, found.store.dataset)


def _query_array(store: EmbeddingStore, query: Segment) -> Array:
    vectors = store[query.trajectory_id]
    if query.stop > len(vectors):
        raise StrapError(
            f"query {query} goes past the {len(vectors)} frames that '{store.path}' holds of that "
            "trajectory: segment and embed the same dataset"
        )
    return vectors[query.start : query.stop]


def _check_same_encoder(target: EmbeddingStore, prior: EmbeddingStore) -> None:
    ours, theirs = target.config.encoder, prior.config.encoder
    if ours != theirs or target.dim != prior.dim:
        raise StrapError(
            f"store '{prior.path}' was made with encoder {dict(theirs)}, but the target's store "
            f"'{target.path}' with {dict(ours)}: embed both with the same one"
        )


def _find_hidden(
    queries: Sequence[Segment],
    target: EmbeddingStore,
    priors: Sequence[EmbeddingStore],
    shared: Shared,
) -> list[set[tuple[int, str]]]:
    """Return for each query the (store, trajectory) pairs it must not match."""
    if shared not in get_args(Shared):
        raise unknown("treatment of shared trajectories", shared, get_args(Shared))
    if shared == "keep":
        return [set() for _ in queries]
    homes: dict[str, set[tuple[int, str]]] = {}
    for index, store in enumerate(priors):
        for key in store.ids:
            homes.setdefault(store.entry(key).fingerprint, set()).add((index, key))
    if shared == "self":
        return [homes.get(target.entry(q.trajectory_id).fingerprint, set()) for q in queries]
    return [
        set().union(*(homes.get(target.entry(key).fingerprint, set()) for key in target.ids))
        for _ in queries
    ]
