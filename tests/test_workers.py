"""Workers: jobs of killed ones are done again, errors come through, none outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from strap.errors import StrapError
from strap.workers import Worker, WorkerFailedError, WorkerLostError, run_each, serve


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


def divide(number: int) -> float:
    return 1 / number


def name_function(_: int) -> object:
    return lambda: None  # which cannot be sent


def test_a_bug_is_told_with_its_traceback_and_the_worker_goes_on() -> None:
    with closing(Worker(serve, divide)) as worker:
        worker.send(0)
        with pytest.raises(WorkerFailedError, match="ZeroDivisionError: division by zero") as told:
            worker.receive()
        assert "in divide" in told.value.__notes__[0]
        worker.send(4)
        assert worker.receive() == 0.25


def test_an_answer_that_cannot_be_sent_is_told() -> None:
    with pytest.raises(WorkerFailedError, match="name_function"):
        list(run_each(name_function, [1], 1))


def test_a_lost_worker_is_told_whenever_it_is_asked() -> None:
    with closing(Worker(serve, divide)) as worker:
        worker.process.kill()
        worker.process.wait()
        worker.send(1)
        with pytest.raises(WorkerLostError, match=r"ended \(exit code -9\)"):
            worker.receive()


def test_a_script_is_not_run_again_in_its_workers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from strap.workers import run_each\n"
        "from tests.test_workers import square\n"
        "print('begun', list(run_each(square, [2, 3], 1)))\n"
    )
    paths = os.pathsep.join(map(str, [Path(__file__).parents[1], *sys.path]))
    words = [sys.executable, str(script)]
    told = subprocess.run(
        words, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=True
    )
    assert told.stdout == "begun [(2, 4), (3, 9)]\n"


def note_and_sleep(folder: str) -> None:
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(600)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_processes_end_with_a_killed_parent(tmp_path: Path) -> None:
    script = (
        "from strap.workers import run_each\n"
        "from tests.test_workers import note_and_sleep\n"
        f"list(run_each(note_and_sleep, [{str(tmp_path)!r}] * 2, 2))\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[1])
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    parent.kill()
    parent.wait()
    children = [int(file.name) for file in tmp_path.iterdir()]
    wait_until(lambda: not any(is_running(child) for child in children))


def wait_until(holds: Callable[[], bool]) -> None:
    limit = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.1)


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
