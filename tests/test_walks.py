"""Whole ways through the commands, as README and the pages tell them, on small data."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import pytest

import strap
from strap.cli import main
from strap.conversion import convert
from strap.runs import open_run
from strap.store import open_store
from strap.synthetic import Planted, make_planted


def run(*words: str | Path) -> None:
    assert main([str(word) for word in words]) == 0


def test_two_priors_are_embedded_on_a_cluster_sketched_searched_and_shown(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray")
    pytest.importorskip("matplotlib")
    other = make_planted(tmp_path / "other", seed=7).prior
    stores = [tmp_path / "stores" / name for name in ("one", "two")]
    for dataset, store in zip((planted.prior, other), stores, strict=True):
        run(
            "embed",
            dataset,
            "--encoder",
            "pixels",
            "--engine",
            "ray",
            "--workers",
            "1",
            "--out",
            store,
        )
        run("store", "sketch", store)
    out = tmp_path / "run"
    run("retrieve", "--target", planted.target, "--prior", *stores, "--top-k", "6", "--out", out)
    run("report", out)
    shown = capsys.readouterr().out
    assert all(f"embeddings: {store}" in shown for store in stores)
    assert (out / "report.html").stat().st_size > 10_000
    found = {(m.query, m.segment.trajectory_id) for m in open_run(out).matches}
    assert found == {(p.query, p.segment.trajectory_id) for p in planted.plants}
    assert {len(open_store(store)) for store in stores} == {12}


def test_one_lerobot_dataset_is_target_and_prior(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    convert(strap.open_dataset(planted.prior), data)
    run("inspect", data, "--episodes", "0:3")
    run(
        "segment",
        data,
        "--episodes",
        "0:3",
        "--segmentation",
        "window",
        "--out",
        tmp_path / "s.json",
    )
    out = tmp_path / "run"
    words = [
        "--target",
        data,
        "--target-episodes",
        "0:3",
        "--prior",
        data,
        "--prior-episodes",
        "3:",
    ]
    run(
        "retrieve",
        *words,
        "--segmentation",
        "window",
        "--encoder",
        "pixels",
        "--top-k",
        "9",
        "--out",
        out,
    )
    assert "is target and prior" not in capsys.readouterr().err
    ids = strap.open_dataset(data).ids
    matches = open_run(out).matches
    assert {match.query.trajectory_id for match in matches} == set(ids[:3])
    assert {match.segment.trajectory_id for match in matches} <= set(ids[3:])
    run("export", out, "--as", "lerobot", "--out", tmp_path / "both")
    assert len(strap.open_dataset(tmp_path / "both")) == 3 + 9
    run("export", out, "--as", "filter", "--out", tmp_path / "f.json")
    assert json.loads((tmp_path / "f.json").read_text())


def test_robomimic_files_with_keys_of_their_own(tmp_path: Path) -> None:
    """As robomimic's loader reads them: the source's keys, masks, lengths, no others."""
    made = make_planted(tmp_path / "data", dialect="robomimic")
    for file in (made.target, made.prior):
        with h5py.File(file, "r+") as handle:
            for demo in handle["data"].values():
                demo["obs"].move("agentview_image", "front_camera")
                demo["obs"].move("robot0_eef_pos", "tool_position")
    out = tmp_path / "run"
    words = ["--target", made.target, "--prior", made.prior, "--position", "tool_position"]
    run("retrieve", *words, "--encoder", "pixels", "--top-k", "6", "--out", out)
    with h5py.File(out / "augmented.hdf5") as augmented, h5py.File(made.target) as source:
        keys = set(source["data/demo_0/obs"])
        for name in augmented["mask/all"][:]:
            demo = augmented[f"data/{name.decode()}"]
            assert set(demo["obs"]) == keys
            assert {len(demo[key]) for key in ("actions", "rewards", "dones")} == {
                int(demo.attrs["num_samples"])
            }
        assert len(augmented["mask/retrieved"]) == 6
