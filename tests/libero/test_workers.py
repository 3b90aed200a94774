from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from strap.errors import StrapError
from strap.libero.workers import run_each


def die_once(marker: str) -> int:
    if not Path(marker).exists():
        Path(marker).write_text("was here")
        os.kill(os.getpid(), signal.SIGKILL)
    return 7


def die(_: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_jobs_of_a_killed_process_are_done_again(tmp_path: Path) -> None:
    marker = str(tmp_path / "marker")
    assert list(run_each(die_once, [marker], 1)) == [(marker, 7)]


def test_processes_that_are_always_killed_are_reported() -> None:
    with pytest.raises(StrapError, match="killed 4 times with 1 jobs left"):
        list(run_each(die, ["job"], 1))


def fail(word: str) -> None:
    raise StrapError(f"no {word}")


def square(number: int) -> int:
    return number * number


def test_every_job_is_done_once() -> None:
    assert sorted(run_each(square, range(5), 3)) == [(n, n * n) for n in range(5)]


def test_an_error_reaches_the_one_who_asked() -> None:
    with pytest.raises(StrapError, match="no luck"):
        list(run_each(fail, ["luck"], 2))
