"""Texts out of files are shown, never obeyed: by terminals, pages and pictures."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import h5py
import pytest

import strap
from strap.cli import _Printable, main
from strap.cli.options import print_json
from strap.errors import printable
from strap.figures.retrieval import write_figures
from strap.runs import open_run
from strap.synthetic import make_planted
from strap.view.run_views import RunView
from strap.view.single_file import write_single_file

PRIOR = Path(__file__).parent.parent / "samples" / "libero-mini" / "prior"
HOSTILE = '\x1b[2J\x9b31m<script>alert(1)</script> $\\frac{1}{$ \u202egnp \n"&'


def test_printable() -> None:
    assert printable("put the bowl, 把碗放下") == "put the bowl, 把碗放下"
    assert printable("a\x1b[2J\x9b\u202e\n\t\x7f") == r"a\x1b[2J\x9b\u202e\n\t\x7f"
    assert printable("a\nb\x07", keep="\n") == "a\nb\\x07"


def test_json_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"instruction": HOSTILE})
    shown = capsys.readouterr().out
    assert all(c.isprintable() or c == "\n" for c in shown)
    assert json.loads(shown) == {"instruction": HOSTILE}


@pytest.fixture(scope="module")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    planted = make_planted(folder / "data")
    with h5py.File(planted.prior, "a") as file:
        for demo in file["data"].values():
            demo.attrs["language_instruction"] = HOSTILE
            demo.attrs.pop("ep_meta", None)
    words = ["--target", str(planted.target), "--prior", str(planted.prior)]
    words += ["--encoder", "pixels", "--top-k", "4", "--out", str(folder / "run")]
    assert main(["retrieve", *words]) == 0
    return folder / "run"


def test_a_run_on_a_terminal(hostile_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = open_run(hostile_run).manifest["arguments"]
    words = ["--target", arguments["target"], "--prior", *arguments["prior"]]
    words += ["--encoder", "pixels", "--top-k", "4", "--out", str(hostile_run)]
    assert main(["retrieve", *words]) == 0
    assert main(["inspect", *arguments["prior"]]) == 0
    said = capsys.readouterr()
    assert r"\x1b[2J" in said.out
    assert all(c.isprintable() or c == "\n" for c in said.out + said.err)


def test_an_error_on_a_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["inspect", str(tmp_path / "\x1b[2Jnone")]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_what_shows_texts_may_outlive_the_stream() -> None:
    terminal = io.BytesIO()
    stream = io.TextIOWrapper(terminal)
    shown = _Printable(stream)
    print("a\x1b", file=shown, flush=True)
    assert terminal.getvalue() == b"a\\x1b\n"
    stream.close()
    shown.close()  # so does the garbage collector, which says what goes wrong since Python 3.13


def test_a_page_and_its_pictures(hostile_run: Path) -> None:
    run = open_run(hostile_run)
    view = RunView.open(hostile_run)
    page = write_single_file(hostile_run / "report.html", view).path.read_text()
    assert "<script>alert" not in page
    assert "\\u003cscript>alert" in page  # inside the data
    target, priors = run.datasets()
    write_figures(hostile_run / "figures", run, target, priors)
    assert strap.Matches.from_parquet(hostile_run / "matches.parquet")[0].instruction == HOSTILE


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize(
    "words", [["--version"], ["-h"], ["inspect", "-h"], ["inspect", str(PRIOR)]]
)
def test_a_full_disk_behind_the_output_is_told_in_one_line(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "strap", *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "strap: error: the output cannot be written: No space left on device\n"
