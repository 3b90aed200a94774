"""What every benchmark prints beside its numbers: hardware, versions, command."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path


def describe(*packages: str) -> str:
    """The lines that make a number repeatable."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in packages)
    return (
        f"hardware  {processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n"
        f"versions  Python {platform.python_version()}, {versions}\n"
        f"command   python {' '.join(sys.argv)}"
    )


def processor() -> str:
    """The processor's name, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else f"{platform.machine()} ({platform.system()})"


def rates(
    work: dict[str, Callable[[], int]],
    *,
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Units per second of each, measured in turn so that a busy machine slows all alike."""
    measured: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, run in work.items():
            begin = clock()
            units = run()
            measured[name].append(units / (clock() - begin))
    return measured


def ratio(ours: list[float], theirs: list[float]) -> float:
    """The median over the rounds of ours / theirs."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
