"""A finished run is made anew by another encoder, by other stores, and where it is not whole."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import strap
from strap.cli import main
from strap.encoders import PixelEncoder
from strap.features import FeatureOptions, RetrievalInput, fingerprint_features
from strap.pipeline import RetrievalOptions, run_retrieval
from strap.runs import open_run
from strap.synthetic import Planted


def retrieved(run: Path, *words: str | Path) -> None:
    """Retrieve into the run, without what follows from its matches."""
    less = ["--top-k", "4", "--report", "none", "--augmented", "none", "--out", str(run)]
    assert main(["retrieve", *map(str, words), *less]) == 0


def test_a_store_that_was_made_anew_by_another_encoder_is_another_run(
    planted: Planted, tmp_path: Path
) -> None:
    paths = {name: tmp_path / "stores" / name for name in ("target", "prior")}
    words = ["--target", paths["target"], "--prior", paths["prior"]]
    costs = []
    for size in (16, 4):
        shutil.rmtree(tmp_path / "stores", ignore_errors=True)
        for name, path in paths.items():
            strap.embed(strap.open_dataset(getattr(planted, name)), PixelEncoder(size), path)
        retrieved(tmp_path / "run", *words)
        run = open_run(tmp_path / "run")
        assert run.manifest["encoder"]["size"] == size
        costs.append([match.cost for match in run.matches])
    assert costs[0] != costs[1]


def test_a_folder_of_other_stores_is_another_run(planted: Planted, tmp_path: Path) -> None:
    words = ["--target", planted.target, "--prior", planted.prior, "--stores"]
    for size in (16, 4):
        for name in ("target", "prior"):
            dataset = strap.open_dataset(getattr(planted, name))
            strap.embed(dataset, PixelEncoder(size), tmp_path / str(size) / name)
        retrieved(tmp_path / "run", *words, tmp_path / str(size))
        assert open_run(tmp_path / "run").manifest["encoder"]["size"] == size
    shutil.rmtree(tmp_path / "4")  # a finished run needs its stores no more
    made = (tmp_path / "run" / "manifest.json").read_bytes()
    retrieved(tmp_path / "run", *words, tmp_path / "4")
    assert (tmp_path / "run" / "manifest.json").read_bytes() == made


def test_an_encoder_of_ones_own_with_another_config_is_another_run(
    planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["--target", planted.target, "--prior", planted.prior, "--encoder", "own_pixels:Own"]
    words += ["--stores", tmp_path / "stores"]
    for version in (1, 2):
        code = (
            "from strap.encoders import PixelEncoder\n"
            "class Own(PixelEncoder):\n"
            f"    config = {{'name': 'own', 'version': {version}}}\n"
        )
        (tmp_path / "own_pixels.py").write_text(code)
        importlib.invalidate_caches()
        monkeypatch.delitem(sys.modules, "own_pixels", raising=False)
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        retrieved(tmp_path / "run", *words)
        assert open_run(tmp_path / "run").manifest["encoder"]["version"] == version
    (tmp_path / "own_pixels.py").write_text("raise OSError('its weights are gone')")
    monkeypatch.delitem(sys.modules, "own_pixels")
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    made = (tmp_path / "run" / "manifest.json").read_bytes()
    retrieved(tmp_path / "run", *words)
    assert (tmp_path / "run" / "manifest.json").read_bytes() == made


def test_a_model_that_was_trained_further_is_noticed_without_loading_it(
    planted: Planted, tmp_path: Path
) -> None:
    sources = [RetrievalInput(strap.open_dataset(planted.target))]
    model = tmp_path / "model"
    model.mkdir()
    found = []
    for weights in (b"before", b"trained further"):
        (model / "model.safetensors").write_bytes(weights)
        options = FeatureOptions(encoder=str(model), text_encoder=str(model), fuse=("language=2",))
        found.append(fingerprint_features(sources, "strap", options, tmp_path))
        texts = FeatureOptions(text_encoder=str(model))
        assert fingerprint_features(sources, "language", texts, tmp_path) == found[-1]
        assert not fingerprint_features(sources, "random", options, tmp_path).keys() - found[-1]
    assert found[0].keys() == found[1].keys() == {str(model.resolve())}
    assert found[0] != found[1]
    shutil.rmtree(model)
    assert fingerprint_features(sources, "strap", options, tmp_path) == {}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("matches.parquet", "matches.parquet was changed"),
        ("segments.json", "segments.json is gone"),
        ("matches.parquet of an older run", "matches.parquet has 1 matches, not 4"),
    ],
)
def test_a_run_whose_results_are_not_whole_is_made_anew(
    planted: Planted, tmp_path: Path, name: str, message: str
) -> None:
    run = tmp_path / "run"
    words = ["--target", planted.target, "--prior", planted.prior, "--encoder", "pixels"]
    retrieved(run, *words)
    matches = open_run(run).matches
    if name == "segments.json":
        (run / name).unlink()
    else:
        table = pq.read_table(run / "matches.parquet")
        pq.write_table(table.slice(0, 1), run / "matches.parquet")
    if "older" in name:
        manifest = json.loads((run / "manifest.json").read_text())
        del manifest["files"]
        (run / "manifest.json").write_text(json.dumps(manifest))
    with pytest.warns(UserWarning, match=f"{message}, so the run is made anew"):
        made = run_retrieval(
            planted.target,
            [planted.prior],
            run,
            RetrievalOptions(encoder="pixels", top_k=4, augmented="none"),
        )
    assert (made.matches, made.reused) == (matches, False)
    assert (run / "segments.json").is_file()
