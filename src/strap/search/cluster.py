"""Searching on a Ray cluster: schedules shards, no maths.

A task searches some shards and returns its k best; the k best of all are among those. A task whose
worker is lost is run again. The stores must lie at the same paths on every machine.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from strap import dtw
from strap.artifacts import Progress
from strap.embeddings.cluster import running
from strap.errors import StrapError
from strap.search import SearchOptions, search_corpus
from strap.search.corpus import Corpus
from strap.store import open_store
from strap.types import Array

Excluded = Sequence[Collection[int]] | None
TASKS = 4
"""per worker: small enough to even out, large enough that finding k best again costs little"""
RETRIES = 10


def search_on_ray(
    queries: Sequence[Array],
    corpus: Corpus,
    options: SearchOptions,
    exclude: Sequence[Collection[int]] | None,
    *,
    workers: int,
    address: str | None,
    progress: Progress,
    tally: dtw.Tally | None = None,
) -> list[dtw.TopK]:
    """The k best of all shards, by global numbers; `tally` gets the sum over the tasks."""
    with running(address, workers) as ray:
        task = ray.remote(num_cpus=1, max_retries=RETRIES)(search_some)
        fixed = ray.put((list(queries), _places(corpus), options, exclude))
        cpus = int(ray.cluster_resources().get("CPU", workers))
        flying = [task.remote(fixed, some) for some in _parts(corpus, TASKS * max(cpus, 1))]
        total = len(flying)
        found: list[list[dtw.TopK]] = []
        while flying:
            progress("searching", len(found), total)
            (ready, *_), flying = ray.wait(flying, num_returns=1)
            tops, counted = _result(ray, ready)
            found.append(tops)
            if tally is not None:
                tally.add(counted)
        progress("searching", total, total)
    return [merged([tops[q] for tops in found], options.k) for q in range(len(queries))]


def search_some(
    fixed: tuple[list[Array], list[tuple[str, tuple[str, ...]]], SearchOptions, Excluded],
    only: Sequence[tuple[int, str]],
) -> tuple[list[dtw.TopK], dtw.Tally]:
    """One task: the k best of some shards, and how they were found."""
    queries, places, options, exclude = fixed
    stores = [open_store(path, cameras=cameras) for path, cameras in places]
    tally = dtw.Tally()
    corpus = Corpus(stores, frozenset(only))
    return search_corpus(queries, corpus, options, exclude, tally=tally), tally


def merged(found: Sequence[dtw.TopK], k: int) -> dtw.TopK:
    """The k best of several, in the order of the tie rule."""
    cost, trajectory, stop, start = (
        np.concatenate([getattr(tops, part) for tops in found])
        for part in ("cost", "trajectory", "stop", "start")
    )
    order = np.lexsort((-start, stop, trajectory, cost))[:k]
    return dtw.TopK(trajectory[order], start[order], stop[order], cost[order])


def _places(corpus: Corpus) -> list[tuple[str, tuple[str, ...]]]:
    return [(str(Path(s.path).resolve()), s.cameras) for s in corpus.stores]


def _parts(corpus: Corpus, count: int) -> list[list[tuple[int, str]]]:
    """Shards in runs of about equal size."""
    sizes = np.cumsum([corpus.stores[i].shards[name].frames for i, name in corpus.shards])
    numbers = np.minimum((sizes - 1) * count // sizes[-1], count - 1)
    return [
        [shard for shard, own in zip(corpus.shards, numbers, strict=True) if own == number]
        for number in np.unique(numbers)
    ]


def _result(ray: Any, task: object) -> tuple[list[dtw.TopK], dtw.Tally]:
    try:
        found: tuple[list[dtw.TopK], dtw.Tally] = ray.get(task)
    except Exception as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, StrapError):
            raise StrapError(str(cause)) from error
        raise
    return found
