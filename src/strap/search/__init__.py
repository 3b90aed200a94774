"""Exact top-k over embedding stores: feeds their shards to the matcher and names what it finds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from strap import dtw
from strap.artifacts import Progress, silent
from strap.errors import StrapError, unknown
from strap.search.corpus import Corpus
from strap.store import EmbeddingStore
from strap.types import Array

Engine = Literal["local", "ray"]


@dataclass(frozen=True)
class Found:
    """One match of a query in a prior trajectory."""

    store: EmbeddingStore
    trajectory_id: str
    start: int
    stop: int
    cost: float


@dataclass(frozen=True)
class SearchOptions:
    """What every part of a search is told."""

    k: int
    steps: str
    metric: str
    backend: str


def search_stores(
    queries: Sequence[Array],
    stores: Sequence[EmbeddingStore],
    *,
    k: int,
    steps: str = "strap",
    metric: str = "l2",
    backend: str = "auto",
    exclude: Sequence[Collection[tuple[int, str]]] | None = None,
    per_trajectory: int = 1,
    lengths: Sequence[tuple[int, int]] | None = None,
    progress: Progress = silent,
    tally: dtw.Tally | None = None,
    engine: Engine = "local",
    workers: int = 2,
    address: str | None = None,
) -> list[list[Found]]:
    """For each query its k cheapest matches over all stores, cheapest first.

    Args:
        queries: arrays [n d].
        stores: what to search; ties go to the earlier store, then to the smaller id.
        k: how many matches per query.
        steps: `strap`, `fmp` or `classic`.
        metric: `l2` or `cosine`.
        backend: `auto`, `gpu`, `cpu` or `reference`.
        exclude: for each query the (store index, trajectory id) pairs it must not match.
        per_trajectory: how many matches of a query one trajectory may give; they don't overlap.
        lengths: for each query the least and the greatest number of frames of a match.
        progress: called with (what, trajectories done, of how many).
        tally: filled with how many pairs each bound removed.
        engine: `local`, or `ray`: shards are searched by tasks on a cluster.
        workers: how many tasks at a time on a cluster of this machine's own.
        address: a Ray cluster's address; by default one is started on this machine's loopback.
    """
    corpus = Corpus(stores)
    if not corpus.names:
        raise StrapError("the prior is empty: its stores hold no trajectory")
    hidden = None
    if exclude is not None:
        hidden = [{corpus.numbers[name] for name in own} for own in exclude]
    if engine not in get_args(Engine):
        raise unknown("engine", engine, get_args(Engine))

    def plain(some: Sequence[int], count: int) -> list[dtw.TopK]:
        options = SearchOptions(min(count, len(corpus.names)), steps, metric, backend)
        chosen = [queries[q] for q in some]
        without = hidden and [hidden[q] for q in some]
        counted = dtw.Tally()
        if engine == "ray":
            from strap.search.cluster import search_on_ray

            found = search_on_ray(
                chosen,
                corpus,
                options,
                without,
                workers=workers,
                address=address,
                progress=progress,
                tally=counted,
            )
        else:
            found = search_corpus(
                chosen, corpus, options, without, progress=progress, tally=counted
            )
        if tally is not None:
            tally.add(counted)
        return found

    wish = dtw.Wish(k, per_trajectory, lengths)
    tops = dtw.search_wish(
        queries, wish, plain, corpus.fetch, backend=backend, steps=steps, metric=metric
    )
    return [[_found(corpus, top, row) for row in range(len(top))] for top in tops]


def _found(corpus: Corpus, top: dtw.TopK, row: int) -> Found:
    index, key = corpus.names[int(top.trajectory[row])]
    return Found(
        corpus.stores[index],
        key,
        int(top.start[row]),
        int(top.stop[row]),
        float(top.cost[row]),
    )


def search_corpus(
    queries: Sequence[Array],
    corpus: Corpus,
    options: SearchOptions,
    exclude: Sequence[Collection[int]] | None,
    *,
    progress: Progress = silent,
    tally: dtw.Tally | None = None,
) -> list[dtw.TopK]:
    """The k best of a corpus's shards, by global numbers, in this process."""
    # Only the CPU backend under l2 looks at sketches: the others need not open them.
    short = options.metric == "l2" and dtw.resolve_backend(options.backend).name == "cpu"
    return dtw.search_blocks(
        queries,
        corpus.blocks(progress),
        fetch=corpus.fetch,
        k=options.k,
        steps=options.steps,
        metric=options.metric,
        backend=options.backend,
        exclude=exclude,
        name=corpus.describe,
        sketched=corpus.sketched(options.k, progress) if short else (),
        tally=tally,
    )
