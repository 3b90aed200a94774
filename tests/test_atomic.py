"""Files that are whole or absent, and what killed processes leave of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from strap.atomic import remove_folder, remove_leftovers, replacing, write_json
from strap.errors import StrapError
from strap.locks import exclusive_lock, is_empty_folder

WRITER = """
import sys, time
from pathlib import Path
from strap.atomic import replacing
with replacing(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    print("writing", flush=True)
    time.sleep(60)
"""


def start_writer(path: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", WRITER, str(path)]
    writer = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert writer.stdout
    assert writer.stdout.readline() == "writing\n"
    return writer


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    writer = start_writer(tmp_path / "a.json")
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    assert len(names(tmp_path)) == 1
    write_json(tmp_path / "b.json", 1)  # another file's leftovers are not its business
    assert len(names(tmp_path)) == 2
    write_json(tmp_path / "a.json", 1)
    assert names(tmp_path) == ["a.json", "b.json"]


def test_what_is_being_written_stays(tmp_path: Path) -> None:
    writer = start_writer(tmp_path / "a.json")
    remove_leftovers(tmp_path)
    write_json(tmp_path / "a.json", 1)
    assert len(names(tmp_path)) == 2
    writer.kill()
    writer.wait()
    assert is_empty_folder(tmp_path) is False  # a.json
    assert names(tmp_path) == ["a.json"]


def test_temporary_names_are_unpredictable_and_follow_no_link(tmp_path: Path) -> None:
    seen = set()
    for _ in range(2):
        with replacing(tmp_path / "a") as temporary:
            seen.add(temporary.name)
            assert not temporary.is_symlink()
            temporary.write_text("x")
    assert len(seen) == 2
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / ".a.link.tmp").symlink_to(victim)
    with replacing(tmp_path / "a") as temporary:
        temporary.write_text("y")
    assert victim.read_text() == "precious"


def test_a_file_has_the_rights_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_json(tmp_path / "a", 1)
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_a_discarded_folder_is_gone_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("x")
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda *_, **__: None)  # killed right after the rename
        remove_folder(tmp_path / "a")
    assert not (tmp_path / "a").exists()
    remove_leftovers(tmp_path, "a")
    assert names(tmp_path) == []


def test_alone_holds_and_leaves_nothing(tmp_path: Path) -> None:
    lock = tmp_path / "out" / ".lock"
    with (
        exclusive_lock(lock, "writing 'out'"),
        pytest.raises(StrapError, match="another process is writing 'out': wait"),
        exclusive_lock(lock, "writing 'out'"),
    ):
        pass
    assert names(tmp_path) == []  # the folder was made for the lock alone
    (tmp_path / "out").mkdir()
    with exclusive_lock(lock, "writing 'out'"):
        (tmp_path / "out" / "file").write_text("x")
    assert names(tmp_path / "out") == ["file"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
@pytest.mark.parametrize("place", ["/proc/absent/a.json", "/proc/a.json"])
def test_where_nothing_can_be_created(place: str) -> None:
    with pytest.raises(StrapError, match=r"cannot write '/proc.*'.*; choose an output folder"):
        write_json(Path(place), {})
    with (
        pytest.raises(StrapError, match=r"cannot write '/proc.*'.*; choose an output folder"),
        exclusive_lock(Path(place), "writing"),
    ):
        pass


def test_a_file_that_is_read_while_writing_is_not_blamed_on_the_output(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "a"):
        (tmp_path / "absent").read_text()
