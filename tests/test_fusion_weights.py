"""`--fuse auto`: weights that find a demonstration's segments in the others, by a slow twin."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from tests import naive

import strap
from strap.cli import main
from strap.datasets import open_dataset
from strap.encoders import PixelEncoder
from strap.errors import StrapError
from strap.features import FeatureOptions
from strap.features.fusion_weights import choose_fusion, choose_weights, segment_overlaps
from strap.retrieval.correspondence import pair_segments
from strap.runs import open_run
from strap.synthetic import Planted
from strap.types import Segment


def naive_overlap(query: Segment, counterpart: Segment, features: list, weights: tuple) -> float:
    """Frames of the cheapest match and of the counterpart, as sets."""
    pairs = zip(features, (1, *weights), strict=True)
    columns = [{k: v * w for k, v in f.items()} for f, w in pairs]
    joined = {k: np.concatenate([c[k] for c in columns], axis=1) for k in columns[0]}
    frames = joined[query.trajectory_id][query.start : query.stop]
    found = naive.best_match(frames, joined[counterpart.trajectory_id], "strap", "l2")
    if found is None:
        return 0.0
    one, other = set(range(*found[1:])), set(range(counterpart.start, counterpart.stop))
    return len(one & other) / len(one | other)


def test_overlaps_are_those_of_the_slow_twin() -> None:
    rng = np.random.default_rng(0)
    lengths = {"a": 11, "b": 14, "c": 5}
    features = [{k: rng.random((n, d)) for k, n in lengths.items()} for d in (4, 2, 1)]
    queries = [Segment("a", 0, 5), Segment("a", 5, 11), Segment("b", 0, 7), Segment("b", 7, 14)]
    queries.append(Segment("c", 0, 5))
    grid = [(0.0, 0.0), (0.5, 0.0), (1.0, 2.0)]
    pairs = pair_segments(queries)
    found = segment_overlaps(pairs, features, grid, "strap")
    assert found.shape == (3, len(pairs)) == (3, 10)
    for row, weights in enumerate(grid):
        for column, pair in enumerate(pairs):
            assert found[row, column] == pytest.approx(naive_overlap(*pair, features, weights))
    does_not_fit = [
        q.trajectory_id != "c" and len(q) > 5 and o.trajectory_id == "c" for q, o in pairs
    ]
    assert sum(does_not_fit) == 3
    assert not found[:, does_not_fit].any()


def test_counterparts_have_the_same_place() -> None:
    a = [Segment("a", 0, 90), Segment("a", 90, 100)]
    b = [Segment("b", 0, 10), Segment("b", 10, 100)]
    c = [Segment("c", 0, 10), Segment("c", 10, 20), Segment("c", 20, 40)]
    pairs = dict(pair_segments([*a, *b]))
    assert pairs == {a[0]: b[0], a[1]: b[1], b[0]: a[0], b[1]: a[1]}  # as many: by their order
    assert dict(pair_segments([*a, *c]))[a[0]] == c[1]  # the middle at .45; theirs at .13 .38 .75
    assert dict(pair_segments([*a, *c]))[a[1]] == c[2]


def test_the_smallest_of_equally_good_weights_are_taken() -> None:
    grid = [(0.0,), (0.5,), (1.0,)]
    left_out = ["a", "a", "b", "c"]
    same = np.full((3, 4), 0.5)
    assert choose_weights(grid, same, left_out) == 0
    clear = same + [[0.0], [0.2], [0.2]]
    assert choose_weights(grid, clear, left_out) == 1
    # Better in one demonstration alone: within a standard error of no better.
    noisy = same + [[0, 0, 0, 0], [0, 0, 0, 0.3], [0, 0, 0, 0.3]]
    assert choose_weights(grid, noisy, left_out) == 0


def write_blind(file: Path, starts: list[float], seed: int) -> Path:
    """Write demonstrations whose pictures say nothing and whose positions say everything."""
    rng = np.random.default_rng(seed)
    with h5py.File(file, "w") as handle:
        for index, start in enumerate(starts):
            demo = handle.create_group(f"data/demo_{index}")
            places = np.repeat(np.arange(60.0)[:, None] / 60 + start, 3, axis=1)
            demo["actions"] = rng.random((60, 7))
            demo["obs/agentview_rgb"] = rng.integers(0, 255, (60, 8, 8, 3), dtype=np.uint8)
            demo["obs/ee_pos"] = places
            demo["obs/gripper_states"] = rng.random((60, 2))
    return file


def test_what_tells_segments_apart_is_fused(tmp_path: Path) -> None:
    files = [
        write_blind(tmp_path / "target.hdf5", [0.0, 0.0, 0.0], 0),
        write_blind(tmp_path / "prior.hdf5", [0.0, 1.0], 1),
    ]
    datasets = [open_dataset(file) for file in files]
    stores = [strap.embed(d, PixelEncoder(2), tmp_path / d.path.stem) for d in datasets]
    queries = strap.segment(datasets[0], method="window", window=20)
    choice = choose_fusion(stores, datasets, queries, "strap")
    assert [feature.name for feature in choice.features] == ["position"]
    assert choice.reason.startswith(f"{choice.features[0]}, which raise the mean overlap 0.")
    assert "no language: trajectory 'demo_0' has no instruction" in choice.reason
    with pytest.raises(
        StrapError, match="no two of the target's demonstrations have the same instruction: name"
    ):
        choose_fusion(stores, datasets, queries[:3], "strap")


def test_what_tells_nothing_is_not_fused(tmp_path: Path) -> None:
    files = [
        write_blind(tmp_path / "target.hdf5", [0.0, 0.0], 0),
        write_blind(tmp_path / "prior.hdf5", [0.0, 1.0], 1),
    ]
    with h5py.File(files[0], "a") as handle:  # the pictures tell it all, the positions nothing
        for demo in handle["data"].values():
            demo["obs/agentview_rgb"][:] = np.arange(60)[:, None, None, None] * 4
            demo["obs/ee_pos"][:] = 0.5
            demo["obs/gripper_states"][:] = 0.5
    datasets = [open_dataset(file) for file in files]
    stores = [strap.embed(d, PixelEncoder(2), tmp_path / d.path.stem) for d in datasets]
    queries = strap.segment(datasets[0], method="window", window=20)
    choice = choose_fusion(stores, datasets, queries, "strap")
    assert choice.features == ()
    expected = "no gripper or position: they raise the mean overlap 1.000 of segments found in the"
    assert choice.reason.startswith(expected)


@pytest.mark.slow
def test_auto_from_the_command_line(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["retrieve", "--target", str(planted.target), "--prior", str(planted.prior)]
    call += ["--encoder", "pixels", "--top-k", "12", "--augmented", "none", "--fuse", "auto"]
    call += ["--stores", str(tmp_path / "stores"), "--out", str(tmp_path / "run")]
    assert main(call) == 0
    shown = capsys.readouterr().out
    assert "fuse: " in shown
    assert "no language: feature 'language' never changes in the prior" in shown
    run = open_run(tmp_path / "run")
    assert run.manifest["arguments"]["fuse"] == ["auto"]
    assert f"fuse: {run.manifest['reasons']['fuse']}" in shown
    assert main(call) == 0
    assert "up to date: nothing to do" in capsys.readouterr().out


def test_where_auto_cannot_choose_is_told() -> None:
    auto = FeatureOptions(encoder="pixels", fuse=("auto",))
    auto.require_judgeable("strap", "stops", "l2")
    both = replace(auto, fuse=("auto", "gripper"))
    with pytest.raises(StrapError, match="--fuse auto cannot be combined with gripper"):
        both.require_judgeable("strap", "stops", "l2")
    with pytest.raises(StrapError, match="method 'random' compares none"):
        auto.require_judgeable("random", "stops", "l2")
    with pytest.raises(StrapError, match="the queries are whole demonstrations: name what to fuse"):
        auto.require_judgeable("d-t", "full", "l2")
    with pytest.raises(StrapError, match="uses the metric l2, but the metric is cosine"):
        auto.require_judgeable("strap", "stops", "cosine")
