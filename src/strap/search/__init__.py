"""Exact top-k search over embedding stores with `strap.dtw`, here or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Protocol, get_args

from strap import dtw
from strap.dtw import SearchOptions, SearchResult, SearchStatistics
from strap.errors import StrapError, unknown
from strap.progress import Progress, silent
from strap.search.cluster import search_on_ray
from strap.search.corpus import Corpus, search_corpus
from strap.store import EmbeddingStore
from strap.types import Array

__all__ = [
    "Engine",
    "Execution",
    "SearchOptions",
    "StoreMatch",
    "StoreSearch",
    "StoreSearcher",
    "search_corpus",
    "search_stores",
]

Engine = Literal["local", "ray"]


@dataclass(frozen=True)
class Execution:
    """The place where a search runs."""

    engine: Engine = "local"
    """in this process, or as tasks on a Ray cluster"""
    workers: int = 2
    """the number of concurrent tasks, if the cluster is started here"""
    address: str | None = None
    """a Ray cluster's address; by default a cluster is started on this machine's loopback"""


@dataclass(frozen=True)
class StoreMatch:
    """One match of a query in a prior trajectory."""

    store: EmbeddingStore
    trajectory_id: str
    start: int
    stop: int
    cost: float


@dataclass(frozen=True)
class StoreSearch:
    """The matches of a search over stores, and how many pairs each stage ruled out."""

    matches: list[list[StoreMatch]]
    """the matches of each query, cheapest first"""
    statistics: SearchStatistics


class StoreSearcher(Protocol):
    """A function with the signature of `search_stores`."""

    def __call__(
        self,
        queries: Sequence[Array],
        stores: Sequence[EmbeddingStore],
        options: SearchOptions,
        *,
        exclude: Sequence[Collection[tuple[int, str]]] | None = None,
        execution: Execution | None = None,
        progress: Progress = silent,
    ) -> StoreSearch:
        """Return for each query its k cheapest matches over all stores, cheapest first."""


def search_stores(
    queries: Sequence[Array],
    stores: Sequence[EmbeddingStore],
    options: SearchOptions,
    *,
    exclude: Sequence[Collection[tuple[int, str]]] | None = None,
    execution: Execution | None = None,
    progress: Progress = silent,
) -> StoreSearch:
    """Return for each query its k cheapest matches over all stores, cheapest first.

    Args:
        queries: arrays [n d].
        stores: the stores to search; ties go to the earlier store, then to the smaller id.
        options: the options of the search.
        exclude: for each query the (store index, trajectory id) pairs that it must not match.
        execution: where to search; by default in this process.
        progress: called with (what, trajectories done, total).
    """
    execution = execution or Execution()
    if execution.engine not in get_args(Engine):
        raise unknown("engine", execution.engine, get_args(Engine))
    corpus = Corpus(stores)
    if not corpus.names:
        raise StrapError("the prior is empty: its stores hold no trajectory")
    hidden: list[set[int]] | None = None
    if exclude is not None:
        hidden = [{corpus.numbers[name] for name in names} for names in exclude]

    def search_plain(query_indices: Sequence[int], k: int) -> SearchResult:
        chosen = [queries[q] for q in query_indices]
        excluded = hidden and [hidden[q] for q in query_indices]
        limited = replace(options, k=min(k, len(corpus.names)), constraints=dtw.Constraints())
        if execution.engine == "ray":
            address, workers = execution.address, execution.workers
            on_cluster = partial(search_on_ray, address=address, workers=workers)
            return on_cluster(chosen, corpus, limited, excluded, progress)
        return search_corpus(chosen, corpus, limited, excluded, progress)

    align = dtw.align_with(options)
    found = dtw.search_constrained(queries, options, search_plain, corpus.fetch, align)
    matches = [[_name(corpus, top, row) for row in range(len(top))] for top in found.tops]
    return StoreSearch(matches, found.total)


def _name(corpus: Corpus, top: dtw.TopK, row: int) -> StoreMatch:
    index, key = corpus.names[int(top.trajectory[row])]
    start, stop, cost = int(top.start[row]), int(top.stop[row]), float(top.cost[row])
    return StoreMatch(corpus.stores[index], key, start, stop, cost)
