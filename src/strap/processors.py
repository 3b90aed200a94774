"""How many processors there are for us."""

from __future__ import annotations

import os


def processors() -> int:
    """How many this process may use: fewer than the machine has where it is confined."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
