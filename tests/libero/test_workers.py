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
