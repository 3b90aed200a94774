"""Functions in children with limits on time, processor, memory and file sizes.

A child is forked from a process that has imported everything and started no thread, which takes
ten milliseconds; a new interpreter would take seconds.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Limits:
    """What one child may use."""

    wall: float = 30.0
    """seconds, after which it is killed"""
    cpu: int = 30
    """seconds of processor, after which the kernel kills it"""
    resident: int = 2 << 30
    """bytes of memory at its peak, judged by ru_maxrss when it has ended"""
    address_space: int = 3 << 30
    """bytes it may map beyond what it was forked with (RLIMIT_AS): threads' stacks and arenas map
    more than they touch, so this is more than `resident`"""
    file_size: int = 1 << 28
    """bytes of a file it writes"""


@dataclass(frozen=True)
class Ended:
    """How a child ended."""

    code: int
    """its exit code; below 0: the signal that ended it"""
    seconds: float
    resident: int
    """bytes at its peak"""
    is_late: bool
    """it was killed after `Limits.wall`, or by the kernel after `Limits.cpu`"""


@dataclass(frozen=True)
class _Running:
    key: str
    started: float
    wall: float


class Children:
    """Runs functions in forked children, a few at a time."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._running: dict[int, _Running] = {}

    def __len__(self) -> int:
        return len(self._running)

    @property
    def is_full(self) -> bool:
        """Whether `wait` must be called before the next `start`."""
        return len(self._running) >= self.jobs

    def start(self, key: str, function: Callable[[], None], log: Path, limits: Limits) -> None:
        """Run a function in a child of its own; what it prints goes to `log`."""
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child:
            self._running[child] = _Running(key, time.monotonic(), limits.wall)
            return
        code = 70
        try:
            os.setsid()
            _redirect(log)
            _restrict(limits)
            function()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def wait(self) -> tuple[str, Ended]:
        """Wait for the next child to end; what it left running ends too."""
        while True:
            for child, running in self._running.items():
                seconds = time.monotonic() - running.started
                is_late = seconds > running.wall
                if is_late:
                    _kill_group(child)
                done, status, used = os.wait4(child, 0 if is_late else os.WNOHANG)
                if done:
                    _kill_group(child)
                    del self._running[child]
                    code = os.waitstatus_to_exitcode(status)
                    is_late = is_late or code == -signal.SIGXCPU
                    return running.key, Ended(code, seconds, _peak(used), is_late)
            time.sleep(0.003)

    def stop(self) -> None:
        """End those that still run."""
        for child in self._running:
            _kill_group(child)
            os.waitpid(child, 0)
        self._running.clear()


def _peak(used: resource.struct_rusage) -> int:
    return used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _kill_group(child: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)


def _redirect(log: Path) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)


def _restrict(limits: Limits) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu, limits.cpu + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file_size, limits.file_size))
    statm = Path("/proc/self/statm")
    if statm.is_file():  # elsewhere the kernel does not enforce it anyway
        mapped = int(statm.read_text().split()[0]) * resource.getpagesize()
        most = mapped + limits.address_space
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
