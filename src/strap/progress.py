"""How long jobs tell what they have done, and how long each part took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]
"""Called as (what is being done, how many done, of how many)."""


def silent(what: str, done: int, total: int) -> None:
    """Show nothing."""


class Clock:
    """Seconds spent in each part of a job, by the part's name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Count the seconds of a `with` block as those of a part."""
        start = time.perf_counter()
        yield
        self.seconds[part] = round(time.perf_counter() - start, 3)
