"""Worker processes: starting them, sending them messages, and replacing them when they are killed.

A worker is a new Python process that does not import the parent's script, so a script that starts
workers is not run again in each of them. A worker ends when its standard input is closed: when this
process ends, however it ends.
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
"""How often `run_each` starts a job whose processes are killed."""


class WorkerError(Exception):
    """An error of a worker process."""


class WorkerLostError(WorkerError):
    """The worker's process has ended."""


class WorkerFailedError(WorkerError):
    """The worker raised an error other than a StrapError; the notes have its traceback."""


@dataclass(frozen=True)
class _Failure:
    """An error in a worker, in the form in which it is sent to the parent."""

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
    """A process that runs `target(connection, *arguments)`; `receive` waits, `send` does not."""

    def __init__(
        self, target: Callable[..., None], *arguments: Any, descriptors: Sequence[int] = ()
    ) -> None:
        """Start the process.

        Args:
            target: an importable function; its first argument is the connection to this process.
            arguments: its other arguments.
            descriptors: open files that the process inherits under the same numbers.
        """
        ours, theirs = socket.socketpair()
        paths = [str(path) for path in sys.path]
        code = f"import sys; sys.path[:] = {paths}; from {__name__} import main"
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", f"{code}; main({theirs.fileno()})"],
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno(), *descriptors],
                start_new_session=True,  # only this process handles Ctrl-C
            )
        self._connection = Connection(ours.detach())
        self._task: bytes | None = pickle.dumps((target, arguments))

    def fileno(self) -> int:
        """Return the descriptor of the connection, to wait on."""
        return self._connection.fileno()

    def send(self, message: object) -> None:
        """Send a message; the target is sent before the first one.

        If the worker has ended, the next `receive` raises the error.
        """
        with suppress(OSError):
            if self._task is not None:  # not in __init__, where sending would block
                self._connection.send_bytes(self._task)
                self._task = None
            self._connection.send(message)

    def receive(self) -> Any:
        """Return the next message, or raise the worker's error, or `WorkerLostError`."""
        try:
            message = self._connection.recv()
        except (EOFError, OSError) as error:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=5)
            code = self.process.returncode
            raise WorkerLostError(f"its process ended (exit code {code})") from error
        if isinstance(message, _Failure):
            raise message.error
        return message

    def close(self) -> None:
        """End the process; a second call does nothing."""
        self._connection.close()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.kill()
        self.process.wait()


def main(descriptor: int) -> None:
    """Run a worker's target, which is the first message on its connection."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    connection = Connection(descriptor)
    with suppress(EOFError, OSError):  # the parent has closed the connection
        task = connection.recv_bytes()
        try:
            target, arguments = pickle.loads(task)  # trusted: sent by the parent process
            target(connection, *arguments)
        except Exception as error:
            connection.send(_Failure.of(error))


def _end_with_parent() -> None:
    """End this process when its parent has closed our standard input or has ended."""
    while os.read(0, 1):
        pass
    os._exit(1)


def serve(connection: Connection, answer: Callable[[Any], object]) -> None:
    """Answer requests until the parent closes the connection; errors are sent as answers."""
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        try:
            message = answer(request)
        except Exception as error:
            message = _Failure.of(error)
        connection.send(message)


def wait_for(workers: Sequence[Worker], timeout: float | None = None) -> list[Worker]:
    """Wait until a worker has sent a message or ended; return all such workers."""
    ready = set(wait([worker.fileno() for worker in workers], timeout))
    return [worker for worker in workers if worker.fileno() in ready]


@dataclass(frozen=True, eq=False)
class Assignment(Generic[JobT]):
    """A job and the worker that does it."""

    job: JobT
    worker: Worker
    slot: int
    """0 … workers−1; workers that run at the same time have different slots"""
    attempt: int


class Supervisor(Generic[JobT]):
    """Assigns jobs to workers, and a limited number of times again when a worker is lost."""

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
        """The number of jobs that are waiting or running."""
        return len(self._waiting) + len(self._running)

    def assign(self) -> list[Assignment[JobT]]:
        """Assign waiting jobs to free workers; return the assignments, for the caller to start."""
        assigned = []
        while self._waiting and self._free:
            job, attempt = self._waiting.popleft()
            slot = min(self._free)
            worker = self._free.pop(slot) or self._start()
            self._running[slot] = Assignment(job, worker, slot, attempt)
            assigned.append(self._running[slot])
        return assigned

    def wait(self, timeout: float | None = None) -> list[Assignment[JobT]]:
        """Wait for messages or ends of workers; return their assignments, in order of slots."""
        by_worker = {
            self._running[slot].worker: self._running[slot] for slot in sorted(self._running)
        }
        return [by_worker[worker] for worker in wait_for(list(by_worker), timeout)]

    def finish(self, done: Assignment[JobT], *, keep_worker: bool = False) -> None:
        """Mark a job as done; keep its worker for another job, or end it."""
        keeps = keep_worker and bool(self._waiting)
        if not keeps:
            done.worker.close()
        del self._running[done.slot]
        self._free[done.slot] = done.worker if keeps else None

    def retry(self, lost: Assignment[JobT]) -> bool:
        """End a worker and queue its job again; return False if it has no attempts left."""
        self.finish(lost)
        if lost.attempt >= self._attempts:
            return False
        self._waiting.appendleft((lost.job, lost.attempt + 1))
        return True


def run_each(
    function: Callable[[JobT], ResultT], jobs: Iterable[JobT], workers: int
) -> Iterator[tuple[JobT, ResultT]]:
    """Yield each job with its result when it is done.

    Each job runs in a new process, because environments do not release their memory before the
    process ends. If a process is killed, its job is started again. An error in one job ends all.
    """
    start = partial(Worker, serve, function)
    with Supervisor(start, jobs, workers=workers, attempts=MAX_ATTEMPTS) as supervisor:
        while supervisor.n_unfinished:
            for assigned in supervisor.assign():
                assigned.worker.send(assigned.job)
            for ready in supervisor.wait():
                try:
                    result: ResultT = ready.worker.receive()
                except WorkerLostError as error:
                    if supervisor.retry(ready):
                        continue
                    raise StrapError(
                        f"worker processes were killed {MAX_ATTEMPTS} times with "
                        f"{1 + supervisor.n_unfinished} jobs left (memory?): use fewer --workers "
                        "and start again; finished work is kept"
                    ) from error
                supervisor.finish(ready)
                yield ready.job, result
