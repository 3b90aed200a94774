"""`benchmarks/retrieval/table.py` on generated data."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from tests.scores.test_score_command import label

import strap
from strap.encoders import PixelEncoder
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


def test_the_tables(
    table: ModuleType, own_planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    label(own_planted)
    for path, name in ((own_planted.target, "libero_10"), (own_planted.prior, "libero_90-0")):
        (tmp_path / "data" / name).mkdir(parents=True)
        moved = path.rename(tmp_path / "data" / name / path.name)
        strap.embed(strap.open_dataset(moved.parent), PixelEncoder(), tmp_path / "stores" / name)
    words = [tmp_path / "data", "--stores", tmp_path / "stores", "--json", tmp_path / "all.json"]
    table.main([*map(str, words), "--methods", "strap", "--top-k", "3", "6", "--precision-at", "6"])
    shown = capsys.readouterr()
    assert "strap, full, do the planted task: no query fits" in shown.err
    lines = [[c.strip() for c in line.split("|")[1:-1]] for line in shown.out.splitlines() if line]
    precision, means = lines[:4], lines[4:]
    assert precision[0][3:] == ["do the planted task", "mean", "best", "random"]
    cells = json.loads((tmp_path / "all.json").read_text())["cells"]
    assert [(c["segmentation"], c["top_k"]) for c in cells] == [
        (name, k) for name in ("stops", "window") for k in (3, 6)
    ]
    for line, cell in zip(precision[2:], cells[1::2], strict=True):
        assert line[2] == cell["segmentation"]
        assert line[4] == f"{cell['precision']['value']:.3f}"
    assert [line[2:6] for line in means[2:]] == [
        [cell["segmentation"], str(cell["top_k"]), "1", str(cell["matches"])] for cell in cells
    ]


@pytest.mark.filterwarnings("ignore:top_k is")
def test_the_other_methods(
    table: ModuleType, stores: tuple[EmbeddingStore, EmbeddingStore]
) -> None:
    target, prior = stores
    task = table.open_tasks(strap.open_dataset(target.dataset), 2)[0]
    for row in table.make_rows(target, [prior], ["d-t", "d-s", "random"], ["window"], "pixels"):
        both, one = (row.find(task, top_ks) for top_ks in ((3, 8), (3,)))
        assert len(both.matches[8]) == 8
        assert both.matches[3] == one.matches[3]
        assert row.segmentation == ("window" if row.method == "random" else "full")
        assert row.encoder == ("none" if row.method == "random" else "pixels")
