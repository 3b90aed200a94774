"""A run as plain data: what a page is told of demonstrations, queries and matches."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import strap
from strap.errors import StrapError
from strap.pipeline import RetrievalOptions, run_retrieval
from strap.runs import Run
from strap.segments import Segmentation, read_segments
from strap.stop_frames import measure_movements
from strap.synthetic import Planted
from strap.types import Matches
from strap.view.contents import Sources, describe_run, grade_costs, significant
from strap.view.run_views import RunView


def test_matches_are_columns_in_the_order_of_the_table(run: Run, planted: Planted) -> None:
    found = describe_run(Sources.of(run))
    columns, prior = found["matches"], strap.open_dataset(planted.prior)
    assert {len(column) for column in columns.values()} == {len(run.matches)} == {12}
    for row, match in enumerate(run.matches):
        query = found["queries"][columns["query"][row]]
        demonstration = found["demonstrations"][query["demonstration"]]
        named = (demonstration["id"], query["start"], query["stop"])
        assert named == (match.query.trajectory_id, match.query.start, match.query.stop)
        place = tuple(columns[name][row] for name in ("trajectory", "start", "stop"))
        assert place == (match.segment.trajectory_id, match.segment.start, match.segment.stop)
        assert found["datasets"][columns["dataset"][row]] == match.dataset
        assert found["instructions"][columns["instruction"][row]] == match.instruction
        assert columns["length"][row] == prior[match.segment.trajectory_id].length
        assert columns["cost"][row] == match.cost
        assert columns["rank"][row] == match.rank
        assert columns["cost_per_frame"][row] == match.cost / len(match.query)
    json.dumps(found, allow_nan=False)


def test_queries_are_all_segments_and_each_demonstration_knows_its_own(run: Run) -> None:
    found = describe_run(Sources.of(run))
    segments = read_segments(run.path / "segments.json")
    assert len(found["queries"]) == len(segments) == 6
    for number, demonstration in enumerate(found["demonstrations"]):
        own = [i for i, q in enumerate(found["queries"]) if q["demonstration"] == number]
        assert demonstration["queries"] == own
        spans = [(found["queries"][i]["start"], found["queries"][i]["stop"]) for i in own]
        assert [span[0] for span in spans] == [0, *(span[1] for span in spans[:-1])]
        assert spans[-1][1] == demonstration["length"]


def test_the_movement_that_decided_the_cuts(run: Run, planted: Planted) -> None:
    found = describe_run(Sources.of(run))
    target = strap.open_dataset(planted.target)
    moved = measure_movements(target, position=None, norm="l1", unit="step")
    assert moved is not None
    for demonstration in found["demonstrations"]:
        assert demonstration["threshold"] == 0.005
        assert len(demonstration["movement"]) == demonstration["length"]
        expected = moved.values[demonstration["id"]]
        assert np.allclose(demonstration["movement"][:-1], expected, rtol=1e-3)


def test_what_was_not_cut_by_stops_has_no_threshold(planted: Planted, tmp_path: Path) -> None:
    options = RetrievalOptions("pixels", 6, Segmentation("window"), augmented="none")
    run = run_retrieval(planted.target, [planted.prior], tmp_path / "run", options)
    found = describe_run(Sources.of(run))
    assert {demonstration["threshold"] for demonstration in found["demonstrations"]} == {None}
    assert all(demonstration["movement"] for demonstration in found["demonstrations"])


def test_a_method_of_single_frames_has_those_as_queries(planted: Planted, tmp_path: Path) -> None:
    options = RetrievalOptions("pixels", 6, method="d-s", augmented="none")
    run = run_retrieval(planted.target, [planted.prior], tmp_path / "run", options)
    found = describe_run(Sources.of(run))
    assert {query["stop"] - query["start"] for query in found["queries"]} == {1}
    assert len(found["queries"]) == len(run.matches.queries)


def test_lengths_need_no_store(run: Run) -> None:
    without = {key: value for key, value in run.manifest.items() if key != "stores"}
    bare = describe_run(Sources.of(replace(run, manifest=without)))
    assert bare["matches"]["length"] == describe_run(Sources.of(run))["matches"]["length"]


def test_quality_is_told_by_terciles_of_the_cost_per_frame(run: Run) -> None:
    grades = grade_costs(run.matches)
    costs = np.array([match.cost / len(match.query) for match in run.matches])
    assert (costs <= grades["good"]).sum() == (costs > grades["poor"]).sum() == 4


def test_a_run_without_matches(run: Run) -> None:
    found = describe_run(Sources.of(replace(run, matches=Matches(()))))
    assert found["quality"] == {"good": 0.0, "poor": 0.0}
    assert set(map(len, found["matches"].values())) == {0}


def test_the_head_of_the_page(view: RunView) -> None:
    found = view.contents()
    assert found["kind"] == "run"
    assert found["name"] == view.name == "my-run"
    assert found["cameras"][0] == "agentview_rgb"
    assert found["fps"] == 20
    facts = dict(found["facts"])
    assert facts["encoder"] == "pixels"
    assert facts["matches"] == "12"
    assert facts["prior"] == "prior.hdf5"
    assert all(isinstance(text, str) for pair in found["facts"] for text in pair)


def test_nothing_is_chosen_at_first(view: RunView) -> None:
    chosen = view.contents()["choices"]
    assert (chosen["rejected"], chosen["kept"], chosen["undo"]) == ([], 12, 0)


def test_a_changed_dataset_is_told(own_planted: Planted, tmp_path: Path) -> None:
    options = RetrievalOptions("pixels", 6, augmented="none")
    run = run_retrieval(own_planted.target, [own_planted.prior], tmp_path / "run", options)
    own_planted.prior.touch()
    with pytest.raises(StrapError, match="has changed since"):
        RunView.open(run.path)


def test_a_query_of_no_demonstration_is_told(run: Run) -> None:
    first = run.matches[0]
    lost = replace(first, query=replace(first.query, trajectory_id="demo_99"))
    with pytest.raises(StrapError, match="which is not part of a demonstration in"):
        describe_run(Sources.of(replace(run, matches=Matches((lost,)))))


def test_significant_digits() -> None:
    assert significant([0.0, 0.000123456, -98765.4, np.inf]) == [0.0, 0.0001235, -98770.0, 0.0]
    assert significant([[1.23456], [2.0]], 3) == [[1.23], [2.0]]
