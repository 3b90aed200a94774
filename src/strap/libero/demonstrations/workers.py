"""Running jobs in processes of their own, and going on when one of them is killed."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from strap.errors import StrapError

JobT = TypeVar("JobT")
ResultT = TypeVar("ResultT")

ATTEMPTS = 4


@dataclass(frozen=True, eq=False)
class _Running:
    job: Any
    attempt: int
    process: BaseProcess
    answer: Connection

    def receive(self) -> tuple[str, Any]:
        """How it ended: ("result" | "error" | "killed", what)."""
        try:
            ending: tuple[str, Any] = self.answer.recv()
        except (EOFError, ConnectionResetError):
            ending = "killed", None
        self.close()
        return ending

    def close(self) -> None:
        self.answer.close()
        self.process.join()

    def kill(self) -> None:
        self.process.kill()
        self.close()


def run_each(
    function: Callable[[JobT], ResultT], jobs: Iterable[JobT], workers: int
) -> Iterator[tuple[JobT, ResultT]]:
    """Yield each job with its result as it ends.

    A process does one job and ends: environments hold on to memory, processes give it back. When
    a process is killed, its job is started again; an error in one ends them all, and so does the
    end of this one, however it comes.
    """
    left = deque((job, 1) for job in jobs)
    running: dict[Connection, _Running] = {}
    try:
        while left or running:
            while left and len(running) < workers:
                one = _start(function, *left.popleft())
                running[one.answer] = one
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                one = running.pop(ready)
                kind, content = one.receive()
                if kind == "error":
                    raise content
                if kind == "result":
                    yield one.job, content
                elif one.attempt < ATTEMPTS:
                    left.appendleft((one.job, one.attempt + 1))
                else:
                    raise StrapError(
                        f"worker processes were killed {ATTEMPTS} times with "
                        f"{1 + len(left) + len(running)} jobs left (memory?): use fewer "
                        "--workers and start again; what is done is kept"
                    )
    finally:
        for one in running.values():
            one.kill()


def _start(function: Callable[[Any], Any], job: Any, attempt: int) -> _Running:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(function, job, theirs))
    process.start()
    theirs.close()  # so that its end is seen here
    return _Running(job, attempt, process, ours)


def _work(function: Callable[[Any], Any], job: Any, answer: Connection) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        ending: tuple[str, Any] = "result", function(job)
    except Exception as error:  # carried to the one who asked
        ending = "error", error
    with suppress(BrokenPipeError):  # who asked is gone; what was made is on disk
        answer.send(ending)


def _end_with_parent() -> None:
    """Whoever asked for the job may be killed: nobody would end this process then."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
