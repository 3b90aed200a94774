"""What a command writes never replaces what it reads, nor a file of another kind."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strap.cli import main
from strap.synthetic import Planted

PLACES = ["OWN/target.hdf5", "OWN/prior.hdf5", "RUN/manifest.json", "RUN/matches.parquet"]
PLACES += ["RUN/choices.json"]


@pytest.fixture(scope="module")
def run(planted: Planted, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outputs")
    own = Path(shutil.copytree(planted.prior.parent, folder / "own"))
    words = ["--target", str(own / "target.hdf5"), "--prior", str(own / "prior.hdf5")]
    words += ["--encoder", "pixels", "--report", "none", "--stores", str(folder / "stores")]
    assert main(["retrieve", *words, "--top-k", "4", "--out", str(folder / "run")]) == 0
    return folder / "run"


@pytest.mark.parametrize("kind", ["robomimic", "lerobot", "manifest", "weights", "filter"])
@pytest.mark.parametrize("place", [*PLACES, "OWN/target.hdf5/inside", "RUN/augmented.hdf5"])
def test_an_export_does_not_replace_what_it_reads(
    run: Path, kind: str, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own = run.parent / "own"
    before = {file: file.read_bytes() for file in run.parent.rglob("*") if file.is_file()}
    out = place.replace("OWN", str(own)).replace("RUN", str(run))
    assert main(["export", str(run), "--as", kind, "--out", out]) == 2
    told = capsys.readouterr().err
    assert "choose another --out" in told or "must end in" in told
    assert {file: file.read_bytes() for file in run.parent.rglob("*") if file.is_file()} == before


def test_an_ending_that_is_added_does_not_replace_what_is_read(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = run.parent / "own" / "target.hdf5"
    before = target.read_bytes()
    words = ["export", str(run), "--as", "robomimic", "--out"]
    assert main([*words, str(target.with_suffix(""))]) == 2
    assert "choose another --out" in capsys.readouterr().err
    assert target.read_bytes() == before
    assert main([*words, str(run.parent / "new")]) == 0
    assert capsys.readouterr().out.split() == [str(run.parent / "new.hdf5")]
    assert main([*words, str(run.parent / "new.v2")]) == 2
    assert "its name must end in .hdf5 or .h5\n" in capsys.readouterr().err


def test_a_run_is_not_written_into_its_datasets(
    own_planted: Planted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """There its augmented dataset would be searched the next time."""
    folder = own_planted.target.parent
    monkeypatch.chdir(folder)
    words = ["retrieve", "--target", "target.hdf5", "--prior", ".", "--encoder", "pixels"]
    assert main([*words, "--out", "run"]) == 2
    assert "'run' is the input '.', or is inside it: choose another" in capsys.readouterr().err
    assert not (folder / "run").exists()


@pytest.mark.parametrize(
    ("words", "ending"),
    [(["segment", "DATA", "--out"], ".json"), (["inspect", "DATA", "--sheet"], ".png")],
)
def test_a_file_of_another_kind_is_not_replaced(
    own_planted: Planted, words: list[str], ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = own_planted.target.read_bytes()
    words = [str(own_planted.target) if word == "DATA" else word for word in words]
    assert main([*words, str(own_planted.target)]) == 2
    assert f"its name must end in {ending}" in capsys.readouterr().err
    assert own_planted.target.read_bytes() == before


@pytest.mark.parametrize(
    ("out", "problem"), [(".", "exists already"), ("out.zarr", "Zarr is read only")]
)
def test_a_conversion_says_where_it_does_not_write(
    planted: Planted,
    tmp_path: Path,
    out: str,
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert main(["convert", str(planted.target), out]) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("robomimic", "own.hdf5"),
        ("manifest", "own.json"),
        ("manifest", "own.parquet"),
        ("filter", "own.json"),
        ("weights", "weights/target.parquet"),
    ],
)
def test_an_export_replaces_exports_only(
    run: Path, tmp_path: Path, kind: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / name
    own.parent.mkdir(exist_ok=True)
    if own.suffix == ".parquet":
        pq.write_table(pa.table({"episode": [1], "reward": [0.5]}), own)
    elif own.suffix == ".json":
        own.write_text('{"a": {"frames": 3}}')
    else:
        shutil.copy(run.parent / "own" / "target.hdf5", own)
    before = own.read_bytes()
    out = own.parent if kind == "weights" else own
    words = ["export", str(run), "--as", kind, "--out", str(out)]
    assert main(words) == 2
    assert "exists already and is not an export of STRAP: choose" in capsys.readouterr().err
    assert own.read_bytes() == before
    own.write_bytes(b"not such a file")
    assert main(words) == 2
    own.unlink()
    assert main(words) == main(words) == 0  # a command that was killed is repeated
