from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import strap
from strap.errors import StrapError
from strap.pipeline import RetrievalOptions, run_retrieval
from strap.report import write_report
from strap.runs import Run
from strap.scores import Score
from strap.synthetic import Planted
from strap.types import Matches


@pytest.fixture
def run(planted: Planted, tmp_path: Path) -> Run:
    options = RetrievalOptions(encoder="pixels", top_k=12)
    return run_retrieval(planted.target, [planted.prior], tmp_path / "run", options)


def test_the_report_is_one_whole_page(run: Run, planted: Planted) -> None:
    datasets = strap.open_dataset(planted.target), [strap.open_dataset(planted.prior)]
    page = write_report(run, *datasets, precision=Score(0.75, 1.0, 0.1), title="A <title>")
    text = page.read_text()
    assert len(re.findall(r'src="data:image/png;base64,', text)) == 3
    assert not re.search(r'(src|href)="?https?:', text)  # nothing is fetched
    assert "A &lt;title&gt;" in text
    assert "75%" in text
    assert text.count("<tr><td>demo_") == 12
    for name in ("matches", "tasks", "positions"):
        with Image.open(run.path / f"{name}.png") as picture:
            assert min(picture.size) > 100
            assert np.asarray(picture.convert("L")).std() > 5  # something is drawn


def test_nothing_to_report(run: Run, planted: Planted) -> None:
    empty = Run(run.path, Matches(()), run.manifest, reused=True)
    target = strap.open_dataset(planted.target)
    with pytest.raises(StrapError, match="has no matches to report"):
        write_report(empty, target, [target])
