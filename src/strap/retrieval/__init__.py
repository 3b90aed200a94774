"""Retrieval: the prior segments that are most similar to the target, by one of several methods."""

from __future__ import annotations

from collections.abc import Sequence

from strap.errors import StrapError
from strap.progress import Progress, silent
from strap.retrieval.catalogue import (
    Catalogue,
    Problem,
    Retrieved,
    Trajectories,
    as_catalogue,
    list_catalogues,
)
from strap.retrieval.methods import METHODS, Features, MethodTraits, resolve_defaults
from strap.retrieval.options import MatchOptions, Method, Rule, Shared, TopK
from strap.search import Engine, Execution, StoreSearcher
from strap.store import EmbeddingStore
from strap.types import Matches, Segment

__all__ = [
    "METHODS",
    "Catalogue",
    "Features",
    "MatchOptions",
    "Method",
    "MethodTraits",
    "Retrieved",
    "Rule",
    "Shared",
    "TopK",
    "list_catalogues",
    "retrieve",
    "retrieve_matches",
]


def retrieve(
    queries: Sequence[Segment],
    target_store: EmbeddingStore,
    prior_store: EmbeddingStore | Sequence[EmbeddingStore],
    *,
    method: Method = "strap",
    top_k: TopK | None = 100,
    steps: str | None = None,
    metric: str | None = None,
    backend: str = "auto",
    rule: Rule = "even",
    shared: Shared = "self",
    matches_per_trajectory: int = 1,
    length_ratio: tuple[float, float] | None = None,
    fraction: float | None = None,
    threshold: float | None = None,
    max_cost: float | None = None,
    progress: Progress = silent,
    engine: Engine = "local",
    workers: int = 2,
    address: str | None = None,
) -> Matches:
    """Retrieve the segments of the prior that are most similar to the queries.

    Args:
        queries: target segments.
        target_store: embeddings of the target dataset.
        prior_store: embeddings of the prior dataset, or of several.
        method: `strap` (segments, by dynamic time warping), `d-t` (whole trajectories, also by
            dynamic time warping), `d-s` (single states), `random` or `language`; `br` and `fr`
            (single states) need stores of features that `strap retrieve` learned. The queries of
            `strap` and `random` are any segments, those of the others whole demonstrations:
            `strap.segment(dataset, method="full")`.
        top_k: how many matches to keep in total. `auto` keeps the matches that cost no more than
            the query's matches in the other demonstrations of its task. None if `fraction` or
            `threshold` is given.
        steps: `strap`, `fmp` or `classic`: the moves that a warping path may make. None: the
            method's default (`strap`; for `d-t` `classic`).
        metric: `l2` or `cosine`. None: the method's default (`l2`; for `d-s`, `br` and `fr`
            `cosine`).
        backend: `auto`, `gpu`, `cpu` or `reference`.
        rule: `even` keeps exactly min(top_k, available); `released` is the authors' floor.
        shared: what to do with trajectories that are in both target and prior.
        matches_per_trajectory: maximum number of matches of one query in one prior trajectory.
        length_ratio: the minimum and maximum length of a match, as multiples of its query's length.
        fraction: keep this share of all candidates, the cheapest first.
        threshold: keep matches that are at least this similar: 1 is the cheapest candidate, 0 the
            most expensive.
        max_cost: keep only matches whose cost per query frame is at most this.
        progress: called with (what, done, total).
        engine: where to search: `local`, or `ray` for a cluster.
        workers: number of parallel tasks on a Ray cluster that is started here.
        address: address of a running Ray cluster; None starts one here.
    """
    steps, metric = resolve_defaults(method, steps, metric)
    options = MatchOptions(
        method=method,
        top_k=top_k,
        steps=steps,
        metric=metric,
        backend=backend,
        rule=rule,
        shared=shared,
        matches_per_trajectory=matches_per_trajectory,
        length_ratio=length_ratio,
        fraction=fraction,
        threshold=threshold,
        max_cost=max_cost,
    )
    stores = [prior_store] if isinstance(prior_store, EmbeddingStore) else list(prior_store)
    _require_learned([target_store, *stores], method)
    target = as_catalogue(target_store)
    _require_frames(queries, target)
    _require_whole(queries, target, method)
    execution = Execution(engine, workers, address)
    return retrieve_matches(queries, target, stores, options, execution, progress).matches


def retrieve_matches(
    queries: Sequence[Segment],
    target: Trajectories,
    priors: Sequence[Trajectories],
    options: MatchOptions,
    execution: Execution | None = None,
    progress: Progress = silent,
    searcher: StoreSearcher | None = None,
) -> Retrieved:
    """Retrieve as `retrieve` does, and return the statistics of the search with the matches.

    Args:
        queries: target segments.
        target: the target dataset's trajectories.
        priors: the trajectories of each prior dataset.
        options: the method and how many matches to keep.
        execution: where to search; None: on this machine.
        progress: called with (what, done, total).
        searcher: the function that searches the stores; None: `search_stores`.
    """
    if not queries:
        raise StrapError("there are no queries: segment the target dataset first")
    demonstrations = as_catalogue(target)
    _require_frames(queries, demonstrations)
    catalogues = [as_catalogue(prior) for prior in priors]
    if not any(catalogue.trajectories for catalogue in catalogues):
        raise StrapError("the prior is empty: it holds no trajectory")
    problem = Problem(queries, demonstrations, catalogues, options, execution, progress, searcher)
    retrieved = METHODS[options.method].retrieve(problem)
    if not retrieved.matches:
        raise StrapError(
            "nothing was retrieved: raise --max-cost if you gave one; if --top-k auto finds "
            "nothing as near as the demonstrations are to each other, say how many to keep; if "
            "every prior trajectory is also in the target, give another prior or --shared keep"
        )
    return retrieved


def _require_frames(queries: Sequence[Segment], target: Catalogue) -> None:
    """Raise unless every query lies within a trajectory of the target."""
    for query in queries:
        entry = target.trajectories.get(query.trajectory_id)
        if entry is None:
            raise StrapError(
                f"query {query} is part of trajectory '{query.trajectory_id}', which target "
                f"'{target.dataset}' does not have: segment and embed the same dataset"
            )
        if query.stop > entry.length:
            raise StrapError(
                f"query {query} goes past the {entry.length} frames that target "
                f"'{target.dataset}' has of that trajectory: segment and embed the same dataset"
            )


def _require_learned(stores: Sequence[EmbeddingStore], method: Method) -> None:
    """Raise unless every store holds the features that a method learns, if it learns any."""
    kind = METHODS[method].features
    for store in stores if kind in ("br", "fr") else ():
        if store.config.encoder.get("kind") != kind:
            made_by = store.config.encoder.get("name")
            raise StrapError(
                f"method '{method}' compares features that it learns from the prior, but store "
                f"'{store.path}' has those of encoder '{made_by}': run `strap retrieve --method "
                f"{method}`, which learns them, or give stores of {method.upper()} features; "
                "method 'd-s' compares the states of any store"
            )


def _require_whole(queries: Sequence[Segment], target: Catalogue, method: Method) -> None:
    """Raise unless every query is a whole demonstration, if the method compares these."""
    for query in queries if METHODS[method].has_whole_queries else ():
        length = target.trajectories[query.trajectory_id].length
        if (query.start, query.stop) != (0, length):
            raise StrapError(
                f"query {query} is a part of its demonstration, which has {length} frames, but the "
                f"queries of method '{method}' are whole demonstrations: cut with "
                'strap.segment(dataset, method="full")'
            )
