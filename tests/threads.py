"""The threads of this process, of which a forked child has only one."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

STARTED_AGAIN_BY_FORKS = "jemalloc_bg_thd"
"""the thread of pyarrow's allocator on x86, which a child starts anew"""


def count_threads() -> int:
    """Return how many threads a child that is forked now would lack, and one for this thread."""
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        return threading.active_count()
    names = []
    for task in tasks.iterdir():
        with suppress(OSError):  # it has ended since
            names.append((task / "comm").read_text().strip())
    return sum(name != STARTED_AGAIN_BY_FORKS for name in names)
