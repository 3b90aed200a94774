"""A few of `make chaos`'s trials, and whether it would see a fault."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import h5py
import pytest
from tests import chaos
from tests.chaos_children import Server
from tests.chaos_commands import BY_NAME
from tests.chaos_results import compare
from tests.chaos_trials import Outcome, Session, Trial, run_trial


def test_a_kill_of_each_a_second_start_and_a_full_disk(capsys: pytest.CaptureFixture[str]) -> None:
    quick = ["embed", "retrieve", "convert-lerobot", "export-robomimic"]
    code = chaos.main(["--kills", "4", "--others", "1", "--seed", "0", "--only", *quick])
    shown = capsys.readouterr().out
    assert code == 0, shown
    assert "every second run as undisturbed" in shown


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with Server(training=False) as server:
        yield Session(tmp_path, server)


def test_what_is_wrong_is_told_with_how_to_see_it_again(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = Trial(BY_NAME["convert-robomimic"], "kill", 0, seed=3)
    expected = session.undisturbed(trial.command).result
    (expected / "more").write_text("a file that the command does not write")
    with h5py.File(expected / "out.hdf5", "r+") as file:
        file["data/demo_1/actions"][4, 2] += 1
    report = chaos.Report()
    report.add(trial, run_trial(session, trial))
    shown = capsys.readouterr().out
    assert "different: out.hdf5, more (missing)" in shown
    assert "python tests/chaos.py --seed 3 --trial convert-robomimic:kill:0" in shown
    assert report.faults == {("convert-robomimic", "different"): 1}
    blocked = Outcome()
    session.clear()
    (session.place / "out.hdf5").write_text("somebody else's")
    session.conclude(trial, blocked)
    assert "exists already" in dict(blocked.faults)["blocked"]


def test_a_hidden_file_more_or_a_byte_is_a_difference(tmp_path: Path) -> None:
    for name, seconds in (("a", 1.5), ("b", 2.5)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "video.mp4").write_bytes(b"packets")
        value = {"matches": 3, "seconds": {"search": seconds}}
        (tmp_path / name / "manifest.json").write_text(json.dumps(value))
        (tmp_path / name / "report.html").write_text(
            f'[["matches", "3"], ["retrieved in", "{seconds}"]]'
        )
    one, other = tmp_path / "a", tmp_path / "b"
    assert not compare(one, other)
    (one / ".video.mp4.1a2b.tmp").write_bytes(b"pack")
    assert str(compare(one, other)) == "left over: .video.mp4.1a2b.tmp"
    assert str(compare(other, one)) == "missing: .video.mp4.1a2b.tmp"
    (one / ".video.mp4.1a2b.tmp").unlink()
    (one / "video.mp4").write_bytes(b"packetz")
    (one / "manifest.json").write_text(json.dumps({"matches": 4, "seconds": {}}))
    (one / "report.html").write_text('[["matches", "4"], ["retrieved in", "2.5"]]')
    assert compare(one, other).changed == ["manifest.json", "report.html", "video.mp4"]
