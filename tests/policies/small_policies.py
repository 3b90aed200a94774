"""Untrained policies, small enough to act in milliseconds."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from strap.policies import (
    Checkpoint,
    Interface,
    Observation,
    Policy,
    PolicySettings,
    build_policy,
)
from strap.policies.checkpoints import Instructions, save_checkpoint
from strap.policies.frozen_vision import Projection

INTERFACE = Interface(
    ("front",), 32, {"ee_pos": 3, "gripper": 2}, 4, 8, (4, 3), 20.0, {"front": (48, 64)}
)
SETTINGS = {
    "transformer": PolicySettings(
        vision="frozen", history=3, chunk=3, layers=1, width=16, heads=2, modes=2, keypoints=4
    ),
    "diffusion": PolicySettings(
        kind="diffusion",
        vision="frozen",
        history=2,
        chunk=8,
        execute=3,
        first_action=-1,
        keypoints=4,
        channels=(8, 16),
        groups=2,
        kernel=3,
        diffusion_steps=4,
        language=False,
    ),
}


def save_small_policy(folder: Path, kind: str = "transformer", **changes: Any) -> Path:
    """Write a checkpoint; `changes` are of its interface."""
    torch.manual_seed(0)
    interface, settings = replace(INTERFACE, **changes), SETTINGS[kind]
    told = Instructions(("pick", "place"), torch.randn(2, interface.language_size), "words")
    projection = Projection(torch.zeros(272), torch.randn(272, 3))
    policy = build_policy(interface, settings)
    save_checkpoint(folder, Checkpoint(policy, interface, settings, told, projection))
    return folder


def observe(number: int, **changes: Any) -> Observation:
    """Return what a robot sees at some moment."""
    rng = np.random.default_rng(number)
    values: dict[str, Any] = {
        "images": {"front": rng.integers(0, 256, (32, 32, 3), np.uint8)},
        "proprioception": {"ee_pos": rng.standard_normal(3), "gripper": rng.random(2)},
        "instruction": "pick",
    }
    return Observation(**{**values, **changes})


@contextmanager
def serve_command(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """`strap serve` as a user starts it; gives its process and port."""
    words = [sys.executable, "-m", "strap", "serve", str(folder), "--port", "0", "--device", "cpu"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            found = re.search(r"at ws://127\.0\.0\.1:(\d+) ", process.stdout.readline())
            assert found
            yield process, int(found[1])
        finally:
            process.kill()


@contextmanager
def serving(policy: Policy, api_key: str | None = None) -> Iterator[int]:
    """A server in a thread; gives its port."""
    from strap.serving.websocket import PolicyServer

    loop, started = asyncio.new_event_loop(), threading.Event()
    ports: list[int] = []

    def ready(port: int) -> None:
        ports.append(port)
        started.set()

    server = PolicyServer(policy, api_key=api_key)
    task = loop.create_task(server.run("127.0.0.1", 0, ready))
    thread = threading.Thread(
        target=lambda: loop.run_until_complete(asyncio.wait([task])), daemon=True
    )
    thread.start()
    assert started.wait(30)
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(30)
        assert not thread.is_alive()
        loop.close()
    assert not policy._streams  # every client's was dropped
