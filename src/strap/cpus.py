"""The number of CPU cores that this process can use."""

from __future__ import annotations

import os

_sharing = 1


def count_cpus() -> int:
    """Return the number of CPU cores for this process.

    These are fewer than the machine's if the process is confined to some cores (CPU affinity), or
    shares them with other processes (`share_cpus`).
    """
    has_affinity = hasattr(os, "sched_getaffinity")
    available = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, available // _sharing)


def share_cpus(processes: int) -> None:
    """Divide the cores: this process is one of `processes` that work at the same time."""
    global _sharing
    _sharing = processes
