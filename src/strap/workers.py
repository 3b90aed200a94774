"""Processes that work for this one: started, spoken to over a line, replaced when they are lost.

A worker is a program of its own, so that a script which starts workers is not run again in each of
them. Its standard input is a lifeline: it ends with this process, however this process ends.
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

from strap.errors import StrapError

JobT = TypeVar("JobT")
ResultT = TypeVar("ResultT")

MAX_ATTEMPTS = 4
"""of `run_each` at a job whose processes are killed"""


class WorkerError(Exception):
    """A worker that does not answer as it should."""


class WorkerLostError(WorkerError):
    """A worker whose process has ended."""


class WorkerFailedError(WorkerError):
    """A worker that met an error which is not the user's; the notes have its traceback."""


@dataclass(frozen=True)
class _Failure:
    """An error in a worker, on its way to who asked."""

    text: str
    trace: str
    is_users: bool

    @classmethod
    def of(cls, error: Exception) -> _Failure:
        is_users = isinstance(error, StrapError)
        text = str(error) if is_users else f"{type(error).__name__}: {error}"
        return cls(text, "".join(traceback.format_exception(error)), is_users)

    @property
    def error(self) -> Exception:
        if self.is_users:
            return StrapError(self.text)
        error = WorkerFailedError(self.text)
        error.add_note(self.trace)
        return error


class Worker:
    """A process that runs `target(line, *arguments)`; `send` does not wait, `receive` does."""

    def __init__(
        self, target: Callable[..., None], *arguments: Any, descriptors: Sequence[int] = ()
    ) -> None:
        """Start the process.

        Args:
            target: a function that can be imported; its first argument is the line to this process.
            arguments: what else it is given.
            descriptors: open files that the process is to have under the same numbers.
        """
        ours, theirs = socket.socketpair()
        paths = [str(path) for path in sys.path]
        code = f"import sys; sys.path[:] = {paths}; from {__name__} import main"
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", f"{code}; main({theirs.fileno()})"],
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno(), *descriptors],
                start_new_session=True,  # Ctrl-C is this process's to handle
            )
        self._line = Connection(ours.detach())
        self._task: bytes | None = pickle.dumps((target, arguments))

    def fileno(self) -> int:
        """Return the number of the line, to wait for."""
        return self._line.fileno()

    def send(self, message: object) -> None:
        """Send a message; the first brings the target along. `receive` tells where none is read."""
        with suppress(OSError):
            if self._task is not None:  # not at the start, when nobody reads yet
                self._line.send_bytes(self._task)
                self._task = None
            self._line.send(message)

    def receive(self) -> Any:
        """Return the next message, or raise the worker's error, or `WorkerLostError`."""
        try:
            message = self._line.recv()
        except (EOFError, OSError) as error:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=5)
            code = self.process.returncode
            raise WorkerLostError(f"its process ended (exit code {code})") from error
        if isinstance(message, _Failure):
            raise message.error
        return message

    def close(self) -> None:
        """End the process; twice does nothing."""
        self._line.close()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.kill()
        self.process.wait()


def main(descriptor: int) -> None:
    """Run a worker's target: the first thing that comes over the line."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    line = Connection(descriptor)
    with suppress(EOFError, OSError):  # nobody asks any more
        task = line.recv_bytes()
        try:
            target, arguments = pickle.loads(task)  # the parent's own, not a file's
            target(line, *arguments)
        except Exception as error:
            line.send(_Failure.of(error))


def _end_with_parent() -> None:
    """End this process when its parent has closed its end of our input, or was killed."""
    while os.read(0, 1):
        pass
    os._exit(1)


def serve(line: Connection, answer: Callable[[Any], object]) -> None:
    """Answer what comes over the line until nobody asks any more; an error is an answer."""
    while True:
        try:
            request = line.recv()
        except EOFError:
            return
        try:
            message = answer(request)
        except Exception as error:
            message = _Failure.of(error)
        line.send(message)


def wait_for(workers: Sequence[Worker], timeout: float | None = None) -> list[Worker]:
    """Return the workers that have said something or ended, as soon as there is one."""
    ready = set(wait([worker.fileno() for worker in workers], timeout))
    return [worker for worker in workers if worker.fileno() in ready]


@dataclass(frozen=True, eq=False)
class Assignment(Generic[JobT]):
    """A job and the worker that does it."""

    job: JobT
    worker: Worker
    slot: int
    """0 … workers−1: which of those that work at the same time"""
    attempt: int


class Supervisor(Generic[JobT]):
    """Gives jobs to workers, and those of lost workers to others, a limited number of times."""

    def __init__(
        self, start: Callable[[], Worker], jobs: Iterable[JobT], *, workers: int, attempts: int
    ) -> None:
        self._start, self._attempts = start, attempts
        self._waiting = deque((job, 1) for job in jobs)
        self._free: dict[int, Worker | None] = dict.fromkeys(range(workers))
        self._running: dict[int, Assignment[JobT]] = {}

    def __enter__(self) -> Supervisor[JobT]:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in [*self._free.values(), *(one.worker for one in self._running.values())]:
            if worker is not None:
                worker.close()

    @property
    def n_unfinished(self) -> int:
        """How many jobs wait or are being done."""
        return len(self._waiting) + len(self._running)

    def assign(self) -> list[Assignment[JobT]]:
        """Give waiting jobs to free workers; return them, to be begun."""
        begun = []
        while self._waiting and self._free:
            job, attempt = self._waiting.popleft()
            slot = min(self._free)
            worker = self._free.pop(slot) or self._start()
            self._running[slot] = Assignment(job, worker, slot, attempt)
            begun.append(self._running[slot])
        return begun

    def wait(self, timeout: float | None = None) -> list[Assignment[JobT]]:
        """Return the assignments whose workers have said something or ended, slot by slot."""
        by_worker = {
            self._running[slot].worker: self._running[slot] for slot in sorted(self._running)
        }
        return [by_worker[worker] for worker in wait_for(list(by_worker), timeout)]

    def finish(self, done: Assignment[JobT], *, keep_worker: bool = False) -> None:
        """Take a job as done; its worker is kept for another, or ended."""
        keeps = keep_worker and bool(self._waiting)
        if not keeps:
            done.worker.close()
        del self._running[done.slot]
        self._free[done.slot] = done.worker if keeps else None

    def retry(self, lost: Assignment[JobT]) -> bool:
        """End a worker and let another begin its job anew; False where that was the last time."""
        self.finish(lost)
        if lost.attempt >= self._attempts:
            return False
        self._waiting.appendleft((lost.job, lost.attempt + 1))
        return True


def run_each(
    function: Callable[[JobT], ResultT], jobs: Iterable[JobT], workers: int
) -> Iterator[tuple[JobT, ResultT]]:
    """Yield each job with its result as it ends.

    A process does one job and ends: environments hold on to memory, processes give it back. When
    a process is killed, its job is started again; an error in one ends them all.
    """
    start = partial(Worker, serve, function)
    with Supervisor(start, jobs, workers=workers, attempts=MAX_ATTEMPTS) as supervisor:
        while supervisor.n_unfinished:
            for begun in supervisor.assign():
                begun.worker.send(begun.job)
            for ready in supervisor.wait():
                try:
                    result: ResultT = ready.worker.receive()
                except WorkerLostError as error:
                    if supervisor.retry(ready):
                        continue
                    raise StrapError(
                        f"worker processes were killed {MAX_ATTEMPTS} times with "
                        f"{1 + supervisor.n_unfinished} jobs left (memory?): use fewer "
                        "--workers and start again; what is done is kept"
                    ) from error
                supervisor.finish(ready)
                yield ready.job, result
