"""Run stages as processes: several at once, each by one runner only, and finished ones never."""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from types import FrameType

from strap.atomic import explain_write_errors
from strap.errors import StrapError, printable
from strap.experiments.plan import Stage
from strap.locks import Lock, try_lock

LOG_LINES = 12
"""number of lines to show of a failed command's log"""
TERMINATE_TIMEOUT = 10.0
"""seconds between SIGTERM and SIGKILL when commands are ended"""
POLL_SECONDS = 5.0
"""seconds between checks whether another runner has finished waiting stages"""
PARENT_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG


@dataclass
class Outcome:
    """The names of stages, by how they ended."""

    finished: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    """name -> reason"""
    blocked: set[str] = field(default_factory=set)
    """stages that need a failed one"""
    postponed: set[str] = field(default_factory=set)
    """stages that were not started before the deadline"""

    @property
    def ended(self) -> set[str]:
        """The stages that are finished, failed or blocked."""
        return self.finished | set(self.failed) | self.blocked


@dataclass(eq=False)
class _Running:
    stage: Stage
    process: subprocess.Popen[bytes]
    lock: Lock
    start_time: float


class Scheduler:
    """Runs each stage when its inputs are finished and a slot of its kind is free.

    Args:
        stages: the stages, in the order in which to start them.
        slots: kind -> how many run at once; one, for kinds that are missing.
        on_success: called with a stage whose command has succeeded and its seconds, to record
            that the stage is finished.
        tell: called with one line for each stage that ends.
        environment: environment variables for the commands, in addition to this process's.
        seconds: time until the deadline, after which only stages of `kind_after_deadline` start;
            running stages continue.
        kind_after_deadline: the kind of stages that start after the deadline, if all stages they
            need are finished or running.
        pause: seconds between two checks of the commands.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        slots: Mapping[str, int],
        on_success: Callable[[Stage, float], None],
        tell: Callable[[str], None],
        environment: Mapping[str, str] | None = None,
        seconds: float | None = None,
        kind_after_deadline: str | None = None,
        pause: float = 0.2,
    ) -> None:
        self.waiting = {stage.name: stage for stage in stages}
        kinds = {stage.name: stage.kind for stage in stages}
        self.late_kinds = {s.kind for s in stages if any(kinds[n] != s.kind for n in s.after)}
        """kinds with stages that wait for the end of other kinds"""
        self.slots, self.on_success, self.tell = slots, on_success, tell
        self.environment = {**os.environ, **(environment or {})}
        self.outcome = Outcome()
        self.running: dict[str, _Running] = {}
        self.pause, self.total = pause, len(stages)
        self.durations: dict[str, list[float]] = {}
        self.deadline = None if seconds is None else time.monotonic() + seconds
        self.kind_after_deadline = kind_after_deadline
        self.next_check = 0.0

    def run(self) -> Outcome:
        """Run all stages; when interrupted, end the commands and raise KeyboardInterrupt."""
        with interrupting(signal.SIGTERM):
            try:
                while self.waiting or self.running:
                    changed = self._collect() | self._start_ready()
                    if self.deadline is not None and time.monotonic() > self.deadline:
                        self._postpone()
                    if not changed:
                        time.sleep(self.pause)
            finally:
                self._end_all()
        return self.outcome

    def _postpone(self) -> None:
        """Postpone the stages that may not start after the deadline."""
        started = self.outcome.finished | self.running.keys()
        for name, stage in list(self.waiting.items()):
            if stage.kind != self.kind_after_deadline or not started.issuperset(stage.needs):
                self.outcome.postponed.add(name)
                del self.waiting[name]

    def _start_ready(self) -> bool:
        """Start all stages that can start; return whether anything changed."""
        changed = False
        busy = Counter(running.stage.kind for running in self.running.values())
        checks_all = time.monotonic() >= self.next_check
        if checks_all:
            self.next_check = time.monotonic() + POLL_SECONDS
        for name, stage in list(self.waiting.items()):
            is_full = busy[stage.kind] >= self.slots.get(stage.kind, 1)
            is_checked = checks_all or self._is_ready(stage) or self._is_blocked(stage)
            if is_checked and stage.is_finished():  # even if a stage that it needs has failed
                self.outcome.finished.add(name)
            elif self._is_blocked(stage):
                self.outcome.blocked.add(name)
            elif self._is_ready(stage) and not is_full and self._try_start(stage):
                busy[stage.kind] += 1
            else:
                continue
            del self.waiting[name]
            changed = True
        return changed

    def _is_blocked(self, stage: Stage) -> bool:
        return any(n in self.outcome.failed or n in self.outcome.blocked for n in stage.needs)

    def _is_ready(self, stage: Stage) -> bool:
        settled = self.outcome.ended | self.outcome.postponed
        return self.outcome.finished.issuperset(stage.needs) and settled.issuperset(stage.after)

    def _try_start(self, stage: Stage) -> bool:
        """Start a stage; return False if another runner runs it or has just finished it."""
        lock = try_lock(stage.lock)
        if lock is None:
            return False
        if stage.is_finished():
            lock.release()
            return False
        self.running[stage.name] = self._start(stage, lock)
        return True

    def _start(self, stage: Stage, lock: Lock) -> _Running:
        with explain_write_errors(stage.log), stage.log.open("ab") as log:
            log.write(f"$ {shlex.join(stage.command)}\n".encode())
            log.flush()
            process = subprocess.Popen(
                stage.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
                # The command holds the stage's lock too: if it outlives this process, no other
                # runner starts the same stage.
                pass_fds=(lock.fileno(),),
                preexec_fn=_die_with(os.getpid()),
            )
        return _Running(stage, process, lock, time.monotonic())

    def _collect(self) -> bool:
        """Process the commands that have ended; return whether there were any."""
        ended = [running for running in self.running.values() if running.process.poll() is not None]
        for running in ended:
            seconds = time.monotonic() - running.start_time
            self._record_end(running, seconds)
            del self.running[running.stage.name]
            running.lock.release()
        return bool(ended)

    def _record_end(self, running: _Running, seconds: float) -> None:
        stage, code = running.stage, running.process.returncode
        if code == 0:
            try:
                self.on_success(stage, seconds)
            except StrapError as error:
                self._fail(stage, str(error))
                return
            self.outcome.finished.add(stage.name)
            self.durations.setdefault(stage.kind, []).append(seconds)
            remaining = self._describe_remaining()
            self.tell(f"{self._counts()} {_label(stage)}: {_duration(seconds)}{remaining}")
            return
        end = f"exit code {code}" if code > 0 else f"ended by {signal.Signals(-code).name}"
        self._fail(stage, f"{end}; the end of '{stage.log}':\n{_last_lines(stage.log)}")

    def _fail(self, stage: Stage, why: str) -> None:
        self.outcome.failed[stage.name] = why
        self.tell(f"{self._counts()} FAILED {_label(stage)}: {why}")

    def _counts(self) -> str:
        return f"[{len(self.outcome.ended)}/{self.total}]"

    def _describe_remaining(self) -> str:
        """Describe the remaining stages and estimate their time.

        Kinds run in parallel, so the slowest one counts; late kinds are added.
        """
        stages = [*self.waiting.values(), *(running.stage for running in self.running.values())]
        counts = Counter(stage.kind for stage in stages if not stage.is_finished())
        if not counts:
            return ""
        listing = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        seconds = {
            kind: count * mean(self.durations[kind]) / self.slots.get(kind, 1)
            for kind, count in counts.items()
            if kind in self.durations
        }
        if not seconds:
            return f"; left: {listing}"
        late = sum(seconds.pop(kind, 0.0) for kind in self.late_kinds)
        return f"; left: {listing}, about {_duration(max(seconds.values(), default=0.0) + late)}"

    def _end_all(self) -> None:
        for running in self.running.values():
            _signal_group(running.process, signal.SIGTERM)
        deadline = time.monotonic() + TERMINATE_TIMEOUT
        for running in self.running.values():
            with suppress(subprocess.TimeoutExpired):
                running.process.wait(max(0.0, deadline - time.monotonic()))
            _signal_group(running.process, signal.SIGKILL)
            running.process.wait()
            running.lock.release()
        self.running.clear()


@contextmanager
def interrupting(number: signal.Signals) -> Iterator[None]:
    """Handle a signal like Ctrl-C within the block."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(number, interrupt)
    try:
        yield
    finally:
        signal.signal(number, before)


def _die_with(parent: int) -> Callable[[], None]:
    """Return a function for the child to call first, so that it ends when the runner is killed."""
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def prepare() -> None:
        if prctl is not None:
            prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)

    return prepare


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _last_lines(log: Path) -> str:
    lines = log.read_text(errors="replace").replace("\r", "\n").splitlines()
    return "\n".join(f"    {printable(line)}" for line in lines[-LOG_LINES:])


def _label(stage: Stage) -> str:
    return stage.name if stage.name.startswith(stage.kind) else f"{stage.kind} {stage.name}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
