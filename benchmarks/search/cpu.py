"""Exact top-k subsequence DTW on the CPU against the peers, in one run, with the same answers.

    python benchmarks/search/cpu.py [--trajectories 2000] [--out cpu.json]

Random data, on which nothing can be pruned by looking at frames alone. Rounds are interleaved,
so that other load on the machine hits everyone; medians are compared, the best round and the
processor time stand beside them. Peers that are too slow for all pairs run on some, and their
rate is given. Nothing is read from disk by anybody.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import numba
import numpy as np
from threadpoolctl import threadpool_limits

import strap.dtw as dtw

try:
    import librosa
    from dtaidistance import dtw_ndim
    from tslearn.metrics import dtw_subsequence_path
except ImportError:  # a machine where nothing can be installed: without these peers
    librosa = dtw_ndim = dtw_subsequence_path = None

DIM, QUERY, TRAJECTORY, QUERIES = 768, 50, 250, 5
# How many trajectories for the authors' way, for the slower libraries, and for the bare product.
AUTHORS_COUNT, LIBRARIES_COUNT, PRODUCT_COUNT = 200, 8, 40


# The authors' way, written anew: one pair at a time, everything compiled, a float32 distance
# matrix by the expanded product, the n_pairs accumulated matrix, and the path traced back.


@numba.njit
def distance_matrix(query, trajectory):
    query_squares = np.sum(query**2, axis=1)[:, np.newaxis]
    trajectory_squares = np.sum(trajectory**2, axis=1)[:, np.newaxis]
    products = np.dot(query, trajectory.T)
    return np.sqrt(query_squares - 2 * products + trajectory_squares.T)


@numba.njit
def accumulated(C):
    N, M = C.shape
    D = np.full((N, M + 2), np.inf)  # two columns of ∞ in front
    D[0, 2:] = C[0]
    for n in range(1, N):
        for m in range(M):
            D[n, m + 2] = C[n, m] + min(D[n - 1, m + 1], D[n - 1, m])
    return D[:, 2:]


@numba.njit
def traced_back(D):
    n, m = D.shape[0] - 1, int(np.argmin(D[-1]))
    path = [(n, m)]
    while n > 0:
        n -= 1
        m = m - 2 if m > 1 and D[n, m - 2] < D[n, m - 1] else m - 1
        path.append((n, m))
    return path[::-1]


def authors_way(query, trajectory):
    D = accumulated(distance_matrix(query, trajectory))
    path = traced_back(D)
    return float(D[-1, path[-1][1]]), path[0][1], path[-1][1] + 1


def librosas_way(query, trajectory):
    D, path = librosa.sequence.dtw(
        query.T,
        trajectory.T,
        metric="euclidean",
        subseq=True,
        step_sizes_sigma=np.array([[1, 1], [1, 2]]),
        weights_add=np.zeros(2),
        weights_mul=np.ones(2),
    )
    return float(D[-1].min()), int(path[-1][1]), int(path[0][1]) + 1


def dtaidistances_way(query, trajectory):
    """Its moves are (1, 0), (0, 1), (1, 1): our `classic`. It gives no start without its path."""
    M = len(trajectory)
    _, D = dtw_ndim.warping_paths_fast(
        query, trajectory, psi=[0, 0, M, M], psi_neg=False, inner_dist="euclidean", compact=False
    )
    return float(D[-1, 1:].min()), int(D[-1, 1:].argmin()) + 1


def tslearns_way(query, trajectory):
    """Our `classic` with squared distances: it adds squares and takes the root of the sum."""
    path, cost = dtw_subsequence_path(query, trajectory)
    return float(cost), int(path[0][1]), int(path[-1][1]) + 1


@dataclass
class Entry:
    """One contestant: what it runs, on how many pairs, and how long each round took."""

    name: str
    work: Callable[[], object]
    pairs: int
    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    answer: object = None

    def round(self) -> None:
        began, used = time.perf_counter(), time.process_time()
        self.answer = self.work()
        self.seconds.append(time.perf_counter() - began)
        self.processor.append(time.process_time() - used)

    @property
    def median(self) -> float:
        return 1e3 * statistics.median(self.seconds) / self.pairs

    @property
    def best(self) -> float:
        return 1e3 * min(self.seconds) / self.pairs

    @property
    def cpu(self) -> float:
        return 1e3 * statistics.median(self.processor) / self.pairs


def pairwise(way, queries, trajectories, *, threads: int | None = None):
    def work():
        with threadpool_limits(threads):
            return [[way(query, trajectory) for trajectory in trajectories] for query in queries]

    return work


def entries(queries, trajectories, k: int) -> dict[str, Entry]:
    """Everyone, by a short key."""
    n_pairs, rows = len(trajectories) * len(queries), np.concatenate(queries)
    authors_part, libraries_part = trajectories[:AUTHORS_COUNT], trajectories[:LIBRARIES_COUNT]
    packed = np.concatenate(trajectories[:PRODUCT_COUNT])
    double = [q.astype(float) for q in queries], [t.astype(float) for t in libraries_part]

    def ours():
        return dtw.search(queries, trajectories, k=k, backend="cpu")

    def classic():
        return dtw.search(queries, trajectories, k=k, steps="classic", backend="cpu")

    n_authors, n_libraries = len(authors_part) * len(queries), len(libraries_part) * len(queries)
    everyone = {
        "ours": Entry("strap.dtw.search", ours, n_pairs),
        "authors": Entry("authors' way", pairwise(authors_way, queries, authors_part), n_authors),
        "authors1": Entry(
            "authors' way, BLAS on 1 thread",
            pairwise(authors_way, queries, authors_part, threads=1),
            n_authors,
        ),
        "librosa": Entry("librosa", pairwise(librosas_way, queries, libraries_part), n_libraries),
        "dtaidistance": Entry(
            "dtaidistance (classic steps)", pairwise(dtaidistances_way, *double), n_libraries
        ),
        "tslearn": Entry(
            "tslearn (classic steps, squared)", pairwise(tslearns_way, *double), n_libraries
        ),
        "classic": Entry("strap.dtw.search, classic steps", classic, n_pairs),
        "floor": Entry(
            "floor: the bare float32 product", lambda: rows @ packed.T, PRODUCT_COUNT * len(queries)
        ),
    }
    absent = () if librosa else ("librosa", "dtaidistance", "tslearn")
    return {key: entry for key, entry in everyone.items() if key not in absent}


def check(found: dict[str, Entry], queries, trajectories, k: int) -> None:
    """Same answers: every contestant against ours, costs to 1e-5 relative."""
    count = min(AUTHORS_COUNT, len(trajectories))
    ours = dtw.search(queries, trajectories[:count], k=k, backend="cpu")
    for key in ("authors", "authors1"):
        for q, row in enumerate(found[key].answer):
            order = sorted(range(count), key=lambda t, row=row: row[t][0])[:k]
            top = ours[q]
            assert top.trajectory.tolist() == order, f"{key}: another top {k}"
            for rank, t in enumerate(order):
                cost, start, stop = row[t]
                assert (start, stop) == (top.start[rank], top.stop[rank]), f"{key}: other borders"
                np.testing.assert_allclose(cost, top.cost[rank], rtol=1e-5)
    for q, query in enumerate(queries if librosa else ()):
        for t, (cost, start, stop) in enumerate(found["librosa"].answer[q]):
            match = dtw.best_match(query, trajectories[t], backend="cpu")
            assert (start, stop) == (match.start, match.stop), "librosa: other borders"
            np.testing.assert_allclose(cost, match.cost, rtol=1e-5)
        for t, (cost, stop) in enumerate(found["dtaidistance"].answer[q]):
            match = dtw.best_match(query, trajectories[t], steps="classic", backend="cpu")
            assert stop == match.stop, "dtaidistance: another stop"
            np.testing.assert_allclose(cost, match.cost, rtol=1e-5)


def machine() -> dict[str, object]:
    """What the numbers were measured on."""
    try:
        listing = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
        fields = dict(line.split(":", 1) for line in listing.splitlines() if ":" in line)
        model = fields.get("Model name", platform.processor()).strip()
    except (OSError, subprocess.CalledProcessError):
        model = platform.processor()
    packages = [
        "numpy",
        "numba",
        "scipy",
        *(["librosa", "dtaidistance", "tslearn"] if librosa else []),
    ]
    return {
        "cpu": model,
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
        "load_average": os.getloadavg(),
        "command": " ".join(["python", *sys.argv]),
    }


def report(found: dict[str, Entry]) -> list[str]:
    """The table, every rate against the faster of the two authors' rows."""
    peers = found["authors"], found["authors1"]
    base, best_base = min(p.median for p in peers), min(p.best for p in peers)
    lines = [
        f"{'ms per pair':36}{'median':>9}{'best':>9}{'cpu':>9}"
        f"{'× authors':>11}{'of best':>9}{'pairs run':>11}"
    ]
    lines += [
        f"{e.name:36}{e.median:9.4f}{e.best:9.4f}{e.cpu:9.4f}"
        f"{base / e.median:11.2f}{best_base / e.best:9.2f}{e.pairs:11}"
        for e in found.values()
    ]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trajectories", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("cpu.json"))
    options = parser.parse_args()
    rng = np.random.default_rng(0)

    def random(length):
        return rng.standard_normal((length, DIM), dtype=np.float32)

    queries = [random(QUERY) for _ in range(QUERIES)]
    trajectories = [random(TRAJECTORY) for _ in range(options.trajectories)]
    for entry in entries(queries, trajectories[:40], options.k).values():
        entry.round()  # compiles
    found = entries(queries, trajectories, options.k)
    hardware = machine()
    for number in range(options.rounds):
        for entry in found.values():
            entry.round()
        print(f"round {number + 1} of {options.rounds} done", file=sys.stderr)
    check(found, queries, trajectories, options.k)
    print(f"{hardware['cpu']}, {hardware['cores']} cores, load {hardware['load_average']}")
    print(f"{hardware['versions']}")
    print(
        f"{QUERIES} queries of {QUERY} frames, "
        f"{options.trajectories} trajectories of {TRAJECTORY}, {DIM} dimensions, "
        f"k = {options.k}, median of {options.rounds}; same answers: yes"
    )
    print("\n".join(report(found)))
    rows = {
        key: {"name": e.name, "pairs": e.pairs, "seconds": e.seconds, "cpu_seconds": e.processor}
        for key, e in found.items()
    }
    options.out.write_text(json.dumps({"machine": hardware, "results": rows}, indent=2) + "\n")
    print(f"written: {options.out.name}")


if __name__ == "__main__":
    main()
