"""Running each job in a process, and starting it again when the process is killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
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

MAX_ATTEMPTS = 4


@dataclass(frozen=True, eq=False)
class _Worker:
    """A process that does one job."""

    job: Any
    attempt: int
    process: BaseProcess
    answer: Connection

    def receive(self) -> tuple[str, Any]:
        """Return how the job ended: ("result" | "error" | "killed", its result or error)."""
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
    end of the parent process, however it comes.
    """
    waiting = deque((job, 1) for job in jobs)
    running: dict[Connection, _Worker] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                worker = _start(function, *waiting.popleft())
                running[worker.answer] = worker
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                worker = running.pop(ready)
                kind, content = worker.receive()
                if kind == "error":
                    raise content
                if kind == "result":
                    yield worker.job, content
                elif worker.attempt < MAX_ATTEMPTS:
                    waiting.appendleft((worker.job, worker.attempt + 1))
                else:
                    raise StrapError(
                        f"worker processes were killed {MAX_ATTEMPTS} times with "
                        f"{1 + len(waiting) + len(running)} jobs left (memory?): use fewer "
                        "--workers and start again; what is done is kept"
                    )
    finally:
        for worker in running.values():
            worker.kill()


def _start(function: Callable[[Any], Any], job: Any, attempt: int) -> _Worker:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(function, job, sender))
    process.start()
    sender.close()  # the process holds the other copy: its end closes the pipe
    return _Worker(job, attempt, process, receiver)


def _work(function: Callable[[Any], Any], job: Any, answer: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        ending: tuple[str, Any] = "result", function(job)
    except Exception as error:  # raised again in the parent
        ending = "error", error
    with suppress(BrokenPipeError):  # the parent is gone; what was made is on disk
        answer.send(ending)


def _end_with_parent() -> None:
    """End this process when its parent has been killed and can't end it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
