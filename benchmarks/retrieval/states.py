"""Nearest single states, ours against faiss.IndexFlatL2, in one run, with the same answers.

    python benchmarks/retrieval/states.py [--trajectories 400] [--rounds 3] [--out states.json]

Prior frames are the nearest to any target frame. Features are random walks, so that neighbours in
time are alike, as an encoder's are; they are in memory once both have read the stores. FAISS holds
the target's frames and looks up each prior frame; whoever wants the K nearest sorts its answers.
Rounds are interleaved, so that other load on the machine hits both; medians are compared.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np

from strap.atomic import write_json
from strap.cpus import count_cpus
from strap.retrieval import MatchOptions, retrieve_matches
from strap.store import (
    EmbeddingStore,
    PendingTrajectory,
    Session,
    StoreConfig,
    create_store,
    open_store,
)
from strap.types import Segment

try:
    import faiss
except ImportError:
    raise SystemExit("faiss, the peer, is not there: pip install 'strap-robot[bench]'") from None

Answer = list[tuple[str, int, float]]
"""(trajectory, frame, cost), cheapest first"""


def make_store(path: Path, prefix: str, count: int, frames: int, dim: int) -> EmbeddingStore:
    rng = np.random.default_rng(len(prefix))
    config = StoreConfig({"name": "random"}, "float32", dim, ("camera",))
    create_store(path, config)
    session = Session(path, config)
    for index in range(count):
        walk = np.cumsum(rng.standard_normal((frames, dim)), axis=0) / 4
        vectors = (walk + rng.standard_normal(dim)).astype(np.float32)
        session.add(
            PendingTrajectory(f"{prefix}{index}", frames, "", ""), [vectors], f"{prefix}{index}"
        )
    session.flush()
    session.close()
    write_json(path / "manifest.json", {"dataset": f"{path}.data"})
    return open_store(path)


def our_way(target: EmbeddingStore, prior: EmbeddingStore, top_k: int) -> Answer:
    queries = [Segment(key, 0, target.entry(key).length) for key in target.ids]
    options = MatchOptions(method="d-s", top_k=top_k, metric="l2", padding=1)
    found = retrieve_matches(queries, target, [prior], options).matches
    # With a padding of 1 a state is the last frame of its segment.
    return [(m.segment.trajectory_id, m.segment.stop - 1, m.cost) for m in found]


def faiss_way(target: EmbeddingStore, prior: EmbeddingStore, top_k: int) -> Answer:
    index = faiss.IndexFlatL2(target.dim)
    index.add(np.concatenate([target[key] for key in target.ids]))
    names = [(key, t) for key in prior.ids for t in range(prior.entry(key).length)]
    squared, _ = index.search(np.concatenate([prior[key] for key in prior.ids]), 1)
    order = np.argsort(squared[:, 0], kind="stable")[:top_k]
    return [(*names[row], float(np.sqrt(squared[row, 0]))) for row in order]


def assert_same(ours: Answer, theirs: Answer) -> None:
    """Costs agree to float32's digits; so do the frames, but for the last few, which may tie."""
    costs = [[cost for *_, cost in answer] for answer in (ours, theirs)]
    np.testing.assert_allclose(*costs, rtol=1e-3)
    common = {row[:2] for row in ours} & {row[:2] for row in theirs}
    assert len(common) >= 0.99 * len(ours), f"{len(common)} of {len(ours)} frames are the same"


def measure(
    ways: dict[str, Callable[[], Answer]], rounds: int
) -> tuple[dict[str, float], dict[str, Answer]]:
    """Return the median seconds and the answer of each way; a first round only warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    answers: dict[str, Answer] = {}
    for number in range(rounds + 1):
        for name, way in ways.items():
            begin = time.perf_counter()
            answers[name] = way()
            if number:
                seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in seconds.items()}, answers


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trajectories", type=int, default=400, help="of the prior")
    parser.add_argument("--frames", type=int, default=250, help="of each trajectory")
    parser.add_argument("--demonstrations", type=int, default=5)
    parser.add_argument("--dim", type=int, default=768)
    parser.add_argument("--top-k", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="also write the figures there, as JSON")
    given = parser.parse_args(words)
    faiss.omp_set_num_threads(count_cpus())
    with tempfile.TemporaryDirectory() as folder:
        target = make_store(Path(folder) / "a", "t", given.demonstrations, given.frames, given.dim)
        prior = make_store(Path(folder) / "b", "pr", given.trajectories, given.frames, given.dim)
        ways = {
            "ours": lambda: our_way(target, prior, given.top_k),
            "faiss": lambda: faiss_way(target, prior, given.top_k),
        }
        seconds, answers = measure(ways, given.rounds)
    assert_same(answers["ours"], answers["faiss"])
    report = {
        "machine": f"{platform.machine()}, {count_cpus()} processors",
        "faiss": version("faiss-cpu"),
        "prior frames": given.trajectories * given.frames,
        "target frames": given.demonstrations * given.frames,
        "dimensions": given.dim,
        "seconds": {name: round(value, 4) for name, value in seconds.items()},
        "ours / faiss": round(seconds["ours"] / seconds["faiss"], 3),
    }
    print(json.dumps(report, indent=1))
    if given.out:
        write_json(given.out, report)


if __name__ == "__main__":
    main()
