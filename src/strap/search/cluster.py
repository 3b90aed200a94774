"""Search on a Ray cluster: each task searches some shards on a machine that has their files.

A task returns the k best of its shards; the k best of all shards are among these. A task whose
worker is lost runs again.

The stores' JSON files must be at the same paths on every machine, with the same contents, which
each task checks. The vectors (`shards/*.npy`) can be distributed: each machine reports the shards
on its disk, and a shard is searched on a machine that has it. If all machines have all shards (a
single machine, a shared file system), Ray schedules the tasks freely.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from strap.dtw import SearchOptions, SearchResult, SearchStatistics, TopK
from strap.dtw.types import Excluded
from strap.errors import StrapError
from strap.progress import Progress
from strap.provenance import fingerprint_json
from strap.ray import RETRIES, connect, get_result, place_near
from strap.search.corpus import Corpus, search_corpus
from strap.store import EmbeddingStore, open_store
from strap.types import Array

Shard = tuple[int, str]
"""(index of the store, name of the shard)"""
TASKS_PER_WORKER = 4
"""more tasks balance the load better; fewer tasks repeat less of the search for k best matches"""


@dataclass(frozen=True)
class StoreLocation:
    """The path of a store on every machine, and a hash of its contents."""

    path: str
    cameras: tuple[str, ...]
    contents: str
    """a hash of the shards and of the ids, whose order numbers the trajectories"""

    @classmethod
    def of(cls, store: EmbeddingStore) -> StoreLocation:
        """Return the location and contents of an open store."""
        return cls(str(Path(store.path).resolve()), store.cameras, _hash_contents(store))

    def open(self) -> EmbeddingStore:
        """Open the store on this machine; raise if its contents differ from the driver's."""
        store = open_store(self.path, cameras=self.cameras)
        if _hash_contents(store) != self.contents:
            raise StrapError(
                f"store '{self.path}' on machine '{platform.node()}' has other trajectories or "
                f"shards ({len(store)} and {len(store.shards)}) than where the search was started: "
                "copy its .json files again (store.json, manifest.json, shards/*.json)"
            )
        return store


def _hash_contents(store: EmbeddingStore) -> str:
    shards = [
        [name, shard.frames, [[e.id, e.offset, e.length, *e.checksums] for e in shard.entries]]
        for name, shard in sorted(store.shards.items())
    ]
    return fingerprint_json([list(store.ids), shards])


def search_on_ray(
    queries: Sequence[Array],
    corpus: Corpus,
    options: SearchOptions,
    exclude: Excluded,
    progress: Progress,
    *,
    address: str | None,
    workers: int,
) -> SearchResult:
    """Search all shards in tasks on a cluster; return the k best matches and total statistics."""
    with connect(address, workers) as ray:
        task = ray.remote(num_cpus=1, max_retries=RETRIES)(search_shards)
        locations = [StoreLocation.of(store) for store in corpus.stores]
        shared = ray.put((list(queries), locations, options, exclude))
        pending = [
            task.options(**place_near(part.machine)).remote(shared, part.shards)
            for part in schedule(corpus, find_machines(ray, corpus))
        ]
        total = len(pending)
        found: list[SearchResult] = []
        while pending:
            progress("searching", len(found), total)
            (ready, *_), pending = ray.wait(pending, num_returns=1)
            found.append(get_result(ray, ready))
        progress("searching", total, total)
    return merge_results(found, options.k)


def search_shards(
    shared: tuple[list[Array], list[StoreLocation], SearchOptions, Excluded],
    shards: Sequence[Shard],
) -> SearchResult:
    """Search some shards: the function of one task. `shared` is the same for all tasks."""
    queries, locations, options, exclude = shared
    stores = [location.open() for location in locations]
    return search_corpus(queries, Corpus(stores, frozenset(shards)), options, exclude)


def merge_results(results: Sequence[SearchResult], k: int) -> SearchResult:
    """Return the k best matches of several results, and their total statistics."""
    tops = zip(*(result.tops for result in results), strict=True)
    statistics = zip(*(result.statistics for result in results), strict=True)
    return SearchResult(
        [TopK.best_of(each, k) for each in tops],
        [sum(counts, SearchStatistics()) for counts in statistics],
    )


