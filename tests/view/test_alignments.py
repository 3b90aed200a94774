"""How a match is aligned: the path, the costs around it, and what the robot did."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import strap
from strap.dtw import best_match
from strap.dtw.metrics import local_costs
from strap.pipeline import RetrievalOptions, run_retrieval
from strap.retrieval import Method
from strap.runs import Run
from strap.store import open_store
from strap.synthetic import Planted
from strap.types import Matches
from strap.view import alignments
from strap.view.alignments import Features, describe_alignment
from strap.view.contents import Sources
from strap.view.errors import NotThereError


def describe(run: Run, row: int) -> dict[str, Any]:
    sources = Sources.of(run)
    return describe_alignment(sources, Features(sources), row)


def retrieve(planted: Planted, out: Path, **options: Any) -> Run:
    chosen = RetrievalOptions("pixels", 6, augmented="none", **options)
    return run_retrieval(planted.target, [planted.prior], out, chosen)


@pytest.mark.parametrize("row", range(12))
def test_the_path_leads_through_query_and_match_at_the_matchs_cost(run: Run, row: int) -> None:
    match = run.matches[row]
    path = describe(run, row)["path"]
    queries, frames, costs = zip(*path, strict=True)
    assert (queries[0], queries[-1]) == (0, len(match.query) - 1)
    assert (frames[0], frames[-1]) == (0, len(match.segment) - 1)
    assert (np.diff(queries) >= 0).all()
    assert (np.diff(frames) >= 0).all()
    assert sum(costs) == pytest.approx(match.cost, rel=1e-3)
    assert {type(number) for cell in path for number in cell} == {int, float}


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_the_costs_are_those_of_the_frames_around_the_match(
    planted: Planted, tmp_path: Path, metric: str
) -> None:
    run = retrieve(planted, tmp_path / "run", metric=metric)
    match = run.matches[0]
    found = describe(run, 0)
    stores = run.manifest["stores"]
    target, prior = (
        open_store(stores[key]) for key in (run.manifest["arguments"]["target"], match.dataset)
    )
    query = target[match.query.trajectory_id][match.query.start : match.query.stop]
    left = max(0, match.segment.start - 40)
    near = prior[match.segment.trajectory_id][left : match.segment.stop + 40]
    expected = local_costs(query, near, metric)
    told = found["costs"]
    assert (told["rows"], told["columns"]) == expected.shape
    assert told["first"] == match.segment.start - left
    values = np.frombuffer(base64.b64decode(told["values"]), np.uint8).reshape(expected.shape)
    shown = told["least"] + values / 255 * (told["most"] - told["least"])
    assert np.abs(shown - expected).max() <= 0.51 / 255 * np.ptp(expected)
    for i, j, cost in found["path"]:
        assert cost == pytest.approx(expected[i, told["first"] + j], rel=1e-4, abs=1e-9)


def test_a_matrix_too_large_for_a_page_is_left_out(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alignments, "MAX_COSTS", 10)
    found = describe(run, 0)
    assert found["costs"] is None
    assert found["path"]


def test_whole_trajectories_are_aligned_inside(planted: Planted, tmp_path: Path) -> None:
    run = retrieve(planted, tmp_path / "run", method="d-t")
    match = run.matches[0]
    stores = run.manifest["stores"]
    target, prior = (
        open_store(stores[key]) for key in (run.manifest["arguments"]["target"], match.dataset)
    )
    expected = best_match(
        target[match.query.trajectory_id], prior[match.segment.trajectory_id], steps="classic"
    )
    assert expected is not None
    path = describe(run, 0)["path"]
    assert match.segment.start == 0
    assert (path[0][1], path[-1][1] + 1) == (expected.start, expected.stop)


def test_fused_features_are_compared_as_they_were(planted: Planted, tmp_path: Path) -> None:
    run = retrieve(planted, tmp_path / "run", fuse=("gripper",))
    found = describe(run, 0)
    assert sum(cost for _, _, cost in found["path"]) == pytest.approx(run.matches[0].cost, rel=1e-3)


@pytest.mark.parametrize(
    ("method", "reason", "has_costs"),
    [("random", "compares no frames", False), ("d-s", "compares single frames", True)],
)
def test_methods_without_a_path_say_so(
    planted: Planted, tmp_path: Path, method: Method, reason: str, has_costs: bool
) -> None:
    found = describe(retrieve(planted, tmp_path / "run", method=method), 0)
    assert found["path"] is None
    assert reason in found["reason"]
    assert (found["costs"] is not None) == has_costs
    assert found["query"]["actions"]


def test_a_store_that_is_gone_is_told(run: Run) -> None:
    stores = {name: f"{place}-gone" for name, place in run.manifest["stores"].items()}
    found = describe(replace(run, manifest={**run.manifest, "stores": stores}), 0)
    assert found["path"] is None
    assert "is not an embedding store" in found["reason"]


def test_a_store_that_has_changed_gives_no_path(run: Run) -> None:
    dearer = replace(run.matches[0], cost=run.matches[0].cost + 1)
    found = describe(replace(run, matches=Matches((dearer,))), 0)
    assert found["path"] is None
    assert "the cheapest path between its ends costs" in found["reason"]


def test_where_the_robot_was_and_what_it_did(run: Run, planted: Planted) -> None:
    match = run.matches[0]
    found = describe(run, 0)
    sides = (
        (found["query"], planted.target, match.query),
        (found["match"], planted.prior, match.segment),
    )
    for told, path, segment in sides:
        trajectory = strap.open_dataset(path)[segment.trajectory_id]
        frames = slice(segment.start, segment.stop)
        positions = np.asarray(trajectory.proprioception["ee_pos"][frames])
        fingers = np.asarray(trajectory.proprioception["gripper_states"][frames])
        assert np.allclose(told["position"], positions, rtol=1e-4)
        assert np.allclose(told["gripper"], np.abs(fingers).sum(axis=1), rtol=1e-4)
        assert np.allclose(told["actions"], trajectory.actions[frames], rtol=1e-4)
        assert told["action_names"] == ["x", "y", "z", "roll", "pitch", "yaw", "gripper"]


def test_what_a_dataset_does_not_have_is_null(dataset: Path) -> None:
    found = alignments.describe_motion(strap.open_dataset(dataset), strap.Segment("demo_0", 3, 9))
    assert found["position"] is None
    assert found["gripper"] is None
    assert np.shape(found["actions"]) == (6, 7)


def test_a_row_that_is_not_there(run: Run) -> None:
    with pytest.raises(NotThereError, match="there is no match 12: there are 12"):
        describe(run, 12)
