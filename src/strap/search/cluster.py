"""Searching on a Ray cluster: schedules shards, no maths.

A task searches some shards and returns its k best; the k best of all are among those. A task whose
worker is lost is run again.

The stores' JSON files must lie at the same paths on every machine; the vectors (`shards/*.npy`) may
lie on some of them only, each machine having its own part on its own disk. Every machine is asked
what it has, and a shard goes to one that has it. Where all have everything (one machine, a shared
file system), Ray puts tasks where there is room.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
Shard = tuple[int, str]
"""Number of the store, name of the shard."""
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
        flying = [
            task.options(**near(part.machine)).remote(fixed, part.shards)
            for part in schedule(corpus, machines(ray, corpus))
        ]
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
    only: Sequence[Shard],
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


@dataclass(frozen=True)
class Machine:
    """A machine of the cluster, and the shards whose vectors lie there."""

    id: str
    cpus: int
    has: frozenset[Shard]


@dataclass(frozen=True)
class Part:
    """The shards of one task, and where it should run; None: anywhere."""

    shards: tuple[Shard, ...]
    machine: str | None


def machines(ray: Any, corpus: Corpus) -> list[Machine]:
    """The machines that are up; each is asked what it has."""
    up = {
        node["NodeID"]: int(node["Resources"].get("CPU", 0))
        for node in ray.nodes()
        if node["Alive"]
    }
    up = {name: cpus for name, cpus in up.items() if cpus > 0}
    if not up:
        raise StrapError("the Ray cluster has no processors: add a machine to it")
    if len(up) == 1:
        ((name, cpus),) = up.items()
        return [Machine(name, cpus, frozenset(corpus.shards))]
    ask = ray.remote(num_cpus=0, max_retries=RETRIES)(present)
    files = {
        (index, name): [str(file) for file in corpus.stores[index].files(name)]
        for index, name in corpus.shards
    }
    asked = {name: ask.options(**near(name, soft=False)).remote(files) for name in up}
    found = []
    for name, answer in asked.items():
        with suppress(ray.exceptions.RayError):  # lost since: the others do its part
            found.append(Machine(name, up[name], frozenset(ray.get(answer))))
    if not found:
        raise StrapError("no machine of the Ray cluster answers: look at `ray status`")
    return found


def present(files: Mapping[Shard, Sequence[str]]) -> set[Shard]:
    """The shards all of whose files this machine has."""
    return {shard for shard, own in files.items() if all(Path(file).is_file() for file in own)}


def schedule(corpus: Corpus, nodes: Sequence[Machine]) -> list[Part]:
    """Every shard once, in parts of about equal size, each on a machine that has its vectors."""
    everything = set(corpus.shards)
    if all(node.has >= everything for node in nodes):
        total = sum(node.cpus for node in nodes)
        return [Part(tuple(some), None) for some in _cut(corpus, corpus.shards, TASKS * total)]
    load = {node.id: 0.0 for node in nodes}
    own: dict[str, list[Shard]] = {node.id: [] for node in nodes}
    # Those that few have go first, then the large ones, each to the machine with the least to do.
    holders = {shard: [node for node in nodes if shard in node.has] for shard in corpus.shards}
    for shard in sorted(holders, key=lambda s: (len(holders[s]), -_frames(corpus, s))):
        if not holders[shard]:
            store = corpus.stores[shard[0]].path
            raise StrapError(
                f"shard '{shard[1]}' of '{store}' lies on no machine of the cluster: copy "
                f"'{store}/shards/{shard[1]}.*.npy' to one, or share the folder among all"
            )
        chosen = min(holders[shard], key=lambda node: load[node.id])
        load[chosen.id] += _frames(corpus, shard) / chosen.cpus
        own[chosen.id].append(shard)
    return [
        Part(tuple(some), node.id)
        for node in nodes
        if own[node.id]
        for some in _cut(corpus, own[node.id], TASKS * node.cpus)
    ]


def _frames(corpus: Corpus, shard: Shard) -> int:
    return corpus.stores[shard[0]].shards[shard[1]].frames


def _cut(corpus: Corpus, shards: Sequence[Shard], count: int) -> list[list[Shard]]:
    """Shards in runs of about equal size."""
    sizes = np.cumsum([_frames(corpus, shard) for shard in shards])
    numbers = np.minimum((sizes - 1) * count // sizes[-1], count - 1)
    return [
        [shard for shard, own in zip(shards, numbers, strict=True) if own == number]
        for number in np.unique(numbers)
    ]


def near(machine: str | None, *, soft: bool = True) -> dict[str, Any]:
    """Ray's options for a task that should run on a machine; soft: or elsewhere once it is lost."""
    if machine is None:
        return {}
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(machine, soft=soft)}


def _result(ray: Any, task: object) -> tuple[list[dtw.TopK], dtw.Tally]:
    try:
        found: tuple[list[dtw.TopK], dtw.Tally] = ray.get(task)
    except Exception as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, StrapError):
            raise StrapError(str(cause)) from error
        raise
    return found
