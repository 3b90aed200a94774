"""Progress of long jobs, and the time that their parts take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]
"""A callback, called with (name of the task, number done, total number)."""


def silent(what: str, done: int, total: int) -> None:
    """Ignore the progress."""


class Clock:
    """The seconds spent in each part of a job, by the part's name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Measure the seconds of a `with` block under the name of a part."""
        start = time.perf_counter()
        yield
        self.seconds[part] = round(time.perf_counter() - start, 3)
