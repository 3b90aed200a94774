"""What to retrieve: the cheapest prior segments for every target query."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Literal, get_args

from strap.artifacts import Progress, silent
from strap.dtw import Tally
from strap.errors import StrapError, unknown
from strap.retrieval.selection import Rule, quotas
from strap.search import Engine, Found, search_stores
from strap.store import EmbeddingStore
from strap.types import Array, Match, Matches, Segment

__all__ = ["Rule", "Shared", "retrieve"]

Shared = Literal["self", "all", "keep"]
"""What to do with trajectories that are both in target and prior, known by their content:
`self` hides a query's own trajectory from it, `all` hides them from every query, `keep` hides
none."""


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
    tally: Tally | None = None,
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
        tally: filled with how many (query, trajectory) pairs each bound removed.
        engine, workers, address: where to search; as in `strap.search.search_stores`.
    """
    stores = [prior_store] if isinstance(prior_store, EmbeddingStore) else list(prior_store)
    if not queries:
        raise StrapError("there is no query: segment the target dataset first")
    if top_k < 1:
        raise StrapError(f"top_k is {top_k}: it must be at least 1")
    for store in stores:
        _check_same_encoder(target_store, store)
    arrays = [_query_array(target_store, query) for query in queries]
    search = partial(
        search_stores,
        arrays,
        stores,
        steps=steps,
        metric=metric,
        backend=backend,
        exclude=_hidden(queries, target_store, stores, shared),
        per_trajectory=matches_per_trajectory,
        lengths=length_ratio and [limits(len(array), length_ratio) for array in arrays],
        progress=progress,
        tally=tally,
        engine=engine,
        workers=workers,
        address=address,
    )
    # A query's share and one more decide everything, unless some query has fewer than that.
    share = min(top_k // len(queries) + 1, top_k)
    found = search(k=share)
    if share < top_k and any(len(own) < share for own in found):
        found = search(k=top_k)
    kept = quotas([[hit.cost for hit in own] for own in found], top_k, rule=rule)
    _say_shortfalls(found, kept, top_k, rule)
    rows = [
        _match(query, hit, rank)
        for query, own, count in zip(queries, found, kept, strict=True)
        for rank, hit in enumerate(own[:count], 1)
    ]
    return Matches(tuple(rows))


def limits(frames: int, ratio: tuple[float, float]) -> tuple[int, int]:
    """The least and the greatest length of a match for a query of so many frames.

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


def _say_shortfalls(
    found: Sequence[Sequence[Found]], kept: Sequence[int], top_k: int, rule: Rule
) -> None:
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
        empty = "each still gets one" if rule == "released" else f"{kept.count(0)} get none"
        warnings.warn(
            f"top_k is {top_k}, smaller than the number of queries ({len(found)}): {empty}; "
            "raise top_k, or cut fewer queries",
            stacklevel=3,
        )


def _match(query: Segment, hit: Found, rank: int) -> Match:
    entry = hit.store.entry(hit.trajectory_id)
    segment = Segment(hit.trajectory_id, hit.start, hit.stop)
    return Match(query, segment, hit.cost, rank, entry.instruction, hit.store.dataset)


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


def _hidden(
    queries: Sequence[Segment],
    target: EmbeddingStore,
    priors: Sequence[EmbeddingStore],
    shared: Shared,
) -> list[set[tuple[int, str]]]:
    """For each query the (store, trajectory) pairs it must not match."""
    if shared not in get_args(Shared):
        raise unknown("treatment of shared trajectories", shared, get_args(Shared))
    if shared == "keep":
        return [set() for _ in queries]
    homes: dict[str, set[tuple[int, str]]] = {}
    for index, store in enumerate(priors):
        for key in store.ids:
            homes.setdefault(store.entry(key).fingerprint, set()).add((index, key))
    own = [homes.get(target.entry(q.trajectory_id).fingerprint, set()) for q in queries]
    if shared == "self":
        return own
    return [
        set().union(*(homes.get(target.entry(key).fingerprint, set()) for key in target.ids))
        for _ in queries
    ]
