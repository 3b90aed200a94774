"""A big RLDS dataset through a Ray cluster of two nodes, one of which is killed again and again.

    python benchmarks/cluster/rehearsal.py FOLDER [--episodes 5000] [--steps 16] [--kills 3]

Writes a made-up dataset with DROID's fields and picture size (its pictures are the sample's),
starts two Ray nodes of this machine's processes, and runs what a user would: `strap embed --engine
ray` while the second node is killed and started anew, `strap store verify`, `strap store sketch`,
`strap retrieve --engine ray` (likewise killed once), which writes the augmented dataset, and
`strap export`. The matches must be those of a search without a cluster. FOLDER keeps what is made:
run again, the dataset is not written again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

sys.path.insert(0, str(Path(__file__).parents[1] / "formats"))

import pyarrow.parquet as parquet
from droid import CAMERAS, Pictures, encode_picture, write_droid
from machine import describe

import strap

ADDRESS = "127.0.0.1:6399"
SAMPLE = Path(__file__).parents[2] / "samples/libero-mini/prior"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--episodes", type=int, default=5000)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--encoder", default="efficientnet-lite0@96")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--kill-every", type=float, default=60.0, help="seconds")
    arguments = parser.parse_args()
    os.environ["RAY_AUTH_MODE"] = "token"  # a head node wants one; clients send it with this alone
    print(describe("ray", "torch", "numpy"))
    prior, target = write_datasets(arguments.folder, arguments.episodes, arguments.steps)
    with two_nodes(arguments.folder / "nodes") as second:
        rehearse(arguments, prior, target, second)


def write_datasets(folder: Path, episodes: int, steps: int) -> tuple[Path, Path]:
    """Write the prior and five demonstrations, unless they are there."""
    prior, target = folder / f"prior-{episodes}x{steps}", folder / "target"
    done = folder / f"written-{episodes}x{steps}"
    if not done.exists():
        began = time.perf_counter()
        films = [film(trajectory) for trajectory in strap.open_dataset(SAMPLE)]
        write_droid(prior, episodes, steps, films)
        write_droid(target, 5, 60, films, seed=1)
        done.touch()
        print(f"written in {time.perf_counter() - began:.0f} s")
    size = sum(file.stat().st_size for file in prior.iterdir())
    frames = episodes * steps
    print(f"{episodes:,} episodes, {frames:,} steps, {len(CAMERAS)} cameras, {size / 1e9:.2f} GB")
    return prior, target


def film(trajectory: strap.Trajectory) -> Pictures:
    """Return the JPEGs of a demonstration of the sample."""
    return [encode_picture(frame) for frame in trajectory.frames("agentview_rgb")]


class Node:
    """The cluster's second node, which is killed with all its workers and started anew."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kills = 0
        self.start()

    def start(self) -> None:
        log = (self.folder / "second.log").open("ab")
        command = [*RAY, "start", f"--address={ADDRESS}", "--num-cpus=1", "--block"]
        self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.kills += 1


RAY = [sys.executable, "-m", "ray.scripts.scripts"]


@contextmanager
def two_nodes(folder: Path) -> Iterator[Node]:
    """Yield the second node of a cluster of two, with a processor each."""
    folder.mkdir(parents=True, exist_ok=True)
    log = (folder / "head.log").open("ab")
    host, port = ADDRESS.split(":")
    command = [*RAY, "start", "--head", f"--node-ip-address={host}", f"--port={port}"]
    command += ["--num-cpus=1", "--include-dashboard=false", "--block"]
    head = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    time.sleep(10)
    second = Node(folder)
    time.sleep(10)
    try:
        yield second
    finally:
        for process in (second.process, head):
            with suppress(ProcessLookupError):  # it has ended by itself
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def killing(node: Node, every: float, most: int) -> Iterator[None]:
    """Kill the node from time to time within the block, and start it anew."""
    over = Event()

    def work() -> None:
        for _ in range(most):
            if over.wait(every):
                return
            node.kill()
            print(f"  second node killed ({node.kills})", flush=True)
            over.wait(5)
            node.start()

    thread = Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def rehearse(arguments: argparse.Namespace, prior: Path, target: Path, node: Node) -> None:
    """Run every command and print what it took."""
    stores = arguments.folder / "stores"
    store, camera = stores / prior.name, CAMERAS[0]
    on_cluster = ["--engine", "ray", "--address", ADDRESS]
    options = ["--encoder", arguments.encoder, "--cameras", camera]
    frames = arguments.episodes * arguments.steps
    with killing(node, arguments.kill_every, arguments.kills):
        seconds = run(["embed", prior, "--out", store, *options, *on_cluster])
    print(f"embed       {seconds:7.1f} s, {frames / seconds:.0f} frames/s")
    print(f"verify      {run(['store', 'verify', store]):7.1f} s")
    print(f"sketch      {run(['store', 'sketch', store]):7.1f} s")
    run(["embed", target, "--out", stores / "target", *options])
    retrieve = ["retrieve", "--target", stores / "target", "--prior", store, "--segmentation"]
    retrieve += ["window", "--window", "8", "--overwrite", "--report", "none"]
    here, there = arguments.folder / "here", arguments.folder / "there"
    seconds = run([*retrieve, "--augmented", "none", "--out", here])
    print(f"retrieve    {seconds:7.1f} s here")
    with killing(node, 8, 1):
        seconds = run([*retrieve, "--augmented", "lerobot", "--out", there, *on_cluster])
    print(f"retrieve    {seconds:7.1f} s on the cluster, augmented dataset written")
    augmented = arguments.folder / "augmented.hdf5"
    augmented.unlink(missing_ok=True)
    print(f"export      {run(['export', there, '--as', 'robomimic', '--out', augmented]):7.1f} s")
    tables = [parquet.read_table(run / "matches.parquet") for run in (here, there)]
    if not tables[0].equals(tables[1]):
        raise SystemExit("the cluster's matches are not those of a search without a cluster")
    print(f"the same {len(tables[0])} matches with and without the cluster; {node.kills} kills")
    (arguments.folder / "done.json").write_text(json.dumps({"kills": node.kills}))


def run(command: list[str | Path]) -> float:
    """Run a command of strap, and return the seconds that it took."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "strap", *map(str, command)], check=True)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
