"""Every retrieval method: what it finds, against slow twins, and from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.stores import make_store

import strap
from strap.cli import main
from strap.datasets import open_dataset
from strap.errors import StrapError
from strap.pipeline import RetrievalOptions
from strap.retrieval import METHODS, Catalogue, MatchOptions, retrieve_matches
from strap.retrieval.options import USED_BY
from strap.retrieval.selection import select
from strap.runs import open_run
from strap.segments import Segmentation
from strap.store import EmbeddingStore
from strap.synthetic import Planted
from strap.types import Match, Matches, Segment


def made(path: Path, lengths: list[int], seed: int, dim: int = 5) -> EmbeddingStore:
    rng = np.random.default_rng(seed)
    arrays = {f"t{i}": rng.standard_normal((n, dim)).round(1) for i, n in enumerate(lengths)}
    return make_store(path, arrays)


def whole(store: EmbeddingStore) -> list[Segment]:
    return [Segment(key, 0, store.entry(key).length) for key in store.ids]


def naive_states(
    target: EmbeddingStore, prior: EmbeddingStore, metric: str
) -> list[tuple[float, int, int, str, int]]:
    """(cost, number of the trajectory, frame, target trajectory, target frame), cheapest first."""
    rows = []
    for number, key in enumerate(prior.ids):
        for frame, vector in enumerate(np.asarray(prior[key], np.float64)):
            found = []
            for place, name in enumerate(target.ids):
                for t, other in enumerate(np.asarray(target[name], np.float64)):
                    cost = float(np.linalg.norm(vector - other))
                    if metric == "cosine":
                        lengths = np.linalg.norm(vector) * np.linalg.norm(other)
                        cost = float(1 - vector @ other / lengths)
                    found.append((cost, place, t, name))
            cost, _, t, name = min(found)
            rows.append((cost, number, frame, name, t))
    return sorted(rows)


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    ours=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    top_k=st.integers(1, 60),
    metric=st.sampled_from(["l2", "cosine"]),
    seed=st.integers(0, 1000),
)
def test_states_are_the_nearest_frames(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    ours: list[int],
    top_k: int,
    metric: str,
    seed: int,
) -> None:
    folder = tmp_path_factory.mktemp("states")
    target, prior = made(folder / "a", ours, seed), made(folder / "b", lengths, seed + 1)
    options = MatchOptions(method="d-s", top_k=top_k, metric=metric, padding=3)
    found = retrieve_matches(whole(target), target, [prior], options).matches
    expected = naive_states(target, prior, metric)[:top_k]
    assert [match.cost for match in found] == pytest.approx([row[0] for row in expected], abs=1e-9)
    for match, (_, number, frame, _, _) in zip(found, expected, strict=True):
        if [row[0] for row in expected].count(match.cost) == 1:
            length = lengths[number]
            padded = Segment(prior.ids[number], max(0, frame - 3), min(length, frame + 3))
            assert match.segment == padded
            assert len(match.query) == 1


def test_ties_between_states_go_to_the_earlier_trajectory_and_frame(tmp_path: Path) -> None:
    target = make_store(tmp_path / "a", {"t0": np.ones((2, 3))})
    prior = make_store(tmp_path / "b", {"p0": np.ones((12, 3)), "p1": np.ones((4, 3))})
    options = MatchOptions(method="d-s", top_k=13, padding=1)
    found = retrieve_matches(whole(target), target, [prior], options).matches
    assert [m.segment.trajectory_id for m in found] == ["p0"] * 12 + ["p1"]
    assert [m.segment.stop for m in found] == [*range(1, 13), 1]
    assert {m.query for m in found} == {Segment("t0", 0, 1)}
    assert [m.rank for m in found] == list(range(1, 14))
    assert {m.cost for m in found} == {0.0}


def test_a_demonstration_does_not_find_its_own_states(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    arrays = {"a": rng.random((6, 4)), "b": rng.random((6, 4)) + 5}
    names = {"a": "same", "b": "other"}
    target = make_store(tmp_path / "a", {"a": arrays["a"]}, fingerprints=names)
    prior = make_store(tmp_path / "b", arrays, fingerprints=names)
    for shared, expected in (("self", {"b"}), ("keep", {"a"}), ("all", {"b"})):
        options = MatchOptions(method="d-s", top_k=6, shared=shared)  # type: ignore[arg-type]
        found = retrieve_matches(whole(target), target, [prior], options).matches
        assert {m.segment.trajectory_id for m in found} == expected


def test_fractions_and_thresholds_of_states(tmp_path: Path) -> None:
    target, prior = made(tmp_path / "a", [8], 1), made(tmp_path / "b", [40, 60], 2)

    def found(**options: float) -> Matches:
        asked = MatchOptions(method="d-s", top_k=None, **options)  # type: ignore[arg-type]
        return retrieve_matches(whole(target), target, [prior], asked).matches

    assert len(found(fraction=0.1)) == 10
    costs = [row[0] for row in naive_states(target, prior, "l2")]
    limit = max(costs) - 0.75 * (max(costs) - min(costs))
    assert len(found(threshold=0.75)) == sum(cost <= limit for cost in costs)
    assert len(found(threshold=0)) == 100
    assert [m.cost for m in found(fraction=1, max_cost=costs[6])] == pytest.approx(costs[:7])


def test_selection_by_fraction_threshold_and_cost() -> None:
    costs, frames = [[1.0, 4.0, 9.0], [2.0, 6.0]], [1, 2]
    asked = {"top_k": None}
    assert select(costs, frames, MatchOptions(**asked, fraction=0.6)) == [2, 1]  # type: ignore
    # Per frame the costs are 1, 4, 9 and 1, 3: half-way between the ends lies 5.
    assert select(costs, frames, MatchOptions(**asked, threshold=0.5)) == [2, 2]  # type: ignore
    assert select(costs, frames, MatchOptions(top_k=5, max_cost=3)) == [1, 2]
    assert select(costs, frames, MatchOptions(top_k=5, max_cost=0.5)) == [0, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "d_s"}, "unknown retrieval method 'd_s': did you mean 'd-s'"),
        ({"fraction": 0.5}, r"threshold \(given: top_k and fraction\)"),
        ({"top_k": None}, r"threshold \(given: none\)"),
        ({"top_k": None, "fraction": 0.0}, "fraction is 0.0"),
        ({"top_k": None, "threshold": 1.5}, "threshold is 1.5"),
        ({"max_cost": -1.0}, "max_cost is -1.0"),
        ({"padding": 0}, "padding is 0"),
    ],
)
def test_bad_options_are_told(options: dict[str, object], message: str) -> None:
    with pytest.raises(StrapError, match=message):
        MatchOptions(**options)  # type: ignore[arg-type]


def test_what_is_too_dear_leaves_its_share_to_other_queries(tmp_path: Path) -> None:
    near, far = np.zeros((3, 2)), np.full((3, 2), 100.0)
    target = make_store(tmp_path / "a", {"near": near, "far": far})
    prior = make_store(tmp_path / "b", {f"p{i}": near + i / 100 for i in range(12)})
    options = MatchOptions(top_k=6, max_cost=1.0)
    found = retrieve_matches(whole(target), target, [prior], options).matches
    assert [match.segment.trajectory_id for match in found] == [f"p{i}" for i in range(6)]
    with pytest.raises(StrapError, match="nothing was retrieved: raise --max-cost"):
        retrieve_matches([Segment("far", 0, 3)], target, [prior], options)


def test_whole_trajectories_are_ranked_by_warping(tmp_path: Path) -> None:
    target, prior = made(tmp_path / "a", [20], 1), made(tmp_path / "b", [12, 30, 25], 2)
    planted = {**{k: prior[k] for k in prior.ids}, "t9": np.repeat(target["t0"], 2, axis=0)[:33]}
    prior = make_store(tmp_path / "c", planted)
    options = MatchOptions(method="d-t", top_k=3, steps="classic")
    found = retrieve_matches(whole(target), target, [prior], options).matches
    assert str(found[0].segment) == "t9[0:33]"
    segments = retrieve_matches(
        whole(target), target, [prior], MatchOptions(top_k=3, steps="classic")
    ).matches
    assert [m.cost for m in found] == [m.cost for m in segments]
    assert all(m.segment.start == 0 for m in found)
    lengths = {key: prior.entry(key).length for key in prior.ids}
    assert all(len(m.segment) == lengths[m.segment.trajectory_id] for m in found)


def random_matches(planted: Planted, seed: int) -> Matches:
    target, prior = (
        Catalogue.of_dataset(open_dataset(path)) for path in (planted.target, planted.prior)
    )
    queries = [Segment("demo_0", 0, 30), Segment("demo_0", 30, 90), Segment("demo_1", 0, 90)]
    options = MatchOptions(method="random", top_k=40, seed=seed)
    return retrieve_matches(queries, target, [prior], options).matches


def test_random_draws_are_spread_and_follow_the_seed(planted: Planted) -> None:
    found = random_matches(planted, 0)
    assert found == random_matches(planted, 0) != random_matches(planted, 1)
    counts = [sum(m.query == query for m in found) for query in found.queries]
    assert counts == [14, 13, 13]
    lengths = {t.id: t.length for t in open_dataset(planted.prior)}
    for match in found:
        whole_length = lengths[match.segment.trajectory_id]
        assert len(match.segment) == min(len(match.query), whole_length)
        assert match.segment.stop <= whole_length
    assert len({m.segment.trajectory_id for m in found}) > 6
    assert len({m.segment.start for m in found}) > 10


def spoken(file: Path, instructions: list[str], seed: int) -> Path:
    rng = np.random.default_rng(seed)
    with h5py.File(file, "w") as handle:
        for index, text in enumerate(instructions):
            demo = handle.create_group(f"data/demo_{index}")
            demo["actions"] = rng.random((6 + index, 7))
            demo["obs/agentview_rgb"] = np.zeros((6 + index, 8, 8, 3), np.uint8)
            demo.attrs["lang"] = text
    return file


def by_language(target: Path, prior: Path, **options: object) -> list[Match]:
    ours, theirs = (Catalogue.of_dataset(open_dataset(path)) for path in (target, prior))
    queries = [Segment(key, 0, known.length) for key, known in ours.trajectories.items()]
    asked = MatchOptions(method="language", text_encoder="words", **options)  # type: ignore
    return list(retrieve_matches(queries, ours, [theirs], asked).matches)


def test_language_finds_the_instructions_that_are_nearest(tmp_path: Path) -> None:
    target = spoken(tmp_path / "a.hdf5", ["open the red drawer"] * 2, 0)
    texts = ["close a door", "open the drawer", "open the red drawer", "wipe it", "open the drawer"]
    prior = spoken(tmp_path / "b.hdf5", texts, 1)
    found = by_language(target, prior, top_k=3)
    assert [m.instruction for m in found] == [texts[2], texts[1], texts[1]]
    assert [str(m.segment) for m in found] == ["demo_2[0:8]", "demo_1[0:7]", "demo_4[0:10]"]
    assert [m.query.trajectory_id for m in found] == ["demo_0", "demo_1", "demo_0"]
    assert [m.rank for m in found] == [1, 1, 2]
    assert found[0].cost == pytest.approx(0, abs=1e-6)
    assert found[1].cost == found[2].cost > 0.01


def test_language_needs_instructions(tmp_path: Path) -> None:
    target = spoken(tmp_path / "a.hdf5", ["open"], 0)
    prior = spoken(tmp_path / "b.hdf5", ["open", ""], 1)
    with pytest.raises(StrapError, match="a trajectory of the prior has none"):
        by_language(target, prior, top_k=1)


def test_random_knows_no_fraction(planted: Planted) -> None:
    target, prior = (
        Catalogue.of_dataset(open_dataset(path)) for path in (planted.target, planted.prior)
    )
    options = MatchOptions(method="random", top_k=None, fraction=0.5)
    with pytest.raises(StrapError, match="'random' has no costs"):
        retrieve_matches([Segment("demo_0", 0, 9)], target, [prior], options)


@pytest.mark.parametrize("method", ["strap", "d-s", "random", "language"])
def test_queries_of_another_dataset_are_told(tmp_path: Path, method: str) -> None:
    target, prior = made(tmp_path / "a", [8], 1), made(tmp_path / "b", [40], 2)
    options = MatchOptions(method=method, text_encoder="words")  # type: ignore[arg-type]
    with pytest.raises(StrapError, match="part of trajectory 'x', which target"):
        retrieve_matches([Segment("x", 0, 5)], target, [prior], options)


def test_methods_that_compare_features_need_them(planted: Planted) -> None:
    target, prior = (
        Catalogue.of_dataset(open_dataset(path)) for path in (planted.target, planted.prior)
    )
    options = MatchOptions(method="d-s")
    with pytest.raises(StrapError, match="'d-s' compares features"):
        retrieve_matches([Segment("demo_0", 0, 9)], target, [prior], options)


@pytest.mark.parametrize("method", ["br", "fr"])
def test_learned_methods_refuse_stores_of_other_features(tmp_path: Path, method: Any) -> None:
    target, prior = made(tmp_path / "a", [8], 1), made(tmp_path / "b", [40], 2)
    with pytest.raises(StrapError, match=f"encoder 'made': run `strap retrieve --method {method}`"):
        strap.retrieve(whole(target), target, prior, method=method)
    with pytest.raises(StrapError, match="unknown retrieval method 'dt'"):
        strap.retrieve(whole(target), target, prior, method="dt")  # type: ignore[arg-type]


def test_the_defaults_in_python_are_the_methods_own(tmp_path: Path) -> None:
    target, prior = made(tmp_path / "a", [20], 1), made(tmp_path / "b", [12, 30, 25], 2)
    for options in (
        MatchOptions(method="d-t", top_k=3, steps="classic"),
        MatchOptions(method="d-s", top_k=3, metric="cosine"),
    ):
        method: Any = options.method
        expected = retrieve_matches(whole(target), target, [prior], options).matches
        assert strap.retrieve(whole(target), target, prior, method=method, top_k=3) == expected
    other = strap.retrieve(whole(target), target, prior, method="d-s", top_k=3, metric="l2")
    assert other != expected


@pytest.mark.parametrize("method", ["d-t", "d-s", "language"])
def test_methods_of_whole_queries_refuse_segments(tmp_path: Path, method: Any) -> None:
    target, prior = made(tmp_path / "a", [20], 1), made(tmp_path / "b", [40], 2)
    for query in (Segment("t0", 0, 9), Segment("t0", 9, 20)):
        with pytest.raises(StrapError, match=r'which has 20 frames, .*dataset, method="full"\)'):
            strap.retrieve([query], target, prior, method=method)


def test_methods_of_whole_queries_refuse_options_of_cuts(tmp_path: Path) -> None:
    for cut, word in (
        (Segmentation("window"), "segmentation is window, .*leave --segmentation out"),
        (Segmentation(min_length=5), "min_length is 5, .*leave --min-length out"),
        (Segmentation(position="x"), "position is x, .*leave --position out"),
    ):
        for method in ("d-t", "d-s", "br", "fr", "language"):
            with pytest.raises(StrapError, match=word):
                RetrievalOptions(method=method, segmentation=cut).resolved()
    rough = RetrievalOptions(method="d-t", segmentation=Segmentation(position="x"), max_roughness=2)
    assert rough.resolved().resolved().segmentation == Segmentation("full", position="x")
    words = ["retrieve", "--target", "a", "--prior", "b", "--out", str(tmp_path / "run")]
    assert main([*words, "--method", "d-t", "--window", "5"]) == 2


@pytest.mark.parametrize("method", ["strap", "d-t", "d-s", "random", "language"])
def test_every_method_makes_a_run(planted: Planted, tmp_path: Path, method: str) -> None:
    call = ["retrieve", "--target", str(planted.target), "--prior", str(planted.prior)]
    call += ["--method", method, "--top-k", "7", "--out", str(tmp_path / "run")]
    call += ["--augmented", "none"]
    call += ["--text-encoder", "words"] if method == "language" else []
    call += ["--encoder", "pixels"] if method in ("strap", "d-t", "d-s") else []
    assert main([*call, "--target-episodes", "1"]) == 0
    run = open_run(tmp_path / "run")
    assert len(run.matches) == 7
    assert {match.query.trajectory_id for match in run.matches} == {"demo_1"}
    assert run.augmented is None
    target, priors = run.datasets()
    assert list(target.ids) == ["demo_1"]
    assert len(priors[0]) == 12
    assert main([*call, "--target-episodes", "1"]) == 0
    assert main([*call, "--target-episodes", "0"]) == 2  # another run's folder


def test_what_a_method_lacks_is_told(
    planted: Planted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["retrieve", "--target", str(planted.target), "--prior", str(planted.prior)]
    call += ["--out", str(tmp_path / "run")]
    assert main([*call, "--method", "d-s"]) == 2
    assert "no prior is a store that names one: give one with --encoder" in capsys.readouterr().err
    assert main([*call, "--encoder", "pixels", "--fraction", "2"]) == 2
    assert "fraction is 2.0" in capsys.readouterr().err


def test_chosen_prior_trajectories_alone_are_searched(planted: Planted, tmp_path: Path) -> None:
    call = ["retrieve", "--target", str(planted.target), "--prior", str(planted.prior)]
    call += ["--encoder", "pixels", "--top-k", "9", "--stores", str(tmp_path / "stores"), "--json"]
    # The first run leaves a store with all trajectories; the second may use three of them.
    assert main([*call, "--out", str(tmp_path / "all")]) == 0
    assert main([*call, "--out", str(tmp_path / "three"), "--prior-episodes", "2:5"]) == 0
    found = {m.segment.trajectory_id for m in open_run(tmp_path / "three").matches}
    assert found == {"demo_2", "demo_3", "demo_4"}
    folders = json.loads((tmp_path / "three/manifest.json").read_text())["stores"]
    assert folders == json.loads((tmp_path / "all/manifest.json").read_text())["stores"]


def test_a_store_of_chosen_trajectories_grows(planted: Planted, tmp_path: Path) -> None:
    call = ["retrieve", "--target", str(planted.target), "--prior", str(planted.prior)]
    call += ["--encoder", "pixels", "--top-k", "3", "--stores", str(tmp_path / "stores")]
    for place in ("0", "1", "0:2"):
        out = tmp_path / place.replace(":", "-")
        assert main([*call, "--out", str(out), "--target-episodes", place]) == 0
    both = open_run(tmp_path / "0-2").matches
    assert {match.query.trajectory_id for match in both} == {"demo_0", "demo_1"}


USELESS: dict[str, dict[str, Any]] = {
    "strap": {"padding": 3, "learning_steps": 5, "seed": 4, "text_encoder": "words"},
    "d-t": {"matches_per_trajectory": 3, "length_ratio": (1.0, 1.1), "padding": 3},
    "d-s": {"steps": "fmp", "rule": "released", "length_ratio": (1.0, 1.1), "seed": 1},
    "random": {"fuse": ("gripper",), "metric": "cosine", "max_cost": 0.0, "rule": "released"},
    "language": {"fuse": ("gripper",), "steps": "fmp", "matches_per_trajectory": 2},
}


@pytest.mark.parametrize(
    ("method", "name"), [(method, name) for method, given in USELESS.items() for name in given]
)
def test_options_that_a_method_makes_no_use_of_are_refused(method: Any, name: str) -> None:
    RetrievalOptions(method=method).resolved().resolved()  # as a run notes them
    word = "--step-set" if name == "steps" else f"--{name.replace('_', '-')}"
    with pytest.raises(StrapError, match=f"leave {word} out, or (choose --method|give --fuse)"):
        RetrievalOptions(method=method, **{name: USELESS[method][name]}).resolved()


def test_options_that_a_method_has_are_known() -> None:
    known = RetrievalOptions.__dataclass_fields__
    assert USED_BY.keys() <= known.keys()
    assert all(method in METHODS for methods in USED_BY.values() for method in methods)
    message = "length_ratio is 1 1.1, but method 'd-t' does not use it: leave --length-ratio out"
    with pytest.raises(StrapError, match=f"{message}, or choose --method strap"):
        MatchOptions(method="d-t", length_ratio=(1, 1.1))
