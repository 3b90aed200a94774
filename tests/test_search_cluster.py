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

import strap.dtw as dtw
from strap.errors import StrapError
from strap.search import SearchOptions, search_stores
from strap.search.cluster import search_some

OPTIONS = SearchOptions(k=2, steps="strap", metric="l2", backend="cpu")


def workers() -> list[int]:
    """Processes of ours that are searching for Ray right now."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().startswith(b"ray::search_some"):
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
    options = {"k": 6, "backend": "reference", "exclude": exclude}
    killed, done = list[int](), Event()
    killer = Thread(target=kill_one, args=(killed, done))
    killer.start()
    found = search_stores(queries, [store], engine="ray", workers=2, **options)
    done.set()
    killer.join()
    assert killed
    hits = [[(hit.trajectory_id, hit.start, hit.stop, hit.cost) for hit in own] for own in found]
    expected = search_stores(queries, [store], **options)
    assert hits == [
        [(hit.trajectory_id, hit.start, hit.stop, hit.cost) for hit in own] for own in expected
    ]
    assert all(hit[0] != "t7" for hit in hits[0])


def test_tasks_count_their_pairs(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {f"t{i}": rng.standard_normal((12, 4)).astype(np.float32) for i in range(10)}
    store = make_store(tmp_path / "store", arrays, per_shard=5)
    fixed = ([arrays["t1"][:3]], [(str(store.path), store.cameras)], OPTIONS, [{1}])
    total = dtw.Tally()
    for name in store.shards:
        tops, tally = search_some(fixed, [(0, name)])
        assert len(tops[0]) == 2
        assert tally.pairs == tally.by_sketches + tally.by_bounds + tally.evaluated
        total.add(tally)
    assert total.pairs == 9  # one is excluded
    assert total.evaluated >= 4


def test_unknown_engines_are_named(tmp_path):
    store = make_store(tmp_path / "store", {"a": np.zeros((3, 2), np.float32)})
    with pytest.raises(StrapError, match="unknown engine 'spark': Known: local, ray"):
        search_stores([np.zeros((2, 2), np.float32)], [store], k=1, engine="spark")
