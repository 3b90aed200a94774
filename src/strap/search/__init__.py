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
    """One query's best match in one prior trajectory."""

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
    progress: Progress = silent,
    tally: dtw.Tally | None = None,
    engine: Engine = "local",
    workers: int = 2,
    address: str | None = None,
) -> list[list[Found]]:
    """For each query its k cheapest matches over all stores, cheapest first, one a trajectory.

    Args:
        queries: arrays [n d].
        stores: what to search; ties go to the earlier store, then to the smaller id.
        k: how many matches per query.
        steps: `strap`, `fmp` or `classic`.
        metric: `l2` or `cosine`.
        backend: `auto`, `gpu`, `cpu` or `reference`.
        exclude: for each query the (store index, trajectory id) pairs it must not match.
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
    options = SearchOptions(min(k, len(corpus.names)), steps, metric, backend)
    if engine == "ray":
        from strap.search.cluster import search_on_ray

        tops = search_on_ray(
            queries,
            corpus,
            options,
            hidden,
            workers=workers,
            address=address,
            progress=progress,
            tally=tally,
        )
    elif engine == "local":
        tops = search_corpus(queries, corpus, options, hidden, progress=progress, tally=tally)
    else:
        raise unknown("engine", engine, get_args(Engine))
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
        sketched=corpus.sketched(progress) if short else (),
        tally=tally,
    )
