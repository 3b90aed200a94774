"""The paper's benchmark from disk: a store larger than memory, built and searched cold.

    PYTHONPATH=src python benchmarks/search/disk.py build STORE [--trajectories 76000]
    PYTHONPATH=src python benchmarks/search/disk.py search STORE [--trajectories N …]

`build` writes random float16 frames [250 768] a trajectory (76,000 are 29 GB) and goes on where it
was stopped. `search` looks for 5 queries of 50 frames, exactly, k = 100, each time in a process of
its own: time, largest resident memory, and beside it the time that reading the same files takes
alone. Before each, the files are put out of the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from strap.atomic import write_json
from strap.search import SearchOptions, search_corpus
from strap.search.corpus import Corpus
from strap.store import (
    PendingTrajectory,
    Session,
    StoreConfig,
    StoreSource,
    create_store,
    open_store,
)

DIM, QUERY, LENGTH, QUERIES, K = 768, 50, 250, 5, 100
PER_SHARD = 700  # trajectories: 268 MB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", choices=("build", "search", "one", "read"))
    parser.add_argument("store", type=Path)
    parser.add_argument("--trajectories", type=int, nargs="+", default=[76_000])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.job == "build":
        build(options.store, options.trajectories[0])
    elif options.job == "one":
        print(json.dumps(search(options.store, options.trajectories[0])))
    elif options.job == "read":
        print(json.dumps(read(options.store, options.trajectories[0])))
    else:
        rows = [measure(options.store, count) for count in options.trajectories]
        if options.out:
            options.out.write_text(json.dumps(rows, indent=1) + "\n")


def build(path: Path, count: int) -> None:
    config = StoreConfig({"name": "random"}, "float16", DIM, ("camera",))
    if not path.exists():
        create_store(path, config, StoreSource("random"))
        write_json(path / "manifest.json", {"dataset": "random"})
    done = len(open_store(path))
    for first in range(done, count, PER_SHARD):
        session = Session(path, config)
        random = np.random.default_rng(first)
        for number in range(first, min(first + PER_SHARD, count)):
            frames = random.standard_normal((LENGTH, DIM), np.float32).astype(np.float16)
            name = f"t{number:06}"
            session.add(PendingTrajectory(name, LENGTH, "", ""), [frames], name)
        session.flush()
        print(f"\r{min(first + PER_SHARD, count)} of {count}", end="", flush=True)
    print()


def shards(corpus: Corpus, count: int) -> list[tuple[int, str]]:
    """The first shards, to at least so many trajectories."""
    chosen, held = [], 0
    store = corpus.stores[0]
    for shard in sorted(
        corpus.shards, key=lambda one: store.current_entries(store.shards[one[1]])[0].id
    ):
        if held >= count:
            break
        chosen.append(shard)
        held += len(store.current_entries(store.shards[shard[1]]))
    return chosen


def files(path: Path, count: int) -> list[Path]:
    corpus = Corpus([open_store(path)])
    wanted = {name for _, name in shards(corpus, count)}
    return [file for file in sorted(path.rglob("*.npy")) if any(w in str(file) for w in wanted)]


def put_out(path: Path, count: int) -> None:
    """Out of the page cache."""
    for file in files(path, count):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(path: Path, count: int) -> dict[str, float]:
    """The bare reading of the same bytes."""
    buffer = bytearray(8 << 20)
    began, total = time.perf_counter(), 0
    for file in files(path, count):
        with file.open("rb", buffering=0) as opened:
            while got := opened.readinto(buffer):
                total += got
    return {"seconds": time.perf_counter() - began, "bytes": total}


def search(path: Path, count: int) -> dict[str, float]:
    random = np.random.default_rng(7)
    queries = [random.standard_normal((QUERY, DIM), np.float32) for _ in range(QUERIES)]
    corpus = Corpus([open_store(path)])
    corpus = Corpus(corpus.stores, frozenset(shards(corpus, count)))
    options = SearchOptions(K, backend="cpu")
    warm = [random.standard_normal((QUERY * 2, DIM)).astype(np.float16) for _ in range(4)]
    compile_by(queries, warm)
    began, used = time.perf_counter(), time.process_time()
    found = search_corpus(queries, corpus, options, None).tops
    return {
        "seconds": time.perf_counter() - began,
        "processor": time.process_time() - used,
        "resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "best": float(found[0].cost[0]),
    }


def compile_by(queries: list[np.ndarray], warm: list[np.ndarray]) -> None:
    import strap.dtw as dtw

    dtw.search(queries, warm, k=2, backend="cpu")


def measure(path: Path, count: int) -> dict[str, float]:
    row: dict[str, float] = {"trajectories": count}
    for job in ("read", "one"):
        put_out(path, count)
        call = [sys.executable, __file__, job, str(path), "--trajectories", str(count)]
        done = subprocess.run(call, capture_output=True, text=True, check=True)
        row |= {f"{job}_{key}": value for key, value in json.loads(done.stdout).items()}
    print(
        f"{count} trajectories, {row['read_bytes'] / 1e9:.1f} GB: {row['one_seconds']:.1f} s "
        f"({row['one_processor']:.1f} s of processor time, {os.cpu_count()} cores), resident "
        f"{row['one_resident'] / 2**30:.2f} GiB; reading alone {row['read_seconds']:.1f} s "
        f"({row['read_bytes'] / row['read_seconds'] / 1e9:.2f} GB/s)",
        flush=True,
    )
    return row


if __name__ == "__main__":
    main()
