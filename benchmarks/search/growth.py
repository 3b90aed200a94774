"""How the time of an exact search grows, against the peers, as a table and a picture.

    PYTHONPATH=src python benchmarks/search/growth.py --out docs/images/search-growth.png \
        [--disk rows.json] [--table growth.md]

Random frames in memory, the paper's numbers where nothing else is said: 5 queries of 50 frames,
trajectories of 250, 768 dimensions, float16, k = 100. One of them is varied at a time. Peers run on
as many pairs as fit their time, and the curve over the prior's size is drawn on from there, dashed,
by their time per pair. `--disk` takes the rows of `disk.py search`, whose prior is larger than
memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import cpu as peers

import strap.dtw as dtw

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROUNDS = 3
BASE = {"trajectories": 1000, "frames": 250, "queries": 5, "query": 50, "dim": 768, "k": 100}
VARIED = {
    "frames": (63, 125, 250, 500, 1000),
    "queries": (1, 2, 5, 10, 20),
    "k": (1, 10, 100, 500, 1000),
    "dim": (96, 192, 384, 768, 1536),
}
SIZES = (1000, 2000, 5000, 10_000)
SLOW_PAIRS = 30


def make(setting: dict[str, int]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    random = np.random.default_rng(0)

    def frames(length: int) -> np.ndarray:
        return random.standard_normal((length, setting["dim"]), np.float32).astype(np.float16)

    queries = [frames(setting["query"]) for _ in range(setting["queries"])]
    return queries, [frames(setting["frames"]) for _ in range(setting["trajectories"])]


def seconds(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def ours(setting: dict[str, int]) -> float:
    queries, trajectories = make(setting)
    return seconds(lambda: dtw.search(queries, trajectories, k=setting["k"], backend="cpu"))


def per_pair(way: Callable[..., object], kind: type, pairs: int) -> float:
    """A peer's seconds for one pair, from `pairs` of them."""
    queries, trajectories = make(BASE | {"trajectories": max(1, pairs // BASE["queries"])})
    queries = [query.astype(kind) for query in queries]
    trajectories = [trajectory.astype(kind) for trajectory in trajectories]
    way(queries[0], trajectories[0])
    taken = seconds(lambda: [way(q, t) for q in queries for t in trajectories], rounds=1)
    return taken / (len(queries) * len(trajectories))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--disk", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    hardware = peers.machine()
    ours(BASE | {"trajectories": 20})  # compiles
    rates = {
        "authors' way": per_pair(peers.authors_way, np.float32, 1000),
        "librosa": per_pair(peers.librosas_way, np.float32, SLOW_PAIRS),
        "dtaidistance (classic steps)": per_pair(peers.dtaidistances_way, np.float64, SLOW_PAIRS),
        "tslearn (classic steps)": per_pair(peers.tslearns_way, np.float64, SLOW_PAIRS),
    }
    sizes = {size: ours(BASE | {"trajectories": size}) for size in SIZES}
    disk = {}
    if options.disk:
        disk = {
            row["trajectories"]: row["one_seconds"] for row in json.loads(options.disk.read_text())
        }
    growth = {
        name: {value: ours(BASE | {name: value}) for value in values}
        for name, values in VARIED.items()
    }
    draw(options.out, rates, sizes, disk, growth)
    text = "\n".join(table(hardware, rates, sizes, disk, growth))
    print(text)
    if options.table:
        options.table.write_text(text + "\n")


def draw(
    path: Path,
    rates: dict[str, float],
    sizes: dict[int, float],
    disk: dict[int, float],
    growth: dict[str, dict[int, float]],
) -> None:
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplot_mosaic(
        [["size", "frames", "queries"], ["size", "k", "dim"]],
        figsize=(12, 5.2),
        width_ratios=(1.7, 1, 1),
        layout="constrained",
    )
    size = axes["size"]
    reach = np.array([1000, 1_000_000])
    for (name, rate), colour in zip(rates.items(), ("C3", "C1", "C5", "C7"), strict=True):
        size.plot(
            reach, rate * BASE["queries"] * reach, "--", color=colour, label=f"{name}, by pairs"
        )
    last, taken = max(sizes.items())
    size.plot(reach, taken / last * reach, ":", color="C0")
    size.plot(list(sizes), list(sizes.values()), "o-", color="C0", label="strap.dtw, in memory")
    if disk:
        size.plot(
            list(disk), list(disk.values()), "s-", color="C2", label="strap.dtw, cold from disk"
        )
    size.set(xscale="log", yscale="log", xlabel="trajectories of 250 frames", ylabel="seconds")
    size.set_title("5 queries of 50 frames, 768 dimensions, exact", loc="left", fontsize=9)
    size.grid(alpha=0.3)
    size.legend(frameon=False, fontsize=8)
    titles = {
        "frames": "frames of a trajectory",
        "queries": "queries",
        "k": "k, matches of each query",
        "dim": "dimensions",
    }
    for name, found in growth.items():
        panel = axes[name]
        panel.plot(list(found), list(found.values()), "o-", color="C0")
        panel.set(xlabel=titles[name], ylim=(0, 1.1 * max(found.values())), xlim=(0, None))
        panel.grid(alpha=0.3)
    axes["frames"].set_title("seconds, 1,000 trajectories", loc="left", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def table(
    hardware: dict[str, object],
    rates: dict[str, float],
    sizes: dict[int, float],
    disk: dict[int, float],
    growth: dict[str, dict[int, float]],
) -> list[str]:
    each = max(sizes.items())
    mine = each[1] / (each[0] * BASE["queries"])
    lines = [f"{hardware['cpu']}, {hardware['cores']} cores; {hardware['versions']}", ""]
    lines += ["| way | ms per pair | times ours |", "|---|---|---|"]
    lines += [f"| strap.dtw ({each[0]:,} trajectories) | {1e3 * mine:.3f} | 1 |"]
    lines += [f"| {name} | {1e3 * rate:.3f} | {rate / mine:.1f} |" for name, rate in rates.items()]
    lines += ["", "| trajectories | seconds | |", "|---|---|---|"]
    lines += [f"| {size:,} | {taken:.2f} | in memory |" for size, taken in sizes.items()]
    lines += [f"| {size:,} | {taken:.1f} | cold from disk |" for size, taken in disk.items()]
    lines += ["", "| varied | value: seconds |", "|---|---|"]
    for name, found in growth.items():
        lines.append(f"| {name} | " + ", ".join(f"{v}: {t:.2f}" for v, t in found.items()) + " |")
    return lines


if __name__ == "__main__":
    main()
