"""Rate and latency of `strap serve`: robots that each want an action twenty times a second.

    PYTHONPATH=src taskset -c 0,1 python benchmarks/policy/serving.py --clients 4 --hz 20

The server is the command itself, the robots are processes with clients of their own, all on this
machine. The policy is the frozen-feature one with two cameras of 128×128; it is untrained (speed
does not depend on its weights). A robot that has its action early waits for its next tick; late, it
asks at once, so the rate that it achieves falls below the one it wants.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from websockets.sync.client import connect

from strap.cpus import count_cpus
from strap.policies import Checkpoint, Interface, build_policy, policy_preset
from strap.policies.checkpoints import Instructions, save_checkpoint
from strap.policies.frozen_vision import Projection
from strap.serving.messages import pack, unpack

CAMERAS = ("agentview_rgb", "eye_in_hand_rgb")
STATES = {"ee_ori": 3, "ee_pos": 3, "ee_states": 6, "gripper_states": 2, "joint_states": 7}


def save_policy(folder: Path, kind: str) -> None:
    torch.manual_seed(0)
    interface = Interface(CAMERAS, 128, STATES, 7, 384, (64, 32), 20.0)
    settings = policy_preset("fixed", kind=kind, vision="frozen")
    told = Instructions(("do it",), torch.randn(1, 384), "words")
    projection = Projection(torch.zeros(272), torch.randn(272, 32))
    policy = build_policy(interface, settings)
    save_checkpoint(folder, Checkpoint(policy, interface, settings, told, projection))


@contextmanager
def serving(folder: Path, device: str) -> Iterator[tuple[int, int]]:
    """`strap serve` as a process; gives its number and its port."""
    words = ["serve", str(folder), "--port", "0", "--device", device]
    command = [sys.executable, "-m", "strap", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            found = re.search(r":(\d+) \(Ctrl-C", process.stdout.readline())
            assert found, "the server did not start"
            yield process.pid, int(found[1])
        finally:
            process.terminate()


def processor_seconds(pid: int) -> float:
    """Return how long processors have worked for a process (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def be_robot(port: int, number: int, hz: float, seconds: float, begin: float) -> dict[str, Any]:
    """Act for some seconds; return how often and after how many milliseconds answers came."""
    rng = np.random.default_rng(number)
    image = rng.integers(0, 256, (128, 128, 3), np.uint8)
    latencies, batches = [], []
    with connect(f"ws://127.0.0.1:{port}", compression=None, max_size=None) as connection:
        connection.recv()
        time.sleep(max(0.0, begin - time.time()))
        start = time.perf_counter()
        while (now := time.perf_counter()) < start + seconds:
            state = {key: rng.standard_normal(size) for key, size in STATES.items()}
            seen = {**dict.fromkeys(CAMERAS, image), **state, "prompt": "do it", "rate": hz}
            connection.send(pack(seen))
            answer = unpack(connection.recv())
            latencies.append((time.perf_counter() - now) * 1e3)
            batches.append(answer["server_timing"]["batch"])
            time.sleep(max(0.0, start + len(latencies) / hz - time.perf_counter()))
        took = time.perf_counter() - start
    median, high = np.percentile(latencies, [50, 95])
    return {
        "actions": len(latencies),
        "actions a second": round(len(latencies) / took, 2),
        "median ms": round(float(median), 1),
        "95 % ms": round(float(high), 1),
        "worst ms": round(max(latencies), 1),
        "mean batch": round(float(np.mean(batches)), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--hz", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--kind", choices=("transformer", "diffusion"), default="transformer")
    parser.add_argument("--device", default="auto")
    call = parser.parse_args()
    print(f"{platform.machine()}, {count_cpus()} processors, torch {torch.__version__}")
    print(f"load before: {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        save_policy(Path(folder), call.kind)
        with (
            serving(Path(folder), call.device) as (server, port),
            multiprocessing.get_context("spawn").Pool(call.clients) as pool,
        ):
            begin = time.time() + 10  # when all of them have started
            jobs = [(port, i, call.hz, call.seconds, begin) for i in range(call.clients)]
            before = processor_seconds(server)
            rows = pool.starmap(be_robot, jobs)
            used = processor_seconds(server) - before
            for robot, row in enumerate(rows):
                print(f"robot {robot}: {json.dumps(row)}", flush=True)
            count = sum(row["actions"] for row in rows)
            print(f"server: {used / count * 1e3:.1f} ms of processor time an action")


if __name__ == "__main__":
    main()
