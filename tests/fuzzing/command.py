"""The fuzzer's command line: makes inputs, runs cases, prints what came of them."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import count, islice
from pathlib import Path

from tests.fuzzing.cases import Outcome, judge, log_of, read_case, remove_case, run_case
from tests.fuzzing.children import Children, Ended, Limits
from tests.fuzzing.digest import Digest
from tests.fuzzing.subjects import SUBJECTS, Subject
from tests.fuzzing.summary import Summary, show_case
from tests.fuzzing.uses import search_store
from tests.threads import count_threads

from strap.cpus import count_cpus

SETUP = Limits(wall=300, cpu=300)
"""for making the inputs, which may compile"""


class Fuzzer:
    """Makes the inputs in a folder, then runs cases by their numbers."""

    def __init__(self, folder: Path, seed: int, *, jobs: int, limits: Limits) -> None:
        self.folder, self.seed, self.limits = folder, seed, limits
        self._children = Children(jobs)
        self._sound: dict[str, dict[str, str]] = {}

    def make_inputs(self, subjects: Iterable[Subject]) -> None:
        """Write every input, then read it undamaged: one that can't be read stops everything."""
        for kind in ("inputs", "sound"):
            for subject in subjects:
                self._start(f"{kind}/{subject.name}", subject, None, SETUP)
                if self._children.is_full:
                    self._require_made(*self._children.wait())
            while self._children:
                self._require_made(*self._children.wait())

    def run(self, numbers: Iterable[int]) -> Iterator[tuple[int, Outcome]]:
        """Run cases, several at a time, and yield each as it ends."""
        try:
            for number in numbers:
                seed = f"{self.seed}.{number}"
                self._start(f"cases/{number}", subject_of(number), seed, self.limits)
                if self._children.is_full:
                    yield self._finish()
            while self._children:
                yield self._finish()
        finally:
            self._children.stop()

    def _start(self, place: str, subject: Subject, seed: str | None, limits: Limits) -> None:
        folder, source = self.folder / place, self.folder / "inputs" / subject.name
        folder.mkdir(parents=True)
        if folder == source:
            function = partial(subject.build, folder)
        else:
            function = partial(run_case, source, subject, folder, seed)
        self._children.start(place, function, log_of(folder), limits)

    def _finish(self) -> tuple[int, Outcome]:
        place, ended = self._children.wait()
        folder = self.folder / place
        number = int(folder.name)
        outcome = judge(folder, ended, self.limits, self._sound[subject_of(number).name])
        return number, outcome

    def _require_made(self, place: str, ended: Ended) -> None:
        folder = self.folder / place
        said = read_case(folder) if folder.parent.name == "sound" and not ended.code else {}
        if ended.code or said.get("errors"):
            errors = [error["traceback"] for error in said.get("errors", ())]
            told = "\n".join([*errors, log_of(folder).read_text()])
            sys.exit(f"the undamaged input '{folder.name}' can't be made or read: {told}")
        if said:
            subject = next(own for own in SUBJECTS if own.name == folder.name)
            self._sound[folder.name] = {key: said[key] for key in ("layout", "content")}
            warm_up(said["modules"], folder, subject)


def warm_up(modules: Iterable[str], folder: Path, subject: Subject) -> None:
    """Import what reading an input imports, and load what searching it compiles.

    Children need not do it then; no thread may be left running, for they are forked from here.
    """
    for name in modules:
        if name not in sys.modules and name != "__main__":
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    if search_store in subject.commands:
        search_store(folder / subject.place, folder, Digest())
    end = time.monotonic() + 5
    while count_threads() > 1:  # one that has been joined is there for a moment longer
        if time.monotonic() > end:
            sys.exit("a thread is running in the process that children are forked from")
        time.sleep(0.01)


def subject_of(number: int) -> Subject:
    """Cases go through the inputs in turn."""
    return SUBJECTS[number % len(SUBJECTS)]


def numbers_of(subjects: Sequence[Subject], cases: int | None, minutes: float) -> Iterator[int]:
    """Numbers of cases of these inputs, until there are enough or time is up."""
    end = time.monotonic() + 60 * minutes if cases is None else float("inf")
    wanted = (number for number in count() if subject_of(number) in subjects)
    for number in islice(wanted, cases):
        if time.monotonic() > end:
            return
        yield number


def fuzz(given: argparse.Namespace, folder: Path) -> int:
    """Run cases and print what happened; returns the exit code."""
    subjects = [subject for subject in SUBJECTS if given.only in subject.name]
    if not subjects:
        sys.exit(f"no input is called {given.only}: {', '.join(s.name for s in SUBJECTS)}")
    fuzzer = Fuzzer(folder, given.seed, jobs=given.jobs, limits=Limits(given.wall))
    fuzzer.make_inputs(subjects)
    summary = Summary(given.seed)
    for number, outcome in fuzzer.run(numbers_of(subjects, given.cases, given.minutes)):
        summary.add(number, subject_of(number).name, outcome)
        remove_case(folder / "cases" / str(number))
    print(summary)
    return 1 if summary.failures else 0


def repeat(case: str, folder: Path, limits: Limits) -> int:
    """Run one case again and show it whole; its files stay."""
    seed, number = map(int, case.split("."))
    fuzzer = Fuzzer(folder, seed, jobs=1, limits=limits)
    fuzzer.make_inputs([subject_of(number)])
    ((_, outcome),) = fuzzer.run([number])
    print(show_case(folder / "cases" / str(number), subject_of(number).name, outcome))
    return 1 if outcome.is_failure else 0


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="fuzz.py", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="how long, without --cases")
    parser.add_argument("--cases", type=int, help="how many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="inputs whose name has this in it")
    parser.add_argument("--case", help="SEED.NUMBER of one case to run again")
    parser.add_argument("--jobs", type=int, default=count_cpus(), help="cases at a time")
    parser.add_argument("--wall", type=float, default=30, help="seconds that a case may take")
    given = parser.parse_args(words)
    # Names of one length: inputs that hold their own path keep their size, and cases their places.
    folder = Path(tempfile.mkdtemp(prefix="strap-fuzz-"))
    if given.case:
        return repeat(given.case, folder, Limits(given.wall))
    try:
        return fuzz(given, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