@dataclass(frozen=True)
class Machine:
    """A machine of the cluster, and the shards whose vectors it has."""

    id: str
    cpus: int
    shards: frozenset[Shard]


@dataclass(frozen=True)
class SearchTask:
    """The shards of one task, and the machine on which to search them."""

    shards: tuple[Shard, ...]
    machine: str | None
    """None: any"""


def find_machines(ray: Any, corpus: Corpus) -> list[Machine]:
    """Return the machines that are alive, with the shards that each one has."""
    up = {
        node["NodeID"]: int(node["Resources"].get("CPU", 0))
        for node in ray.nodes()
        if node["Alive"]
    }
    up = {name: cpus for name, cpus in up.items() if cpus > 0}
    if not up:
        raise StrapError("the Ray cluster has no CPUs: add a machine to it")
    if len(up) == 1:
        ((name, cpus),) = up.items()
        return [Machine(name, cpus, frozenset(corpus.shards))]
    ask = ray.remote(num_cpus=0, max_retries=RETRIES)(find_present)
    files = {
        (index, name): [str(file) for file in corpus.stores[index].files(name)]
        for index, name in corpus.shards
    }
    answers = {name: ask.options(**place_near(name, soft=False)).remote(files) for name in up}
    found = []
    for name, answer in answers.items():
        with suppress(ray.exceptions.RayError):  # lost in the meantime: the others do its part
            found.append(Machine(name, up[name], frozenset(ray.get(answer))))
    if not found:
        raise StrapError("no machine of the Ray cluster answers: look at `ray status`")
    return found


def find_present(files: Mapping[Shard, Sequence[str]]) -> set[Shard]:
    """Return the shards of which this machine has all files."""
    return {shard for shard, paths in files.items() if all(Path(p).is_file() for p in paths)}


def schedule(corpus: Corpus, machines: Sequence[Machine]) -> list[SearchTask]:
    """Assign every shard to one task, on a machine that has it; tasks have about equal sizes."""
    everything = set(corpus.shards)
    if all(machine.shards >= everything for machine in machines):
        count = TASKS_PER_WORKER * sum(machine.cpus for machine in machines)
        return [SearchTask(tuple(span), None) for span in _split(corpus, corpus.shards, count)]
    load = {machine.id: 0.0 for machine in machines}
    assigned: dict[str, list[Shard]] = {machine.id: [] for machine in machines}
    # Shards that few machines have come first, then large ones; each goes to the machine with the
    # lowest load among those that have it.
    holders = {shard: [m for m in machines if shard in m.shards] for shard in corpus.shards}
    for shard in sorted(holders, key=lambda s: (len(holders[s]), -_count_frames(corpus, s))):
        if not holders[shard]:
            store = corpus.stores[shard[0]].path
            raise StrapError(
                f"shard '{shard[1]}' of '{store}' is on no machine of the cluster: copy "
                f"'{store}/shards/{shard[1]}.*.npy' to one, or share the folder among all"
            )
        chosen = min(holders[shard], key=lambda machine: load[machine.id])
        load[chosen.id] += _count_frames(corpus, shard) / chosen.cpus
        assigned[chosen.id].append(shard)
    return [
        SearchTask(tuple(span), machine.id)
        for machine in machines
        if assigned[machine.id]
        for span in _split(corpus, assigned[machine.id], TASKS_PER_WORKER * machine.cpus)
    ]


def _count_frames(corpus: Corpus, shard: Shard) -> int:
    return corpus.stores[shard[0]].shards[shard[1]].frames


def _split(corpus: Corpus, shards: Sequence[Shard], count: int) -> list[list[Shard]]:
    """Return the shards in `count` consecutive spans of about equal size, or fewer."""
    sizes = np.cumsum([_count_frames(corpus, shard) for shard in shards])
    numbers = np.minimum((sizes - 1) * count // sizes[-1], count - 1)
    return [
        [shard for shard, place in zip(shards, numbers, strict=True) if place == number]
        for number in np.unique(numbers)
    ]
