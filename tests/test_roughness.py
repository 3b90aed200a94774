"""Matches that move more jerkily than their query."""

from __future__ import annotations

import math
from pathlib import Path

import h5py
import numpy as np
import pytest

from strap.cli import main
from strap.datasets import Dataset, open_dataset
from strap.errors import StrapError
from strap.pipeline import RetrievalOptions
from strap.retrieval.roughness import drop_rough, roughness
from strap.runs import open_run
from strap.synthetic import Planted
from strap.types import Match, Matches, Segment


def naive_roughness(places: np.ndarray) -> float:
    """The formula of the module's first lines, number by number."""
    n = len(places)
    jerks, speeds = [], []
    for t in range(n - 3):
        third = [
            places[t + 3][i] - 3 * places[t + 2][i] + 3 * places[t + 1][i] - places[t][i]
            for i in range(places.shape[1])
        ]
        jerks.append(sum(value**2 for value in third))
    for t in range(n - 1):
        speeds.append(math.dist(places[t], places[t + 1]))
    return sum(jerks) / len(jerks) * n**4 / (sum(speeds) / len(speeds)) ** 2


def test_roughness_is_the_formula() -> None:
    places = np.random.default_rng(0).random((9, 3))
    assert roughness(places) == pytest.approx(naive_roughness(places))
    assert roughness(1000 * places + 7) == pytest.approx(naive_roughness(places))  # no unit
    assert roughness(places[:3]) is None
    assert roughness(np.ones((9, 3))) is None
    # Twice the frames of the same smooth motion: as rough, but for what sampling misses.
    slow, fast = (np.sin(np.linspace(0, 6, n))[:, None] for n in (200, 100))
    assert roughness(slow) == pytest.approx(roughness(fast), rel=0.05)


def write(file: Path, noises: list[float]) -> Dataset:
    rng = np.random.default_rng(0)
    with h5py.File(file, "w") as handle:
        for index, noise in enumerate(noises):
            demo = handle.create_group(f"data/demo_{index}")
            smooth = np.sin(np.linspace(0, 3, 40))[:, None] * [1.0, 0.5, 0.2]
            demo["actions"] = np.zeros((40, 7))
            demo["obs/ee_pos"] = smooth + noise * rng.standard_normal((40, 3))
    return open_dataset(file)


def test_rough_matches_are_dropped(tmp_path: Path) -> None:
    target, prior = write(tmp_path / "a.hdf5", [1e-3]), write(tmp_path / "b.hdf5", [1e-3, 1e-1, 0])
    query = Segment("demo_0", 5, 35)
    segments = [Segment("demo_1", 5, 35), Segment("demo_0", 5, 35), Segment("demo_2", 5, 35)]
    segments.append(Segment("demo_1", 0, 3))  # too short to tell
    rows = [Match(query, s, float(i), i + 1, "", prior.name) for i, s in enumerate(segments)]
    kept = drop_rough(Matches(tuple(rows)), target, [prior], 3.0)
    assert [m.segment for m in kept] == segments[1:]
    assert [m.rank for m in kept] == [1, 2, 3]
    assert [m.segment for m in drop_rough(Matches(tuple(rows)), target, [prior], 1e6)] == segments
    with pytest.raises(StrapError, match="every match is more than 3 times as rough"):
        drop_rough(Matches(tuple(rows[:1])), target, [prior], 3.0)


def test_roughness_from_the_command_line(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["retrieve", "--target", str(planted.target), "--prior", str(planted.prior)]
    call += ["--encoder", "pixels", "--augmented", "none", "--stores", str(tmp_path / "stores")]
    call += ["--top-k", "40"]
    assert main([*call, "--out", str(tmp_path / "all")]) == 0
    every = open_run(tmp_path / "all").matches
    target, prior = open_dataset(planted.target), open_dataset(planted.prior)

    def naive(dataset: Dataset, segment: Segment) -> float:
        places = np.asarray(dataset[segment.trajectory_id].proprioception["ee_pos"][:])
        return naive_roughness(places[segment.start : segment.stop])

    ratios = [naive(prior, m.segment) / naive(target, m.query) for m in every]
    limit = sorted(ratios)[20] * 1.001
    assert main([*call, "--out", str(tmp_path / "smooth"), "--max-roughness", str(limit)]) == 0
    smooth = open_run(tmp_path / "smooth").matches
    assert "max_roughness: 21 of 40 are smooth enough" in capsys.readouterr().out
    expected = [m for m, ratio in zip(every, ratios, strict=True) if ratio <= limit]
    assert [(m.query, m.segment) for m in smooth] == [(m.query, m.segment) for m in expected]


def test_where_roughness_cannot_be_compared_is_told() -> None:
    with pytest.raises(StrapError, match="a query of 'd-s' is a single frame"):
        RetrievalOptions(method="d-s", max_roughness=2.0).resolved()
    with pytest.raises(StrapError, match="max_roughness is -1: it must be above 0"):
        RetrievalOptions(max_roughness=-1).resolved()
