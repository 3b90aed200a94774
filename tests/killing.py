"""Embeds in processes that can be killed: forked from one that has imported everything.

Run as a script: `python tests/killing.py PLAN.json` does what the plan says and prints a report. A
fresh interpreter per process would take longer than the embedding itself.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

import strap
from strap.embeddings import local, work
from strap.encoders import PixelEncoder


class Logged(PixelEncoder):
    """Slow enough to be killed; says in a file what it is given, before it encodes."""

    log = ""
    seconds = 0.0

    def encode(self, images: np.ndarray) -> np.ndarray:
        with Path(self.log).open("a") as file:
            file.write(f"{os.getpid()} {len(images)}\n")
        time.sleep(self.seconds)
        return super().encode(images)


def embed(plan: dict[str, Any]) -> None:
    local.SHARD_BYTES, work.GROUP_IMAGES = plan["shard_bytes"], plan["group"]
    Logged.log, Logged.seconds = plan["log"], plan["seconds"]
    dataset = strap.open_dataset(plan["dataset"])
    strap.embed(dataset, Logged(4), plan["out"], batch=plan["batch"], workers=2)


def start(plan: dict[str, Any]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        embed(plan)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def wait_for_a_batch(log: Path, children: list[int]) -> None:
    limit = time.monotonic() + 20
    while time.monotonic() < limit:
        lines = log.read_text().splitlines() if log.is_file() else []
        if {int(line.split()[0]) for line in lines if line} & set(children):
            return
        time.sleep(0.005)


def run(plan: dict[str, Any]) -> dict[str, Any]:
    chance = random.Random(plan["seed"])
    strap.open_dataset(plan["dataset"]).fingerprint()  # imports what every child needs
    killed = 0
    for turn in range(plan["kills"]):
        children = [start(plan) for _ in range(plan["writers"])]
        if turn % 2:  # on a busy machine a child may take longer to begin than it is left alive
            wait_for_a_batch(Path(plan["log"]), children)
        time.sleep(chance.uniform(*plan["after"]))
        victims = children if plan["kill_all"] else children[:1]
        for child in victims:
            os.kill(child, signal.SIGKILL)
        statuses = [os.waitpid(child, 0)[1] for child in children]
        killed += sum(os.WIFSIGNALED(status) for status in statuses)
    children = [start(plan) for _ in range(plan["writers"] if not plan["kills"] else 1)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return {"killed": killed, "codes": codes}


def execute(folder: Path, **plan: Any) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """Carry out a plan in another process; its report, and (process, frames) of every batch."""
    settings = {"kills": 0, "writers": 1, "kill_all": True, "after": (0, 1), "seed": 0}
    settings |= {"log": str(folder / "log"), "out": str(folder / "store"), "batch": 16}
    settings |= {"shard_bytes": 1 << 14, "group": 150, "seconds": 0.01} | plan
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, __file__, str(folder / "plan.json")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    log = Path(settings["log"])
    lines = log.read_text().split("\n")[:-1] if log.is_file() else []
    batches = [tuple(map(int, line.split())) for line in lines]
    return json.loads(done.stdout), batches  # type: ignore[return-value]


if __name__ == "__main__":
    print(json.dumps(run(json.loads(Path(sys.argv[1]).read_text()))))
