"""The command line as a user meets it: output, messages, exit codes."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from strap.cli import COMMANDS, main
from strap.synthetic import Planted


def retrieve(planted: Planted, out: Path, *more: object) -> list[str]:
    """The words of a retrieval; without a page, unless `more` says so."""
    words = ["retrieve", "--target", planted.target, "--prior", planted.prior, "--out", out]
    words += ["--encoder", "pixels", "--top-k", 12, "--report", "none"]
    return [str(word) for word in (*words, *more)]


def test_overview(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["-h"], ["--help"]):
        assert main(words) == 0
        shown = capsys.readouterr().out
        assert all(name in shown for name in COMMANDS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("strap 0.")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "-h"]) == 0
    assert f"usage: strap {name}" in capsys.readouterr().out


def test_several_matches_a_trajectory(planted: Planted, tmp_path: Path) -> None:
    more = ("--matches-per-trajectory", 2, "--length-ratio", 1, 1.2, "--top-k", 90)
    assert main(retrieve(planted, tmp_path / "run", *more)) == 0
    table = pq.read_table(tmp_path / "run" / "matches.parquet").to_pylist()
    lengths = [
        (row["stop"] - row["start"]) / (row["query_stop"] - row["query_start"]) for row in table
    ]
    assert max(lengths) <= 1.2
    pairs = Counter(
        (row["query_trajectory"], row["query_start"], row["trajectory"]) for row in table
    )
    assert max(pairs.values()) == 2


def test_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["retreive"]) == 2
    assert "unknown command 'retreive': did you mean 'retrieve'?" in capsys.readouterr().err


def test_the_whole_path(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(retrieve(planted, out, "--report", "page")) == 0
    shown = capsys.readouterr().out
    assert "12 matches of 6 queries" in shown
    assert (out / "report.html").stat().st_size > 10_000
    table = pq.read_table(out / "matches.parquet").to_pylist()
    best = {
        (row["query_trajectory"], row["query_start"], row["query_stop"]): row
        for row in table
        if row["rank"] == 1
    }
    for plant in planted.plants:
        row = best[plant.query.trajectory_id, plant.query.start, plant.query.stop]
        assert (row["trajectory"], row["start"], row["stop"]) == (
            plant.segment.trajectory_id, plant.segment.start, plant.segment.stop,
        )  # fmt: skip
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["arguments"]["top_k"] == 12
    assert set(manifest["inputs"]) == {str(planted.target), str(planted.prior)}
    assert {"segment", "embed", "search", "augment"} == set(manifest["seconds"])
    assert manifest["versions"]["numpy"] == np.__version__
    with h5py.File(out / "augmented.hdf5") as file:
        assert len(file["mask/retrieved"]) == 12


def test_the_same_command_again_does_nothing(
    own_planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = retrieve(own_planted, tmp_path / "run")
    assert main(words) == 0
    files = {f: f.stat().st_mtime_ns for f in (tmp_path / "run").iterdir()}
    assert main(words) == 0
    assert "up to date: nothing to do" in capsys.readouterr().out
    assert {f: f.stat().st_mtime_ns for f in (tmp_path / "run").iterdir()} == files
    with h5py.File(own_planted.prior, "a") as handle:
        handle["data/demo_0/obs/agentview_rgb"][:] = 0
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reused"] is False
    first = pq.read_table(tmp_path / "run" / "matches.parquet").to_pylist()[0]
    assert first["trajectory"] != "demo_0"  # the changed trajectory is no longer the best


def test_other_arguments_need_another_folder(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(retrieve(planted, tmp_path / "run")) == 0
    other = retrieve(planted, tmp_path / "run", "--metric", "cosine")
    assert main(other) == 2
    assert "holds a run with other arguments (metric l2 → cosine)" in capsys.readouterr().err
    assert main([*other, "--overwrite"]) == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    assert main(retrieve(planted, tmp_path / "mine")) == 2
    assert "holds other files" in capsys.readouterr().err


def test_embed_and_segment(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, store = str(planted.target), str(tmp_path / "s")
    assert main(["embed", target, "--encoder", "pixels", "--out", store]) == 0
    assert "2 trajectories, 180 frames of 256-d" in capsys.readouterr().out
    assert main(["embed", target, "--encoder", "pixels", "--out", store, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["frames"] == 180
    file = str(tmp_path / "s.json")
    assert main(["segment", target, "--out", file]) == 0
    shown = capsys.readouterr().out
    assert "demo_0: 0-30 30-60 60-90" in shown
    assert "6 segments of 2 trajectories, cut where ee_pos rests" in shown
    assert main(["segment", target, "--out", file, "--segmentation", "full", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["segments"] == [["demo_0", 0, 90], ["demo_1", 0, 90]]
    manual = ["--segmentation", "manual", "--boundaries", file]
    whole = retrieve(planted, tmp_path / "run", *manual)
    assert "no query fits into any prior trajectory" in fails(whole, capsys)  # 90 frames each
    assert main([*whole, "--step-set", "classic"]) == 0
    assert "12 matches of 2 queries" in capsys.readouterr().out


def test_options_that_a_segmentation_does_not_use_are_refused(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = ["segment", str(planted.target), "--out", str(tmp_path / "s.json")]
    for words in (cut, retrieve(planted, tmp_path / "run")):
        shown = fails([*words, "--boundaries", "b.json"], capsys)
        assert "--segmentation stops does not use it: give --segmentation manual, or leave" in shown
        for option, value in (
            *(("epsilon", "0.1"), ("unit", "second"), ("norm", "l2"), ("min-length", "5")),
            ("position", "ee_pos"),
        ):
            more = ["--segmentation", "window", f"--{option}", value]
            assert f"or leave --{option} out" in fails([*words, *more], capsys)
        assert "give --segmentation window" in fails([*words, "--window", "5"], capsys)
    assert not (tmp_path / "s.json").exists()
    rough = ["--segmentation", "window", "--position", "ee_pos", "--max-roughness", "1000"]
    assert main(retrieve(planted, tmp_path / "run", *rough)) == 0


def test_the_encoder_of_a_store_that_was_found_is_told(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stores = ["--stores", str(tmp_path / "stores")]
    assert main(retrieve(planted, tmp_path / "one", *stores)) == 0
    assert "no --encoder given" not in capsys.readouterr().out
    words = retrieve(planted, tmp_path / "two", *stores)
    place = words.index("--encoder")
    assert main([*words[:place], *words[place + 2 :]]) == 0
    store = next((tmp_path / "stores").glob("prior-*"))
    expected = f"encoder: pixels, that of the existing store '{store}' (no --encoder given)"
    assert expected in capsys.readouterr().out


@pytest.mark.slow  # it renders
def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    checks = {c["name"]: c for c in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["search"]["works"]
    assert checks["cache folder"]["works"]


@pytest.mark.slow  # it renders
def test_doctor_finds_what_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("STRAP_CACHE", str(tmp_path / "file" / "cache"))
    assert main(["doctor"]) == 2
    shown = capsys.readouterr().out
    assert re.search(r"^ok +search ", shown, re.M)
    assert "set STRAP_CACHE to a folder that can" in shown


def small(tmp_path: Path, length: int = 6, **arrays: np.ndarray) -> Path:
    """A one-demonstration robomimic file with the given observations."""
    file = tmp_path / "small.hdf5"
    with h5py.File(file, "w") as handle:
        demo = handle.create_group("data/demo_0")
        demo["actions"] = np.zeros((length, 7))
        for name, array in arrays.items():
            demo[f"obs/{name}"] = array
    return file


def images(length: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (length, 32, 32, 3), dtype=np.uint8)


def fails(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The error line of a call that must end with code 2, without a traceback."""
    assert main(words) == 2
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    return shown


