"""`benchmarks/retrieval/table.py` on generated data."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
from tests.scores.test_score_command import label

import strap
from strap.encoders import PixelEncoder
from strap.representations.settings import RepresentationSettings
from strap.scores.score_files import read_scores
from strap.store import EmbeddingStore
from strap.synthetic import Planted

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "retrieval" / "table.py"


@pytest.fixture(scope="module")
def table() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("retrieval_table", SCRIPT)
    assert spec
    assert spec.loader
    module = sys.modules["retrieval_table"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["retrieval_table"]


@pytest.fixture(scope="module")
def stores(
    planted: Planted, tmp_path_factory: pytest.TempPathFactory
) -> tuple[EmbeddingStore, EmbeddingStore]:
    out = tmp_path_factory.mktemp("stores")
    target, prior = map(strap.open_dataset, (planted.target, planted.prior))
    encoder = PixelEncoder()
    return strap.embed(target, encoder, out / "t"), strap.embed(prior, encoder, out / "p")


@pytest.mark.filterwarnings("ignore:top_k is")
@pytest.mark.parametrize("method", ["stops", "window"])
@pytest.mark.parametrize("top_k", [1, 5, 12, 30])
def test_a_smaller_k_needs_no_search_of_its_own(
    table: ModuleType, stores: tuple[EmbeddingStore, EmbeddingStore], method: str, top_k: int
) -> None:
    target, prior = stores
    queries = strap.segment(strap.open_dataset(target.dataset), method=method)  # type: ignore[arg-type]
    largest = strap.retrieve(queries, target, prior, top_k=60)
    direct = strap.retrieve(queries, target, prior, top_k=top_k)
    assert table.narrow(largest, top_k) == direct


@pytest.fixture
def words(own_planted: Planted, tmp_path: Path) -> list[str]:
    """What the script is told of labelled data."""
    label(own_planted)
    for path, name in ((own_planted.target, "libero_10"), (own_planted.prior, "libero_90-0")):
        (tmp_path / "data" / name).mkdir(parents=True)
        path.rename(tmp_path / "data" / name / path.name)
    places = [tmp_path / "data", "--stores", tmp_path / "stores", "--out", tmp_path / "all.jsonl"]
    return [*map(str, places), "--encoders", "pixels", "--device", "cpu", "--precision-at", "6"]


def cells_of(lines: str) -> list[list[str]]:
    return [[c.strip() for c in line.split("|")[1:-1]] for line in lines.splitlines() if line]


def test_the_tables(
    table: ModuleType, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table.main([*words, "--methods", "strap", "--top-k", "3", "6"])
    shown = capsys.readouterr()
    assert "full, do the planted task: no query fits" in shown.err
    lines = cells_of(shown.out)
    precision, means = lines[:4], lines[4:10]
    assert precision[0][4:] == ["do the planted task", "mean", "best", "random"]
    records = read_scores(tmp_path / "all.jsonl")
    assert [(r.retrieval["segmentation"], r.retrieval["top_k"]) for r in records] == [
        (name, k) for name in ("stops", "window") for k in (3, 6)
    ]
    for line, record in zip(precision[2:], records[1::2], strict=True):
        assert line[3] == record.retrieval["segmentation"]
        assert line[5] == f"{record.precision.value:.3f}".removeprefix("0")
    assert [line[3:6] for line in means[2:]] == [
        [r.retrieval["segmentation"], str(r.retrieval["top_k"]), str(r.matches)] for r in records
    ]


def test_what_is_there_is_not_made_again(
    table: ModuleType, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words += ["--methods", "strap", "--segmentations", "stops"]
    table.main([*words, "--top-k", "6"])
    (first,) = read_scores(tmp_path / "all.jsonl")
    asked = []
    measure = table.measure
    monkeypatch.setattr(table, "measure", lambda *a: asked.append(a[3]) or measure(*a))
    table.main([*words, "--top-k", "3", "6"])
    assert asked == [[3]]
    assert first in read_scores(tmp_path / "all.jsonl")
    table.main([*words, "--top-k", "3", "6"])
    assert asked == [[3]]


@pytest.mark.slow
def test_features_are_fused(table: ModuleType, words: list[str], tmp_path: Path) -> None:
    words += ["--methods", "strap", "--segmentations", "window", "--top-k", "6"]
    fusions = ["none", "gripper=0.5,position", "auto-without-language"]
    table.main([*words, "--fuse", *fusions])
    plain, fused, auto = read_scores(tmp_path / "all.jsonl")
    assert plain.retrieval["fuse"] == ""
    assert fused.retrieval["fuse"] == "gripper=0.5 position"
    assert "fused" not in fused.retrieval
    assert auto.retrieval["fuse"] == "auto-without-language"
    assert "language" not in auto.retrieval["fused"]
    made = {path.name for path in (tmp_path / "stores").iterdir()}
    assert any("fused" in name for name in made)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["br", "fr"])
def test_methods_that_learn_their_features(
    table: ModuleType,
    words: list[str],
    tmp_path: Path,
    method: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    small = partial(RepresentationSettings, batch=2, image_size=64)
    monkeypatch.setattr("strap.representations.RepresentationSettings", small)
    table.main([*words, "--methods", method, "--learning-steps", "2", "--top-k", "3", "6"])
    records = read_scores(tmp_path / "all.jsonl")
    assert [record.retrieval["encoder"] for record in records] == [method, method]
    assert [record.matches for record in records] == [3, 6]


@pytest.mark.filterwarnings("ignore:top_k is")
def test_the_other_methods(table: ModuleType, planted: Planted, tmp_path: Path) -> None:
    bench = table.Bench(
        strap.open_dataset(planted.target), [strap.open_dataset(planted.prior)], tmp_path, "cpu"
    )
    task = table.open_tasks(bench.target, 2)[0]
    rows = list(table.list_rows(["d-t", "d-s", "random"], ["pixels"], ["none"], ["window"]))
    for row in rows:
        both, one = (bench.find(row, task, top_ks) for top_ks in ((3, 8), (3,)))
        assert len(both.matches[8]) == 8
        assert both.matches[3] == one.matches[3]
        assert row.segmentation == ("window" if row.method == "random" else "full")
        assert row.encoder == ("none" if row.method == "random" else "pixels")


def test_methods_without_an_encoder_have_one_row(table: ModuleType) -> None:
    rows = table.list_rows(["random", "d-s"], ["pixels", "other"], ["none", "auto"], ["stops"])
    assert [(row.method, row.encoder, row.fuse) for row in rows] == [
        ("random", "none", ""),
        ("d-s", "pixels", ""),
        ("d-s", "pixels", "auto"),
        ("d-s", "other", ""),
        ("d-s", "other", "auto"),
    ]
