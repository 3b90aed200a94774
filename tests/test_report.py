from __future__ import annotations

import re
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

import strap
from strap.errors import StrapError
from strap.report import write_report
from strap.report.skills import Precision, kind, precision, read_labels, write_labels
from strap.runs import RetrievalOptions, Run, run_retrieval
from strap.synthetic import Planted
from strap.types import Match, Matches, Segment


@pytest.fixture
def run(planted: Planted, tmp_path: Path) -> Run:
    options = RetrievalOptions(encoder="pixels", top_k=12)
    return run_retrieval(planted.target, [planted.prior], tmp_path / "run", options)


def test_the_report_is_one_whole_page(run: Run, planted: Planted) -> None:
    datasets = strap.open_dataset(planted.target), [strap.open_dataset(planted.prior)]
    page = write_report(run, *datasets, precision=Precision(0.75, 0.1), title="A <title>")
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


LABELS = {"a": [("reach", "bowl")] * 4 + [("grasp", "bowl")] * 4, "b": [("open", "door")] * 8}


def test_precision_by_hand() -> None:
    target = {"t": [("reach", "bowl")] * 3 + [("place", "plate")] * 2}
    query = Segment("t", 0, 3)
    match = Match(query, Segment("a", 2, 6), 0.0, 1, "", "p")
    found = precision([match], target, {"p": LABELS})
    assert found.retrieved == 0.5  # frames 2 and 3 reach for the bowl, 4 and 5 grasp it
    # At random: trajectory a half of the time, and there 0, 1, 2, 3 or 4 of 4 frames reach.
    assert 0.1 < found.random < 0.4
    assert found.lift == found.retrieved / found.random
    with pytest.raises(StrapError, match="no match to score"):
        precision([], target, {"p": LABELS})
    with pytest.raises(StrapError, match="'u' has no skill labels"):
        precision([Match(Segment("u", 0, 3), match.segment, 0, 1, "", "p")], target, {"p": LABELS})


def test_labels_beside_a_dataset(tmp_path: Path, own_planted: Planted) -> None:
    dataset = strap.open_dataset(own_planted.target)
    with pytest.raises(StrapError, match=r"'demo_0' .* has no skill labels"):
        read_labels(dataset)
    text = h5py.string_dtype()
    with h5py.File(own_planted.target, "a") as file:
        for demo in file["data"].values():
            demo.create_dataset("skills/skill", data=["reach"] * 90, dtype=text)
            demo.create_dataset("skills/object", data=["bowl_2"] * 90, dtype=text)
    labels = read_labels(strap.open_dataset(own_planted.target))
    assert labels["demo_1"][5] == ("reach", "bowl")
    (tmp_path / "meta").mkdir()
    write_labels(tmp_path, labels)
    from strap.report.skills import FILE, _read_parquet

    assert _read_parquet(tmp_path / FILE) == labels


def test_kind() -> None:
    assert kind("akita_black_bowl_12") == "akita_black_bowl"
    assert kind("wooden_cabinet_1_top_region") == "wooden_cabinet_1_top_region"
