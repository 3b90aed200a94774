"""Progress on standard error: bars in a terminal, lines in a log file, nothing if quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from strap.errors import printable
from strap.progress import Progress, silent

LOG_SECONDS = 10.0


@contextmanager
def show_progress(quiet: bool = False) -> Iterator[Progress]:
    """Yield a progress callback that draws one bar per task, with rate and time left.

    Without a terminal (a log file, CI) it prints a line every ten seconds instead.
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
        ProgressColumn,
        Task,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import (
        Progress as Bars,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        """The number of items per second."""

        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text(f"{speed:.0f}/s" if speed else "")

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with Bars(*columns, console=Console(stderr=True)) as bars:

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(printable(what), total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield report


class _Lines:
    """Prints a line every ten seconds: how much is done, the rate, and the time left."""

    def __init__(self) -> None:
        self.last = time.monotonic()
        self.started: dict[str, tuple[float, int]] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        start, first = self.started.setdefault(what, (now, done))
        if now - self.last < LOG_SECONDS:
            return
        self.last = now
        rate = (done - first) / (now - start) if now > start else 0.0
        left = f", {rate:.0f}/s, {_duration((total - done) / rate)} left" if rate > 0 else ""
        print(f"{printable(what)}: {done} of {total}{left}", file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