def test_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "embed",
        str(tmp_path / "no.hdf5"),
        "--encoder",
        "pixels",
        "--out",
        str(tmp_path / "s"),
    ]
    assert "no such dataset" in fails(words, capsys)


def test_truncated_hdf5(
    own_planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.truncate(own_planted.prior, 5000)
    shown = fails(retrieve(own_planted, tmp_path / "run"), capsys)
    assert f"cannot open '{own_planted.prior}' as HDF5" in shown


def test_no_such_camera(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = retrieve(planted, tmp_path / "run", "--cameras", "agentview")
    assert "unknown camera 'agentview': did you mean 'agentview_rgb'?" in fails(words, capsys)


def test_missing_proprioception(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = small(tmp_path, 40, agentview_rgb=images(40), gripper_states=np.zeros((40, 2)))
    blind = Planted(file, planted.prior, ())
    shown = fails(retrieve(blind, tmp_path / "run"), capsys)
    assert "no end-effector position" in shown
    assert "--position" in shown


def test_joints_that_never_move(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = small(tmp_path, 40, agentview_rgb=images(40), joint_states=np.zeros((40, 7)))
    shown = fails(retrieve(Planted(file, planted.prior, ()), tmp_path / "run"), capsys)
    assert "'joint_states' never changes in 1 demonstrations" in shown


def test_a_picture_of_the_cuts(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["segment", str(planted.target), "--out", str(tmp_path / "s.json"), "--plot"]
    for name, more in (("stops", []), ("window", ["--segmentation", "window"])):
        picture = tmp_path / f"{name}.png"
        assert main([*words, str(picture), *more]) == 0
        assert f"movement, threshold and cuts → {picture}" in capsys.readouterr().out
        with Image.open(picture) as drawn:
            assert min(drawn.size) > 300
            assert np.asarray(drawn.convert("L")).std() > 5  # readable without colour
    assert "unknown kind of image file '.gif'" in fails([*words, "cuts.gif"], capsys)


def test_a_picture_without_matplotlib(
    planted: Planted,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = ["segment", str(planted.target), "--out", str(tmp_path / "s.json")]
    shown = fails([*words, "--plot", str(tmp_path / "s.png")], capsys)
    assert shown.startswith("strap: error: --plot needs matplotlib: pip install ")
    assert "[figures]" in shown
    assert not (tmp_path / "s.json").exists()


def test_epsilon_auto_is_said_with_its_reason_and_kept(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(retrieve(planted, tmp_path / "run", "--epsilon", "auto")) == 0
    shown = capsys.readouterr().err
    assert "epsilon auto is" in shown
    assert "of the upper quartile of movement" in shown
    kept = json.loads((tmp_path / "run/segments.json").read_text())["segmentation"]["epsilon"]
    assert f"epsilon auto is {kept:g} m per step" in shown
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    assert manifest["arguments"]["segmentation"]["epsilon"] == "auto"
    assert main(retrieve(planted, tmp_path / "other")) == 0
    manifest = json.loads((tmp_path / "other/manifest.json").read_text())
    assert manifest["arguments"]["segmentation"]["epsilon"] == 0.005


def test_empty_dataset(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with h5py.File(tmp_path / "empty.hdf5", "w") as handle:
        handle.create_group("data")
    nothing = tmp_path / "empty.hdf5"
    shown = fails(retrieve(Planted(nothing, planted.prior, ()), tmp_path / "run"), capsys)
    assert "the target dataset is empty" in shown
    shown = fails(retrieve(Planted(planted.target, nothing, ()), tmp_path / "run"), capsys)
    assert f"dataset '{nothing}' is empty" in shown


def test_a_demo_of_three_frames(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with h5py.File(planted.prior) as handle:
        frames = handle["data/demo_3/obs/agentview_rgb"][14:17][:, ::-1]
    file = small(tmp_path, 3, agentview_rgb=frames, ee_pos=np.zeros((3, 3)))
    assert main(retrieve(Planted(file, planted.prior, ()), tmp_path / "run")) == 0
    row = pq.read_table(tmp_path / "run" / "matches.parquet").to_pylist()[0]
    assert (row["trajectory"], row["start"], row["stop"], row["cost"]) == ("demo_3", 14, 17, 0.0)


def test_more_or_fewer_matches_than_there_can_be(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(retrieve(planted, tmp_path / "a", "--top-k", "1000")) == 0
    shown = capsys.readouterr()
    assert "note: top_k is 1000, but there are only 72 matches" in shown.err
    assert "72 matches" in shown.out
    assert main(retrieve(planted, tmp_path / "b", "--top-k", "2")) == 0
    assert "smaller than the number of queries (6): 4 get none" in capsys.readouterr().err
    words = retrieve(planted, tmp_path / "c", "--top-k", "0")
    assert "top_k is 0: it must be at least 1" in fails(words, capsys)


def test_an_unwritable_output(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("x")
    words = retrieve(planted, tmp_path / "file" / "run")
    assert "cannot write" in fails(words, capsys)


def test_a_store_made_with_another_encoder(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import strap
    from strap.encoders import PixelEncoder

    strap.embed(strap.open_dataset(planted.target), PixelEncoder(4), tmp_path / "s")
    words = ["embed", str(planted.target), "--encoder", "pixels", "--out", str(tmp_path / "s")]
    assert "was made with encoder" in fails(words, capsys)


def test_nan_embeddings(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = retrieve(planted, tmp_path / "run", "--stores", tmp_path / "stores")
    assert main(words) == 0
    shard = next((tmp_path / "stores").glob("prior-*/shards/*.npy"))
    frames = np.load(shard)
    frames[3] = np.nan
    np.save(shard, frames)
    shown = fails(retrieve(planted, tmp_path / "two", "--stores", tmp_path / "stores"), capsys)
    assert "is damaged at trajectory 'demo_0'" in shown


def test_help_is_quick_enough_to_load_nothing_heavy() -> None:
    code = "import sys; from strap.cli import main; main(['-h']); print('numpy' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_log_messages_are_notes_in_a_terminal(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = logging.getLogger("strap")
    monkeypatch.setattr(log, "handlers", [])
    monkeypatch.setattr(log, "level", logging.NOTSET)
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    assert main(["--version"]) == 0
    log.info("compiling")
    assert screen.getvalue() == ("strap: note: compiling\n" if is_terminal else "")
