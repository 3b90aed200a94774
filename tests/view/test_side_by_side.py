"""Runs and rollouts side by side, and datasets, as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import strap
from strap.errors import StrapError
from strap.evaluation.results import write_video
from strap.pipeline import RetrievalOptions, run_retrieval
from strap.runs import Run
from strap.segments import Segmentation, read_segments
from strap.synthetic import Planted
from strap.types import Match
from strap.view.side_by_side import (
    describe_comparison,
    describe_dataset,
    describe_evaluations,
    find_video,
    tell_apart,
)

PLAIN = RetrievalOptions(encoder="pixels", top_k=12, augmented="none")


def describe(run: Run) -> dict[str, Any]:
    """A run as the page has it, as far as it is compared."""
    target, priors = run.datasets()
    queries = read_segments(run.path / "segments.json")
    names = [prior.name for prior in priors]
    numbers = list(target.ids)
    return {
        "title": "reach",
        "name": run.path.name,
        "demonstrations": [{"id": key} for key in numbers],
        "queries": [
            {"demonstration": numbers.index(q.trajectory_id), "start": q.start, "stop": q.stop}
            for q in queries
        ],
        "datasets": names,
        "matches": {
            "query": [queries.index(m.query) for m in run.matches],
            "dataset": [names.index(m.dataset) for m in run.matches],
            "trajectory": [m.segment.trajectory_id for m in run.matches],
            "start": [m.segment.start for m in run.matches],
            "stop": [m.segment.stop for m in run.matches],
        },
    }


@pytest.fixture(scope="module")
def runs(planted: Planted, tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    options = {
        "twelve": PLAIN,
        "six": replace(PLAIN, top_k=6),
        "window": replace(PLAIN, segmentation=Segmentation(method="window", window=40)),
    }
    return [
        run_retrieval(planted.target, [planted.prior], folder / name, own, stores=folder / "stores")
        for name, own in options.items()
    ]


def is_same(one: Match, other: Match) -> bool:
    """Whether two matches have a frame in common, frame by frame."""
    a, b = one.segment, other.segment
    frames = set(range(a.start, a.stop)) & set(range(b.start, b.stop))
    return one.dataset == other.dataset and a.trajectory_id == b.trajectory_id and bool(frames)


def test_runs_side_by_side(runs: list[Run]) -> None:
    names = ["twelve", "six", "window"]
    found = describe_comparison(runs, [describe(run) for run in runs])
    assert (found["kind"], found["name"]) == ("comparison", "twelve and six and window")
    assert [run["name"] for run in found["runs"]] == names
    # Cut at 30 and 60 by the first two, at 40 and 80 by the third, of 90 frames.
    assert [row["queries"] for row in found["alignment"]] == [
        *([0, 0, 0], [1, 1, 1], [2, 2, 1]),
        *([3, 3, 3], [4, 4, 4], [5, 5, 4]),
    ]
    queries = [read_segments(run.path / "segments.json") for run in runs]
    shared = 0
    for row in found["alignment"]:
        lists = [
            [n for n, match in enumerate(run.matches) if match.query == own[number]]
            for run, own, number in zip(runs, queries, row["queries"], strict=True)
        ]
        for number, run in enumerate(runs):
            others = [
                runs[other].matches[n]
                for other in range(len(runs))
                if other != number
                for n in lists[other]
            ]
            only = [n for n in lists[number] if not any(is_same(run.matches[n], o) for o in others)]
            assert row["only"][number] == only
            shared += len(lists[number]) - len(only)
        assert row["only"][1] == []  # the cheapest six are among the cheapest twelve
    assert shared
    assert any(row["only"][0] for row in found["alignment"])


def test_a_query_that_another_run_has_not(runs: list[Run]) -> None:
    one, other = describe(runs[0]), describe(runs[1])
    other["queries"] = other["queries"][:3]  # of the first demonstration
    kept = [row for row, query in enumerate(other["matches"]["query"]) if query < 3]
    other["matches"] = {k: [v[row] for row in kept] for k, v in other["matches"].items()}
    found = describe_comparison(runs[:2], [one, other])
    last = found["alignment"][-1]
    assert last["queries"] == [5, None]
    every = [row for row, query in enumerate(one["matches"]["query"]) if query == 5]
    assert last["only"] == [every, []]


def test_runs_of_other_targets_are_not_compared(runs: list[Run]) -> None:
    arguments = {**runs[1].manifest["arguments"], "target": "/other"}
    other = replace(runs[1], manifest={**runs[1].manifest, "arguments": arguments})
    with pytest.raises(
        StrapError, match=r"have different targets \(.*; /other\): only runs of the same"
    ):
        describe_comparison([runs[0], other], [describe(run) for run in runs[:2]])


def test_names_tell_apart(tmp_path: Path) -> None:
    paths = [tmp_path / name / "policy" / "evaluation" / "task-0" for name in ("bc", "strap")]
    assert tell_apart(paths) == ["bc", "strap"]
    assert tell_apart([tmp_path / "a", tmp_path / "b"]) == ["a", "b"]
    assert tell_apart([tmp_path]) == [tmp_path.name]
    assert tell_apart([tmp_path, tmp_path]) == [str(tmp_path)] * 2


def write_evaluation(out: Path, rows: list[Mapping[str, Any]], **about: Any) -> Path:
    out.mkdir(parents=True)
    settings = {"suite": "libero_10", "task": "put the mug", "horizon": 6, "checkpoint": "x"}
    (out / "evaluation.json").write_text(json.dumps({**settings, **about}))
    lines = [json.dumps(row) + "\n" for row in rows]
    (out / "episodes.jsonl").write_text("".join(lines))
    return out


def episode(state: int, steps: int, success: bool, **goals: int | None) -> dict[str, Any]:
    return {"state": state, "steps": steps, "success": success, "partial": 0.5, "goals": goals}


def test_rollouts_side_by_side(tmp_path: Path) -> None:
    video = {**episode(0, 4, True, there=4, near=2), "video": "videos/000-success.mp4"}
    rows = [episode(2, 6, False, near=None, there=None), video, episode(1, 5, True, near=3)]
    one = write_evaluation(tmp_path / "bc" / "evaluation" / "t", rows)
    write_video(one / "videos" / "000-success.mp4", np.zeros((4, 32, 32, 3), np.uint8))
    two = write_evaluation(tmp_path / "strap" / "evaluation" / "t", [episode(1, 6, False)])
    found = describe_evaluations([one, two])
    assert (found["kind"], found["title"], found["fps"]) == ("evaluation", "put the mug", 20)
    assert [own["name"] for own in found["evaluations"]] == ["bc", "strap"]
    near, there = {"name": "near", "step": 2}, {"name": "there", "step": 4}
    assert found["evaluations"][0]["episodes"] == [
        {"state": 0, "success": True, "steps": 4, "sub_goals": [near, there], "video": True},
        {
            "state": 1,
            "success": True,
            "steps": 5,
            "video": False,
            "sub_goals": [{"name": "near", "step": 3}],
        },
        {"state": 2, "success": False, "steps": 6, "sub_goals": [], "video": False},
    ]
    facts = dict(found["facts"])
    assert facts["bc"].startswith("2 of 3 succeed")
    assert (facts["only bc"], facts["only strap"]) == ("1", "0")
    assert find_video(one, 0) == (one / "videos" / "000-success.mp4").resolve()
    with pytest.raises(StrapError, match=r"initial state 1 .* has no video"):
        find_video(one, 1)
    with pytest.raises(StrapError, match="no episode from initial state 9"):
        find_video(one, 9)
    json.dumps(found, allow_nan=False)


def test_a_video_outside_the_folder_is_none(tmp_path: Path) -> None:
    (tmp_path / "secret.mp4").write_bytes(b"x")
    names = ["../secret.mp4", str(tmp_path / "secret.mp4"), "episodes.jsonl", "videos/a\0.mp4", 3]
    rows = [{**episode(n, 1, True), "video": name} for n, name in enumerate(names)]
    rows.append({**episode(9, 1, True), "video": "videos/link.mp4"})
    out = write_evaluation(tmp_path / "out", rows)
    (out / "videos").mkdir()
    (out / "videos" / "link.mp4").symlink_to(tmp_path / "secret.mp4")
    found = describe_evaluations([out])["evaluations"][0]["episodes"]
    assert [own["video"] for own in found] == [False] * 6
    for state in (*range(len(names)), 9):
        with pytest.raises(StrapError, match="has no video"):
            find_video(out, state)


def test_what_cannot_be_shown_is_told(tmp_path: Path) -> None:
    one = write_evaluation(tmp_path / "a", [episode(0, 1, True)])
    two = write_evaluation(tmp_path / "b", [episode(0, 1, True)], task="open the drawer")
    with pytest.raises(StrapError, match=r"differ in task \(put the mug, open the drawer\)"):
        describe_evaluations([one, two])
    with pytest.raises(StrapError, match="holds no evaluation: make one with `strap evaluate`"):
        describe_evaluations([tmp_path])
    for number, row in enumerate(
        ({"state": 0}, {**episode(0, 1, True), "success": "yes"}, {"state": "x"}, [1], 3)
    ):
        damaged = write_evaluation(tmp_path / str(number), [row])  # type: ignore[list-item]
        with pytest.raises(StrapError, match=r"episodes\.jsonl' is damaged"):
            describe_evaluations([damaged])


def test_a_dataset(planted: Planted) -> None:
    dataset = strap.open_dataset(planted.prior)
    found = describe_dataset(dataset)
    assert (found["kind"], found["cameras"]) == ("dataset", ["agentview_rgb"])
    assert [row["id"] for row in found["episodes"]] == list(dataset.ids)
    assert found["episodes"][3] == {
        "id": "demo_3",
        "length": dataset["demo_3"].length,
        "instruction": dataset["demo_3"].instruction,
    }
    facts = dict(found["facts"])
    assert (facts["format"], facts["episodes"]) == ("libero", "12")
    assert facts["frames"] == str(sum(t.length for t in dataset))
    with pytest.raises(StrapError, match="is empty"):
        describe_dataset(dataset.select([]))
