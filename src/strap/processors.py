"""How many processors there are for us."""

from __future__ import annotations

import os

_sharing = 1


def processors() -> int:
    """Return how many processors this process may use.

    Fewer than the machine has where it is confined, or one of several that share them.
    """
    confined = hasattr(os, "sched_getaffinity")
    available = len(os.sched_getaffinity(0)) if confined else os.cpu_count() or 1
    return max(1, available // _sharing)


def share(processes: int) -> None:
    """Say that this process is one of so many that work at the same time."""
    global _sharing
    _sharing = processes
