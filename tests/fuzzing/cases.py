"""One case: a copy of an input, one damage to it, what a user would run, and how that went."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import av
from tests.fuzzing.children import Ended, Limits
from tests.fuzzing.damage import copy_input, damage
from tests.fuzzing.digest import Digest
from tests.fuzzing.subjects import Subject

import strap
from strap.errors import StrapError

REFUSED, SAME, CONTENT, LAYOUT = "refused", "same", "other content", "other layout"
TRACEBACK, SIGNAL, TIMEOUT, MEMORY = "traceback", "signal", "timeout", "memory"
OUTCOMES = (REFUSED, SAME, CONTENT, LAYOUT, TRACEBACK, SIGNAL, TIMEOUT, MEMORY)
FAILURES = (TRACEBACK, SIGNAL, TIMEOUT, MEMORY)


@dataclass(frozen=True)
class Outcome:
    """How a case ended."""

    result: str
    """one of OUTCOMES"""
    kind: str
    """what was damaged, and how"""
    message: str
    """what was said, or what went wrong where"""
    seconds: float
    resident: int

    @property
    def is_failure(self) -> bool:
        """Whether the program is to blame."""
        return self.result in FAILURES


def prepare(source: Path, subject: Subject, folder: Path) -> Path:
    """Copy the input into the case's folder; what lies beside it is linked."""
    (folder / "out").mkdir()
    for beside in source.iterdir():
        if beside.name != subject.place:
            (folder / beside.name).symlink_to(beside)
    copy_input(source / subject.place, folder / subject.place)
    return folder / subject.place


def run_case(source: Path, subject: Subject, folder: Path, seed: str | None) -> None:
    """Damage a copy (not where there is no seed) and use it; leaves `case.json` in the folder."""
    path = prepare(source, subject, folder)
    said: dict[str, Any] = {"kind": "none", "file": "", "errors": []}
    if seed is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            done = damage(random.Random(seed), path, has_checksums=subject.has_checksums)
        said |= asdict(done)
    _write(folder, said)  # now too: it may not end well
    digest = Digest(hidden=str(folder))
    for command in subject.commands:
        try:
            command(path, folder / "out", digest)
        except BaseException as error:
            said["errors"].append(_describe(command.__name__, error))
    modules = sorted(sys.modules) if seed is None else []
    _write(folder, {**said, **digest.hashes, "modules": modules, "ended": True})


def _write(folder: Path, said: dict[str, Any]) -> None:
    (folder / "case.json").write_text(json.dumps(said))


def _describe(command: str, error: BaseException) -> dict[str, Any]:
    """An error in plain values; `is_ours` where it is one line for the user."""
    text = str(error).encode(errors="backslashreplace").decode()
    return {
        "command": command,
        "is_ours": isinstance(error, StrapError),
        "is_memory": any(map(_is_memory, _chain(error))),
        "message": f"{type(error).__name__}: {text}",
        "place": _place(error),
        "traceback": "".join(traceback.format_exception(error)),
    }


def _is_memory(error: BaseException) -> bool:
    """Whether memory was asked for that a larger machine would have given.

    FFmpeg is not asked about: what it refuses is beyond its own limit on any machine.
    """
    return isinstance(error, MemoryError) and not isinstance(error, av.error.FFmpegError)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _place(error: BaseException) -> str:
    """The innermost line of ours that the error went through."""
    root = os.path.dirname(strap.__file__)  # noqa: PTH120
    own = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(root)]
    frame = own[-1] if own else None
    return f"{os.path.relpath(frame.filename, root)}:{frame.lineno}" if frame else "outside"


def judge(folder: Path, ended: Ended, limits: Limits, sound: dict[str, str]) -> Outcome:
    """Say how a case went; `sound` are the hashes of the undamaged input."""
    said, log = read_case(folder), log_of(folder)

    def outcome(result: str, message: str) -> Outcome:
        return Outcome(result, said["kind"], message, ended.seconds, ended.resident)

    if ended.is_late:
        return outcome(TIMEOUT, f"not done after {limits.wall:g} s, or {limits.cpu} s of processor")
    if ended.code < 0:
        return outcome(SIGNAL, f"ended by signal {-ended.code}")
    if ended.code or "ended" not in said:
        return outcome(TRACEBACK, f"the fuzzer itself failed: {_tail(log)}")
    for error in said["errors"]:
        if not error["is_ours"] and not error["is_memory"]:
            return outcome(TRACEBACK, f"{error['command']}, {error['place']}: {error['message']}")
    if ended.resident > limits.resident:
        return outcome(MEMORY, f"{ended.resident >> 20} MiB resident")
    if scarce := next((error for error in said["errors"] if error["is_memory"]), None):
        return outcome(MEMORY, f"{scarce['command']}, {scarce['place']}: {scarce['message']}")
    if "Traceback (most recent call last)" in log.read_text(errors="replace"):
        return outcome(TRACEBACK, f"printed: {_tail(log)}")
    if said["errors"]:
        return outcome(REFUSED, said["errors"][0]["message"])
    if said["layout"] != sound["layout"]:
        return outcome(LAYOUT, said["file"])
    return outcome(SAME if said["content"] == sound["content"] else CONTENT, said["file"])


def read_case(folder: Path) -> dict[str, Any]:
    """What the case has written about itself so far."""
    file = folder / "case.json"
    said: dict[str, Any] = {"kind": "not damaged yet", "file": "", "errors": []}
    return json.loads(file.read_text()) if file.is_file() else said


def log_of(folder: Path) -> Path:
    """Where what the case prints goes."""
    return folder.with_name(f"{folder.name}.log")


def remove_case(folder: Path) -> None:
    """Delete what the case has left."""
    shutil.rmtree(folder, ignore_errors=True)
    log_of(folder).unlink(missing_ok=True)


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.is_file() else []
    return lines[-1] if lines else "it printed nothing"
