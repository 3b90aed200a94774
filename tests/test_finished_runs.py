"""A finished run is made again by another encoder, by other stores, and where it is not whole."""

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
from strap.errors import StrapError
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


def test_a_store_that_was_made_anew_by_other_reading_options_is_another_run(
    planted: Planted, tmp_path: Path
) -> None:
    target, prior, run = tmp_path / "target", tmp_path / "prior", tmp_path / "run"
    strap.embed(strap.open_dataset(planted.target), PixelEncoder(16), target)
    words = ["--target", target, "--prior", prior]
    turned = strap.open_dataset(planted.prior, orientation="upright")
    strap.embed(turned, PixelEncoder(16), prior)
    retrieved(run, *words)
    upside_down = open_run(run).matches
    strap.embed(strap.open_dataset(planted.prior), PixelEncoder(16), prior)
    with pytest.raises(StrapError, match=r"run with other arguments \(openings .*'upright'"):
        run_retrieval(target, [prior], run, RetrievalOptions(top_k=4, augmented="none"))
    retrieved(run, *words, "--overwrite")
    assert open_run(run).matches != upside_down


def test_a_dataset_that_is_read_in_two_ways_is_refused(planted: Planted, tmp_path: Path) -> None:
    """A run says of each dataset how it was read, so there is one way for each."""
    turned = strap.open_dataset(planted.prior, orientation="upright")
    strap.embed(turned, PixelEncoder(16), tmp_path / "turned")
    options = RetrievalOptions(top_k=4, augmented="none")
    with pytest.raises(StrapError, match=r"read in two ways \(images flipped, and upright\)"):
        run_retrieval(planted.prior, [tmp_path / "turned"], tmp_path / "run", options)
    assert not (tmp_path / "run").exists()


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
    vision, texts = tmp_path / "vision", tmp_path / "texts"
    options = FeatureOptions(encoder=str(vision), text_encoder=str(texts), fuse=("language=2",))
    found = []
    for weights in (b"before", b"trained further"):
        for model in (vision, texts):
            model.mkdir(exist_ok=True)
            (model / "model.safetensors").write_bytes(weights)
        found.append(fingerprint_features(sources, "strap", options, tmp_path))
        of_texts = fingerprint_features(sources, "language", options, tmp_path)
        assert of_texts.items() == {(str(texts), found[-1][str(texts)])}
    assert found[0].keys() == found[1].keys() == {str(vision), str(texts)}
    assert all(found[0][name] != found[1][name] for name in found[0])
    shutil.rmtree(vision)
    assert fingerprint_features(sources, "strap", options, tmp_path) == of_texts


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("matches.parquet", "matches.parquet was changed"),
        ("segments.json", "segments.json is gone"),
        ("matches.parquet of an older run", "matches.parquet has 1 matches, not 4"),
        ("damaged matches.parquet of an older run", "matches.parquet cannot be read"),
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
    elif "damaged" in name:
        (run / "matches.parquet").write_bytes(b"PAR1")
    else:
        table = pq.read_table(run / "matches.parquet")
        pq.write_table(table.slice(0, 1), run / "matches.parquet")
    if "older" in name:
        manifest = json.loads((run / "manifest.json").read_text())
        del manifest["files"]
        (run / "manifest.json").write_text(json.dumps(manifest))
    with pytest.warns(UserWarning, match=f"{message}, so the run is made again"):
        made = run_retrieval(
            planted.target,
            [planted.prior],
            run,
            RetrievalOptions(encoder="pixels", top_k=4, augmented="none"),
        )
    assert (made.matches, made.reused) == (matches, False)
    assert (run / "segments.json").is_file()
