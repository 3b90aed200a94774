"""Exact search over real embeddings, with and without sketches, against the authors' way.

    strap retrieve --target T --prior P --encoder efficientnet-lite0 --out RUN
    PYTHONPATH=src python benchmarks/search/real.py RUN [--k 20] [--prior STORE …]

The queries and stores of a finished run; `--prior` searches other stores than the run did. Sketches
are made beside the prior's stores where there are none. Rounds are interleaved and medians
compared; everybody's matches are compared before anything is printed. The authors' way runs on
`--pairs` pairs drawn at random and is counted by the pair; frames lie in memory for it, while ours
reads them from the store (in the page cache).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).parent))
import cpu as peers

from strap.search import SearchOptions, search_corpus
from strap.search.corpus import Corpus
from strap.segments import read_segments
from strap.store import open_store
from strap.store.sketches import sketch_store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--k", type=int, nargs="+", default=[1, 20, 100])
    parser.add_argument("--prior", type=Path, nargs="+", default=[])
    parser.add_argument("--queries", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    manifest = json.loads((options.run / "manifest.json").read_text())
    target, *priors = (open_store(path) for path in manifest["stores"].values())
    priors = [open_store(path) for path in options.prior] or priors
    for store in priors:
        sketch_store(store)
    cut = read_segments(options.run / "segments.json")
    chosen = np.random.default_rng(0).permutation(len(cut))[: options.queries]
    queries = [target[s.trajectory_id][s.start : s.stop] for s in (cut[i] for i in sorted(chosen))]
    pairs = len(queries) * sum(len(store) for store in priors)
    frames = sum(store.frames for store in priors)
    hardware = peers.machine()
    print(f"{hardware['cpu']}, {hardware['cores']} cores; {hardware['versions']}")
    print(
        f"{len(queries)} queries of {[len(q) for q in queries]} frames; prior of "
        f"{sum(map(len, priors))} trajectories, {frames} frames of {priors[0].dim} dimensions"
    )
    authors = authors_rate(queries, priors, options.pairs)
    for k in options.k:
        report(queries, priors, k, options.rounds, pairs, authors)


def authors_rate(queries: list, priors: list, count: int) -> Callable[[], float]:
    """Seconds per pair of the authors' way, on pairs drawn once; BLAS as it is faster for them."""
    random = np.random.default_rng(1)
    everything = [(store, key) for store in priors for key in store.ids]
    drawn = [
        (queries[random.integers(len(queries))], everything[random.integers(len(everything))])
        for _ in range(count)
    ]
    loaded = [
        (query.astype(np.float32), np.ascontiguousarray(store[key], np.float32))
        for query, (store, key) in drawn
    ]
    fitting = [(q, t) for q, t in loaded if len(q) <= len(t)]
    peers.authors_way(*fitting[0])

    def seconds(threads: int | None) -> float:
        with threadpool_limits(threads):
            began = time.perf_counter()
            for query, trajectory in fitting:
                peers.authors_way(query, trajectory)
            return (time.perf_counter() - began) / len(fitting)

    return lambda: min(seconds(None), seconds(1))


def report(
    queries: list, priors: list, k: int, rounds: int, pairs: int, authors: Callable[[], float]
) -> None:
    taken: dict[str, list[float]] = {"sketches": [], "no sketches": [], "authors": []}
    corpora = {"sketches": Corpus(priors), "no sketches": Corpus(priors, uses_sketches=False)}
    answer, counts = None, {}
    for _ in range(rounds + 1):
        for name, corpus in corpora.items():
            began = time.perf_counter()
            found = search_corpus(queries, corpus, SearchOptions(k, backend="cpu"), None)
            taken[name].append(time.perf_counter() - began)
            rows = [
                [(*corpus.names[t], *rest) for t, *rest in zip(*columns, strict=True)]
                for columns in (
                    (top.trajectory, top.start, top.stop, top.cost) for top in found.tops
                )
            ]
            assert answer in (None, rows), "sketches changed a result"
            answer, counts[name] = rows, found.total
        taken["authors"].append(authors() * pairs)
    first = [rows[0] for rows in answer or () if rows]
    for query, (index, key, start, stop, cost) in zip(queries, first, strict=True):
        store = priors[index]
        theirs = peers.authors_way(
            query.astype(np.float32), np.ascontiguousarray(store[key], np.float32)
        )
        assert (start, stop) == theirs[1:], "other borders"
        np.testing.assert_allclose(cost, theirs[0], rtol=1e-3)
    base = statistics.median(taken["authors"][1:])
    print(f"k = {k}, median of {rounds}; all {pairs} pairs by the authors' way: {base:.2f} s")
    for name in ("sketches", "no sketches"):
        median, count = statistics.median(taken[name][1:]), counts[name]
        print(
            f"  {name:12} {1e3 * median:8.1f} ms, {base / median:6.1f} × the authors' way; "
            f"removed by sketches {count.by_sketches}, by all dimensions {count.by_bounds}, "
            f"evaluated {count.evaluated}"
        )


if __name__ == "__main__":
    main()
