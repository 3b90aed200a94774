"""The same matches from a Ray cluster, whatever happens to its workers."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest
from tests.stores import make_store

from strap.dtw import SearchStatistics
from strap.embeddings.cluster import start_embedders
from strap.embeddings.settings import EmbeddingSettings
from strap.errors import StrapError
from strap.ray import connect, place_near
from strap.search import Execution, SearchOptions, search_stores
from strap.search.cluster import (
    Machine,
    StoreLocation,
    find_machines,
    find_present,
    merge_results,
    schedule,
    search_shards,
)
from strap.search.corpus import Corpus

OPTIONS = SearchOptions(k=2, backend="cpu")


def workers() -> list[int]:
    """Processes of ours that are searching for Ray right now."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().startswith(b"ray::search_shards"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def kill_one(killed: list[int], done: Event) -> None:
    while not killed and not done.is_set():
        for process in workers()[:1]:
            os.kill(process, signal.SIGKILL)
            killed.append(process)
        time.sleep(0.01)


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
def test_a_worker_killed_in_the_middle_changes_nothing(tmp_path):
    pytest.importorskip("ray")
    rng = np.random.default_rng(0)
    arrays = {f"t{i}": rng.standard_normal((40, 24)).astype(np.float32) for i in range(60)}
    store = make_store(tmp_path / "store", arrays, per_shard=5)
    queries = [arrays["t7"][3:15], rng.standard_normal((9, 24)).astype(np.float32)]
    exclude = [{(0, "t7")}, set()]
    # The plain definition is slow enough to be caught at work.
    options = SearchOptions(6, backend="reference")
    killed, done = list[int](), Event()
    killer = Thread(target=kill_one, args=(killed, done))
    killer.start()
    found = search_stores(
        queries, [store], options, exclude=exclude, execution=Execution("ray", workers=2)
    )
    done.set()
    killer.join()
    assert killed
    here = search_stores(queries, [store], options, exclude=exclude)
    assert found.matches == here.matches
    assert all(match.trajectory_id != "t7" for match in found.matches[0])


def test_tasks_count_their_pairs(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {f"t{i}": rng.standard_normal((12, 4)).astype(np.float32) for i in range(10)}
    store = make_store(tmp_path / "store", arrays, per_shard=5)
    fixed = ([arrays["t1"][:3]], [StoreLocation.of(store)], OPTIONS, [{1}])
    results = [search_shards(fixed, [(0, name)]) for name in store.shards]
    assert [len(result.tops[0]) for result in results] == [2, 2]
    merged = merge_results(results, 3)
    assert len(merged.tops[0]) == 3
    total = merged.total
    assert total.pairs == 9  # one is excluded
    assert total.pairs == total.by_sketches + total.by_bounds + total.evaluated
    assert total.evaluated >= 4
    assert sum((result.total for result in results), SearchStatistics()) == total


def test_a_machine_with_another_store_is_named(tmp_path):
    """Trajectories are numbered by their ids, which must be the same everywhere."""
    store = spread(tmp_path).stores[0]
    here = StoreLocation.of(store)
    assert here.open().ids == store.ids
    (store.path / "shards/000000.json").unlink()
    with pytest.raises(StrapError, match=r"store '.*store' on machine .* \(22 and 11\).* copy its"):
        search_shards(([np.zeros((2, 3), np.float32)], [here], OPTIONS, None), [(0, "000001")])


def test_unknown_engines_are_named(tmp_path):
    store = make_store(tmp_path / "store", {"a": np.zeros((3, 2), np.float32)})
    with pytest.raises(StrapError, match="unknown engine 'spark': Known: local, ray"):
        search_stores(
            [np.zeros((2, 2), np.float32)], [store], OPTIONS, execution=Execution("spark")
        )


def spread(tmp_path, shards: int = 12):
    """A corpus of one store with many shards."""
    rng = np.random.default_rng(0)
    arrays = {f"t{i}": rng.standard_normal((10, 3)).astype(np.float32) for i in range(2 * shards)}
    return Corpus([make_store(tmp_path / "store", arrays, per_shard=2)])


def test_shards_go_to_machines_that_have_them(tmp_path):
    corpus = spread(tmp_path)
    first, second = corpus.shards[:8], corpus.shards[6:]
    parts = schedule(
        corpus, [Machine("a", 2, frozenset(first)), Machine("b", 2, frozenset(second))]
    )
    assert sorted(shard for part in parts for shard in part.shards) == sorted(corpus.shards)
    given = {name: [s for p in parts if p.machine == name for s in p.shards] for name in "ab"}
    assert set(given["a"]) <= set(first)
    assert set(given["b"]) <= set(second)
    assert len(given["a"]) == len(given["b"])  # what both have evens them out


def test_where_all_have_everything_ray_may_choose(tmp_path):
    corpus = spread(tmp_path)
    every = frozenset(corpus.shards)
    parts = schedule(corpus, [Machine("a", 1, every), Machine("b", 1, every)])
    assert {part.machine for part in parts} == {None}
    assert len(parts) == 8  # four for each processor
    assert [shard for part in parts for shard in part.shards] == corpus.shards


def test_a_shard_that_nobody_has_is_named(tmp_path):
    corpus = spread(tmp_path)
    some = frozenset(corpus.shards[1:])
    with pytest.raises(StrapError, match=r"shard '000000' of .* is on no machine"):
        schedule(corpus, [Machine("a", 1, some), Machine("b", 1, some)])


def test_a_machine_has_the_shards_whose_files_are_all_there(tmp_path):
    (tmp_path / "one.npy").touch()
    files = {
        (0, "x"): [str(tmp_path / "one.npy")],
        (0, "y"): [str(tmp_path / "one.npy"), str(tmp_path / "two.npy")],
    }
    assert find_present(files) == {(0, "x")}


def test_two_machines_share_a_search(tmp_path):
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    corpus = spread(tmp_path)
    queries = [np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)]
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1)
        execution = Execution("ray", address=cluster.address)
        found = search_stores(queries, corpus.stores, SearchOptions(5), execution=execution)
        with connect(cluster.address, 1) as ray:
            nodes = find_machines(ray, corpus)
            assert [node.shards for node in nodes] == [frozenset(corpus.shards)] * 2
            settings = EmbeddingSettings(engine="ray", address=cluster.address)
            embedders = start_embedders(ray, settings, [None] * 5)
            assert len(embedders) == 2  # one for each processor of the cluster
            # A task asked for on a machine runs there.
            where = ray.remote(num_cpus=0)(lambda: ray.get_runtime_context().get_node_id())
            assert [ray.get(where.options(**place_near(node.id)).remote()) for node in nodes] == [
                node.id for node in nodes
            ]
    finally:
        cluster.shutdown()
    assert found.matches == search_stores(queries, corpus.stores, SearchOptions(5)).matches
