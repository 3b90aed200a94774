"""Progress bars on standard error; nothing where it is not a terminal's user who waits."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from strap.artifacts import Progress, silent

LOG_SECONDS = 10.0


@contextmanager
def showing(quiet: bool = False) -> Iterator[Progress]:
    """A progress callback that draws one bar per task, with rate and time left.

    Without a terminal (a log file, CI) a line is printed every ten seconds instead.
    """
    if quiet:
        yield silent
    elif sys.stderr.isatty():
        with _bars() as report:
            yield report
    else:
        yield _Lines()


@contextmanager
def _bars() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import (
        Progress as Bars,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with Bars(*columns, console=Console(stderr=True)) as bars:

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield report


class _Lines:
    """One line per task every ten seconds."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.last >= LOG_SECONDS:
            self.last = now
            print(f"{what}: {done} of {total}", file=sys.stderr, flush=True)
