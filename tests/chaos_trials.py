"""One command disturbed in one way: killed, started twice, or on a full disk."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos_children import Aim, Ended, Order, Server
from tests.chaos_commands import Command, needed, write_datasets
from tests.chaos_results import compare

KINDS = ("kill", "twice", "full")
FAULTS = ("left over", "different", "blocked", "traceback", "unclear")
"""what can be wrong: files besides; other content; no second run succeeds; a traceback; an error in
other than one line with exit code 2"""
ROOM = 64 << 20
"""bytes of a mounted disk once it is no longer full"""


@dataclass(frozen=True)
class Trial:
    """One command disturbed in a way that follows from the seed."""

    command: Command
    kind: str
    number: int
    seed: int

    @property
    def id(self) -> str:
        """Its name, for `--trial`."""
        return f"{self.command.name}:{self.kind}:{self.number}"

    def chance(self) -> random.Random:
        """Everything random about it."""
        return random.Random(f"{self.seed}:{self.id}")


@dataclass(frozen=True)
class Undisturbed:
    """What a command does when nobody disturbs it."""

    result: Path
    seconds: float
    changes: int
    """of files, as far as they can be aimed at"""


@dataclass
class Outcome:
    """What came of a trial."""

    kills: int = 0
    what: list[str] = field(default_factory=list)
    """what was done, in order"""
    faults: list[tuple[str, str]] = field(default_factory=list)
    """(one of FAULTS, what about it)"""

    def look_at(self, ended: Ended) -> None:
        """Note what no command may ever show."""
        if found := re.search(r"Traceback|Exception ignored", ended.shown):
            self.faults.append(("traceback", ended.shown[found.start() :][:2000]))
        elif ended.code == 2 and not _is_one_line(ended.shown):
            self.faults.append(("unclear", ended.shown[-400:]))
        if ended.hung:
            self.faults.append(("blocked", "no end within our patience"))


def _is_one_line(shown: str) -> bool:
    errors = [line for line in shown.splitlines() if line.startswith("strap: error: ")]
    return len(errors) == 1 and shown.strip().splitlines()[-1] == errors[0]


class Session:
    """The folders and the undisturbed results of all trials."""

    def __init__(self, work: Path, server: Server) -> None:
        self.work, self.server = work, server
        self.inputs, self.place = work / "inputs", work / "place"
        self._undisturbed: dict[str, Undisturbed] = {}
        if not (self.inputs / "data").is_dir():
            write_datasets(self.inputs)

    def order(self, command: Command, log: str = "shown", **options: Any) -> Order:
        """The command, in the folder where every trial happens: results may name it."""
        words, place = command.given(self.inputs), str(self.place)
        return Order(words, place, str(self.work / log), fresh=command.simulator, **options)

    def run(self, command: Command, **options: Any) -> Ended:
        """Run a command to its end."""
        return self.server.start(self.order(command, **options)).wait()

    def clear(self) -> None:
        """An empty folder."""
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir(parents=True)

    def undisturbed(self, command: Command) -> Undisturbed:
        """Run a command once without disturbing it; the result is kept."""
        if command.name in self._undisturbed:
            return self._undisturbed[command.name]
        self.clear()
        if words := needed(command, self.inputs):
            log = str(self.work / "preparation")
            self._must_end_well(self.server.start(Order(words, str(self.place), log)).wait())
            self.clear()
        counted = self.work / "changes"
        ended = self.run(command, changes_log=None if command.simulator else str(counted))
        self._must_end_well(ended)
        result = self.work / "undisturbed" / command.name
        shutil.rmtree(result, ignore_errors=True)
        shutil.copytree(self.place, result)
        changes = 0 if command.simulator else int(counted.read_text())
        self._undisturbed[command.name] = Undisturbed(result, ended.seconds, changes)
        return self._undisturbed[command.name]

    def _must_end_well(self, ended: Ended) -> None:
        if ended.code:
            raise SystemExit(f"undisturbed, it ends with {ended.code}:\n{ended.shown}")

    def conclude(self, trial: Trial, outcome: Outcome) -> None:
        """Run the command to its end and compare."""
        ended = self.run(trial.command)
        outcome.look_at(ended)
        if ended.code:
            outcome.faults.append(("blocked", ended.shown[-400:].strip()))
        self.judge(trial, outcome)

    def judge(self, trial: Trial, outcome: Outcome) -> None:
        """Compare the folder with the undisturbed one."""
        differences = compare(self.place, self.undisturbed(trial.command).result)
        if differences.left_over:
            outcome.faults.append(("left over", ", ".join(differences.left_over)))
        if differences.changed or differences.missing:
            names = differences.changed + [f"{name} (missing)" for name in differences.missing]
            outcome.faults.append(("different", ", ".join(names)))


def run_trial(session: Session, trial: Trial) -> Outcome:
    """Disturb one command in one way."""
    session.undisturbed(trial.command)
    session.clear()
    return {"kill": kill, "twice": start_twice, "full": fill_disk}[trial.kind](session, trial)


def kill(session: Session, trial: Trial) -> Outcome:
    """Kill the command one to three times, then let it end."""
    chance, outcome = trial.chance(), Outcome()
    usual = session.undisturbed(trial.command)
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3))):
        aim, moment = None, chance.uniform(0, usual.seconds)
        if usual.changes and chance.random() < 0.6:
            delay = chance.choice((0.0, 0.0, chance.uniform(0, 0.01)))
            aim = Aim(str(session.place), chance.randrange(usual.changes), delay)
        child = session.server.start(session.order(trial.command, aim=aim))
        if aim is None and not child.ends_within(moment):
            child.kill()
        ended = child.wait()
        if ended.code != -9:
            outcome.look_at(ended)
            if ended.code:
                outcome.faults.append(("blocked", ended.shown[-400:].strip()))
            break
        outcome.kills += 1
        outcome.what.append(f"at change {aim.change}" if aim else f"after {moment:.2f} s")
    session.conclude(trial, outcome)
    return outcome


def start_twice(session: Session, trial: Trial) -> Outcome:
    """Start the command twice: both may succeed, or one and the other says why not, in a line.

    In every other trial one of them is killed; the other goes on, and a third must end well.
    """
    chance, outcome = trial.chance(), Outcome()
    usual = session.undisturbed(trial.command)
    between = chance.choice((0.0, chance.uniform(0, usual.seconds)))
    first = session.server.start(session.order(trial.command))
    first.ends_within(between)
    second = session.server.start(session.order(trial.command, "shown by the second"))
    outcome.what.append(f"again after {between:.2f} s")
    if trial.number % 2:
        victim = chance.choice((first, second))
        victim.ends_within(chance.uniform(0, usual.seconds))
        victim.kill()
    both = [first.wait(), second.wait()]
    killed = [ended for ended in both if ended.code == -9]
    outcome.kills = len(killed)
    rest = [ended for ended in both if ended.code != -9]
    for ended in rest:
        outcome.look_at(ended)
    codes = sorted(ended.code for ended in rest)
    if codes not in ([0, 0], [0, 2], *([[0], [2]] if killed else [])):
        outcome.faults.append(("blocked", "; ".join(ended.shown for ended in rest)))
    if killed:
        session.conclude(trial, outcome)
    else:
        session.judge(trial, outcome)
    return outcome


def fill_disk(session: Session, trial: Trial) -> Outcome:
    """Let the disk be full, or a file too large, at some place; then give it room and go on."""
    chance, outcome = trial.chance(), Outcome()
    sizes = [
        path.stat().st_size
        for path in session.undisturbed(trial.command).result.rglob("*")
        if path.is_file()
    ]
    if trial.number % 2 or trial.command.simulator:
        room = chance.randint(4096, 4096 + sum(sizes))
        with small_disk(session.place, room) as give_room:
            if give_room is not None:
                outcome.what.append(f"a disk of {room} bytes")
                _meet_full_disk(session, trial, outcome)
                subprocess.run(give_room, check=True)
                session.conclude(trial, outcome)
                return outcome
    if trial.command.simulator:  # it writes files of its own elsewhere, which a limit would hit
        return outcome
    limit = chance.randint(1000, max(1000, *sizes))  # what it says goes into a file, too
    outcome.what.append(f"files of at most {limit} bytes")
    _meet_full_disk(session, trial, outcome, file_bytes=limit)
    session.conclude(trial, outcome)
    return outcome


def _meet_full_disk(
    session: Session, trial: Trial, outcome: Outcome, *, file_bytes: int | None = None
) -> None:
    ended = session.run(trial.command, file_bytes=file_bytes)
    outcome.look_at(ended)
    if ended.code not in (0, 2):
        outcome.faults.append(("unclear", f"exit code {ended.code}: {ended.shown[-400:]}"))


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[list[str] | None]:
    """A real file system of some bytes, and how to give it room; None where we may not mount."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield ["mount", "-o", f"remount,size={ROOM}", str(folder)]
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
