"""The fuzzer finds what is planted, repeats what it found, and finds nothing else."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path

from tests.fuzzing.damage import copy_input, damage
from tests.fuzzing.subjects import build_store

ROOT = Path(__file__).resolve().parents[1]
RUN = "import sys; from tests.fuzzing.command import main; sys.exit(main(sys.argv[1:]))"
PLANT = """
import os, signal, sys, time
import strap
from strap.errors import StrapError

def crash(): os.kill(os.getpid(), signal.SIGSEGV)
def hang(): time.sleep(60)
def grow(): bytearray(4 << 30)
def forget(): {}["planted"]

opened = strap.open_store
def broken(path):
    try:
        return opened(path)
    except StrapError:
        (crash, hang, grow, forget)[int(path.parent.name) // 16 % 4]()
strap.open_store = broken
"""


def fuzz(folder: Path, *words: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run the fuzzer; in a process of its own, since it forks."""
    return subprocess.run(
        [sys.executable, "-c", before + RUN, *words],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)},
    )


def test_a_seeded_slice_finds_no_failure(tmp_path: Path) -> None:
    done = fuzz(tmp_path, "--cases", "32", "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("no failure")
    assert re.search(r" all +32 ", done.stdout)
    assert not list(tmp_path.glob("strap-fuzz-*"))


def test_a_planted_bug_of_each_kind_is_found(tmp_path: Path) -> None:
    words = ("--only", "store", "--wall", "5")
    done = fuzz(tmp_path, *words, "--cases", "48", "--seed", "2", before=PLANT)
    assert done.returncode == 1, done.stdout + done.stderr
    for failure in ("signal", "timeout", "memory", "traceback"):
        assert re.search(rf" × store\S*, {failure}: ", done.stdout), done.stdout
    case = re.findall(r"KeyError: 'planted'\n.* --case (\S+)", done.stdout)[0]
    again = fuzz(tmp_path, *words, "--case", case, before=PLANT)
    assert again.returncode == 1
    assert "outcome  traceback: " in again.stdout
    assert "KeyError: 'planted'" in again.stdout


def test_damage_follows_from_its_seed(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    build_store(tmp_path / "made")
    contents = []
    for name in ("one", "other", "third"):
        copy_input(tmp_path / "made/store", tmp_path / name)
        seed = 3 if name == "third" else 2
        done = damage(random.Random(seed), tmp_path / name, has_checksums=True)
        files = sorted(file for file in (tmp_path / name).rglob("*") if file.is_file())
        contents.append((done, [file.read_bytes() for file in files]))
    assert contents[0] == contents[1] != contents[2]
