from __future__ import annotations

import math
import shutil
import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.datasets.writers import write_rlds
from tests.stores import make_store

import strap
from strap.datasets import OpenOptions
from strap.errors import StrapError
from strap.pipeline import RetrievalOptions, run_retrieval
from strap.retrieval import MatchOptions, dtw_methods, list_catalogues, retrieve_matches
from strap.retrieval.selection import quotas
from strap.search import SearchOptions, search_stores
from strap.segments import Segmentation
from strap.synthetic import Planted
from strap.types import Segment

ascending = st.lists(st.floats(0, 100), max_size=12).map(sorted)


@given(st.lists(ascending, min_size=1, max_size=8), st.integers(1, 60))
def test_even_gives_exactly_what_is_asked(costs: list[list[float]], top_k: int) -> None:
    taken = quotas(costs, top_k)
    assert sum(taken) == min(top_k, sum(map(len, costs)))
    assert all(t <= len(own) for t, own in zip(taken, costs, strict=True))
    # Nobody has two more than somebody who could have had more.
    for mine in taken:
        for theirs, own in zip(taken, costs, strict=True):
            assert mine - theirs <= 1 or theirs == len(own)


def test_the_remainder_goes_to_the_cheapest_next_match() -> None:
    costs = [[1.0, 9.0], [2.0, 5.0], [3.0, 7.0]]
    assert quotas(costs, 4) == [1, 2, 1]
    assert quotas(costs, 5) == [1, 2, 2]
    assert quotas(costs, 2) == [1, 1, 0]
    assert quotas([[1.0], [5.0, 6.0, 7.0]], 4) == [1, 3]
    assert quotas([[2.0, 3.0], [2.0, 3.0]], 3) == [2, 1]  # a tie: the earlier query


def test_released_floors() -> None:
    costs = [[1.0, 2.0, 3.0]] * 3
    assert quotas(costs, 8, rule="released") == [2, 2, 2]
    assert quotas(costs, 2, rule="released") == [1, 1, 1]
    assert quotas([], 2, rule="released") == []


def test_bad_selections() -> None:
    with pytest.raises(StrapError, match="top_k is 0"):
        quotas([[1.0]], 0)
    with pytest.raises(StrapError, match="unknown selection rule 'evn': did you mean 'even'"):
        quotas([[1.0]], 1, rule="evn")  # type: ignore[arg-type]


def line(*values: float) -> np.ndarray:
    """Frames on a line, so that costs can be worked out by hand."""
    return np.array(values)[:, None]


TARGET = {"t0": line(0, 1, 2, 10, 12)}
QUERIES = [Segment("t0", 0, 3), Segment("t0", 3, 5)]  # 0 1 2 and 10 12
PRIOR = {
    "p2": line(5, 0, 1, 2, 5),  # 0 1 2 at cost 0, 1:4;       10 12 as 2 5 at 15, 3:5
    "p10": line(0, 1.5, 2, 10, 12, 40),  # 0 1 2 at 0.5, 0:3;  10 12 at 0, 3:5
    "p1": line(10, 11, 12),  # 0 1 2 as 10 11 12 at 30, 0:3;    10 12 skipping 11 at 0, 0:3
}
COSTS = {
    # Worked out by hand from the steps (1, 1) and (1, 2).
    ("0", "p2"): (0.0, 1, 4),
    ("0", "p10"): (0.5, 0, 3),
    ("0", "p1"): (30.0, 0, 3),
    ("1", "p10"): (0.0, 3, 5),
    ("1", "p1"): (0.0, 0, 3),
    ("1", "p2"): (15.0, 3, 5),
}


def by_hand(query: np.ndarray, trajectory: np.ndarray) -> tuple[float, int, int]:
    """The cheapest path by trying all of them."""
    best = (math.inf, 0, 0)
    frames = range(len(trajectory))

    def walk(row: int, at: int, start: int, cost: float) -> None:
        nonlocal best
        cost += abs(float(query[row, 0] - trajectory[at, 0]))
        if row == len(query) - 1:
            best = min(best, (cost, at + 1, -start))
            return
        for step in (1, 2):
            if at + step in frames:
                walk(row + 1, at + step, start, cost)

    for start in frames:
        walk(0, start, start, 0.0)
    return best[0], -best[2], best[1]


def test_the_fixture_agrees_with_trying_all_paths() -> None:
    for (query, key), expected in COSTS.items():
        own = QUERIES[int(query)]
        found = by_hand(TARGET["t0"][own.start : own.stop], PRIOR[key])
        assert found == expected, (query, key)


def rows(matches: strap.Matches) -> list[tuple[int, str, int, int, float, int]]:
    return [
        (QUERIES.index(m.query), m.segment.trajectory_id, m.segment.start, m.segment.stop,
         m.cost, m.rank)
        for m in matches
    ]  # fmt: skip


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_released_selection_on_a_worked_fixture(tmp_path: Path, backend: str) -> None:
    target, prior = make_store(tmp_path / "t", TARGET), make_store(tmp_path / "p", PRIOR)
    found = strap.retrieve(QUERIES, target, prior, top_k=5, rule="released", backend=backend)
    # int(5 / 2) = 2 each: four matches, not five. p1 and p10 tie for the second query: p1 first.
    assert rows(found) == [
        (0, "p2", 1, 4, 0.0, 1),
        (0, "p10", 0, 3, 0.5, 2),
        (1, "p1", 0, 3, 0.0, 1),
        (1, "p10", 3, 5, 0.0, 2),
    ]
    ours = strap.retrieve(QUERIES, target, prior, top_k=5, backend=backend)
    assert len(ours) == 5
    assert rows(ours)[-1] == (1, "p2", 3, 5, 15.0, 3)  # its next match is cheaper than 30
    assert found[0].instruction == "do p2"
    assert found[0].dataset == f"{tmp_path}/p.data"


def test_several_matches_in_one_trajectory_and_limits_of_length(tmp_path: Path) -> None:
    target = make_store(tmp_path / "t", {"t0": line(0, 1, 2)})
    prior = make_store(tmp_path / "p", {"a": line(0, 1, 2, 50, 0, 1, 1, 2), "b": line(9, 9, 9)})
    query = [Segment("t0", 0, 3)]
    found = strap.retrieve(query, target, prior, top_k=2, matches_per_trajectory=2)
    assert rows(found) == [(0, "a", 0, 3, 0.0, 1), (0, "a", 4, 8, 0.0, 2)]
    found = strap.retrieve(query, target, prior, top_k=1, length_ratio=(1.3, 1.4))
    assert rows(found) == [(0, "a", 4, 8, 0.0, 1)]
    with pytest.raises(StrapError, match=r"the length ratio is 2 to 1: both must be above 0"):
        strap.retrieve(query, target, prior, top_k=1, length_ratio=(2, 1))
    with pytest.raises(
        StrapError, match=r"1\.1 to 1\.2 times a query of 3 frames contains no whole"
    ):
        strap.retrieve(query, target, prior, top_k=1, length_ratio=(1.1, 1.2))
    with pytest.raises(StrapError, match="widen --length-ratio"):
        strap.retrieve(query, target, prior, top_k=1, length_ratio=(5, 6))


def test_what_is_kept_does_not_depend_on_how_much_is_searched_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each query's share and one more are enough, but where a query runs out of matches."""
    rng = np.random.default_rng(0)
    target = make_store(tmp_path / "t", {"t0": rng.standard_normal((60, 4))})
    lengths = rng.integers(8, 50, 40)
    prior = make_store(
        tmp_path / "p", {f"p{i}": rng.standard_normal((n, 4)) for i, n in enumerate(lengths)}
    )
    searched: list[int] = []

    def counting(*args: Any, **options: Any) -> object:
        searched.append(args[2].k)
        return search_stores(*args, **options)

    monkeypatch.setattr(dtw_methods, "search_stores", counting)
    for queries in ([(0, 8), (10, 18), (20, 29)], [(0, 8), (10, 59), (20, 29)]):
        segments = [Segment("t0", *borders) for borders in queries]
        arrays = [target["t0"][start:stop] for start, stop in queries]
        every = search_stores(arrays, [prior], SearchOptions(20)).matches
        kept = quotas([[match.cost for match in matches] for matches in every], 20)
        expected = [
            (match.trajectory_id, match.start, match.stop, match.cost)
            for matches, count in zip(every, kept, strict=True)
            for match in matches[:count]
        ]
        found = strap.retrieve(segments, target, prior, top_k=20)
        got = [(m.segment.trajectory_id, m.segment.start, m.segment.stop, m.cost) for m in found]
        assert got == expected
    assert searched == [7, 7, 20]  # the long query fits nowhere


@pytest.mark.parametrize("top_k", [2, 20, 80])
def test_pairs_are_counted_once_whatever_k_is(tmp_path: Path, top_k: int) -> None:
    """Also where too few matches make the search begin again, for more."""
    rng = np.random.default_rng(0)
    target = make_store(tmp_path / "t", {"t0": rng.standard_normal((60, 4))})
    arrays = {f"p{i}": rng.standard_normal((8 + i, 4)) for i in range(40)}
    prior = make_store(tmp_path / "p", arrays)
    queries = [Segment("t0", 0, 8), Segment("t0", 10, 38)]
    options = MatchOptions(top_k, backend="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there are fewer than 80 matches
        counts = retrieve_matches(queries, target, [prior], options).statistics
    assert counts.pairs == 40 + 20  # the second query fits into half of them
    assert counts.by_sketches + counts.by_bounds + counts.evaluated == counts.pairs
    assert counts.evaluated >= min(top_k, 60)


def test_more_than_there_is(tmp_path: Path) -> None:
    target, prior = make_store(tmp_path / "t", TARGET), make_store(tmp_path / "p", PRIOR)
    with pytest.warns(UserWarning, match="top_k is 100, but there are only 6 matches"):
        assert len(strap.retrieve(QUERIES, target, prior)) == 6


def test_fewer_than_queries(tmp_path: Path) -> None:
    target, prior = make_store(tmp_path / "t", TARGET), make_store(tmp_path / "p", PRIOR)
    with pytest.warns(UserWarning, match=r"smaller than the number of queries \(2\): 1 get none"):
        assert len(strap.retrieve(QUERIES, target, prior, top_k=1)) == 1
    with pytest.warns(UserWarning, match="each still gets one"):
        assert len(strap.retrieve(QUERIES, target, prior, top_k=1, rule="released")) == 2
    with pytest.raises(StrapError, match="top_k is 0"):
        strap.retrieve(QUERIES, target, prior, top_k=0)
    with pytest.raises(StrapError, match="there are no queries"):
        strap.retrieve([], target, prior)


def test_several_priors_in_one_search(tmp_path: Path) -> None:
    target = make_store(tmp_path / "t", TARGET)
    one = make_store(tmp_path / "a", {"p": PRIOR["p2"]})
    two = make_store(tmp_path / "b", {"p": PRIOR["p10"], "q": PRIOR["p1"]})
    found = strap.retrieve(QUERIES, target, [one, two], top_k=6)
    assert [(Path(m.dataset).stem, m.segment.trajectory_id, m.cost) for m in found] == [
        ("a", "p", 0.0), ("b", "p", 0.5), ("b", "q", 30.0),
        ("b", "p", 0.0), ("b", "q", 0.0), ("a", "p", 15.0),
    ]  # fmt: skip


@pytest.mark.parametrize("per_shard", [1, 2, 100])
def test_shards_and_their_order_do_not_matter(tmp_path: Path, per_shard: int) -> None:
    rng = np.random.default_rng(0)
    prior = {f"p{i}": rng.integers(0, 3, (12, 2)).astype(float) for i in range(9)}
    target = make_store(tmp_path / "t", {"t": prior["p3"][2:7]})
    queries = [Segment("t", 0, 5)]
    whole = make_store(tmp_path / "a", prior)
    shuffled = dict(sorted(prior.items(), key=lambda item: hash(item[0]) % 7))
    split = make_store(tmp_path / "b", shuffled, per_shard=per_shard)
    expected = strap.retrieve(queries, target, whole, top_k=9)
    found = strap.retrieve(queries, target, split, top_k=9)
    assert [(m.segment, m.cost) for m in found] == [(m.segment, m.cost) for m in expected]


def test_self_matches_are_excluded(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    arrays = {f"d{i}": rng.random((8, 3)) for i in range(3)}
    same = {key: f"content of {key}" for key in arrays}
    target = make_store(tmp_path / "t", arrays, fingerprints=same)
    renamed = {f"x{key}": array for key, array in arrays.items()}
    copies = {f"x{key}": mark for key, mark in same.items()}
    extra = {"new": rng.random((8, 3))}
    prior = make_store(tmp_path / "p", {**renamed, **extra}, fingerprints=copies)
    queries = [Segment("d0", 0, 4), Segment("d2", 2, 6)]

    def found(shared: str) -> list[list[str]]:
        matches = strap.retrieve(queries, target, prior, top_k=8, shared=shared)  # type: ignore[arg-type]
        return [sorted(m.segment.trajectory_id for m in matches if m.query == q) for q in queries]

    with pytest.warns(UserWarning, match="only 6"):
        assert found("self") == [["new", "xd1", "xd2"], ["new", "xd0", "xd1"]]
    with pytest.warns(UserWarning, match="only 2"):
        assert found("all") == [["new"], ["new"]]
    assert found("keep") == [["new", "xd0", "xd1", "xd2"]] * 2
    with pytest.raises(StrapError, match="unknown treatment of shared trajectories 'none'"):
        found("none")


def test_the_same_content_is_known_in_another_file(planted: Planted, tmp_path: Path) -> None:
    target = strap.open_dataset(planted.target)
    store = strap.embed(target, "pixels", tmp_path / "t")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "renamed.hdf5").write_bytes(planted.target.read_bytes())
    prior = strap.embed(strap.open_dataset(tmp_path / "copy"), "pixels", tmp_path / "p")
    matches = strap.retrieve(strap.segment(target), store, prior, top_k=6)
    assert len(matches) == 6
    for match in matches:
        assert match.segment.trajectory_id != f"renamed/{match.query.trajectory_id}"


def test_stores_of_different_encoders_are_refused(tmp_path: Path) -> None:
    target = make_store(tmp_path / "t", TARGET, name="dinov2")
    prior = make_store(tmp_path / "p", PRIOR, name="clip")
    with pytest.raises(StrapError, match=r"made with encoder .*clip.*, but .*dinov2"):
        strap.retrieve(QUERIES, target, prior)


def test_a_query_past_the_end(tmp_path: Path) -> None:
    target, prior = make_store(tmp_path / "t", TARGET), make_store(tmp_path / "p", PRIOR)
    for method in ("strap", "d-s", "random"):
        with pytest.raises(StrapError, match=r"query t0\[2:9\] goes past the 5 frames"):
            strap.retrieve([Segment("t0", 2, 9)], target, prior, method=method)
        with pytest.raises(StrapError, match="part of trajectory 'u', which target"):
            strap.retrieve([Segment("u", 2, 9)], target, prior, method=method)


def test_nan_in_a_store_is_named(tmp_path: Path) -> None:
    target, prior = make_store(tmp_path / "t", TARGET), make_store(tmp_path / "p", PRIOR)
    shard = next((tmp_path / "p" / "shards").glob("*.npy"))
    frames = np.load(shard)
    frames[6] = np.nan  # frame 1 of the second trajectory written
    np.save(shard, frames)
    with pytest.raises(StrapError, match=r"store '.*p': .*is damaged at trajectory 'p10'"):
        strap.retrieve(QUERIES, target, strap.open_store(prior.path))


def test_planted_matches_come_first(planted: Planted, tmp_path: Path) -> None:
    target, prior = strap.open_dataset(planted.target), strap.open_dataset(planted.prior)
    matches = strap.retrieve(
        strap.segment(target),
        strap.embed(target, "pixels", tmp_path / "t"),
        strap.embed(prior, "pixels", tmp_path / "p"),
        top_k=12,
    )
    best = {match.query: match.segment for match in matches if match.rank == 1}
    assert best == {plant.query: plant.segment for plant in planted.plants}


@pytest.mark.parametrize("is_still", [False, True])
def test_a_recording_is_known_by_its_actions_in_other_pictures(
    own_planted: Planted, tmp_path: Path, *, is_still: bool
) -> None:
    copy = tmp_path / "copy.hdf5"
    with h5py.File(own_planted.target, "r+") as file:
        for demo in file["data"].values() if is_still else ():
            demo["actions"][...] = 0  # such actions tell no recording from another
    shutil.copy(own_planted.target, copy)
    with h5py.File(copy, "r+") as file:
        for demo in file["data"].values():
            demo["obs/agentview_rgb"][...] = demo["obs/agentview_rgb"][:] // 4 * 4
            actions = demo["actions"][:].astype(np.float32)
            del demo["actions"]
            demo["actions"] = actions
    datasets = [strap.open_dataset(path) for path in (own_planted.target, copy)]
    stores = [strap.embed(d, "pixels", tmp_path / str(n)) for n, d in enumerate(datasets)]
    target, *priors = list_catalogues(datasets, stores)
    found = retrieve_matches(strap.segment(datasets[0]), target, priors, MatchOptions(top_k=6))
    is_own = [match.segment.trajectory_id == match.query.trajectory_id for match in found.matches]
    assert is_own == [is_still] * 6


def test_instructions_are_those_that_the_dataset_is_read_with(tmp_path: Path) -> None:
    write_rlds(tmp_path / "t" / "1.0.0", ((12,),))
    write_rlds(tmp_path / "p" / "1.0.0", ((20, 21), (22,)))
    plain = OpenOptions()
    named = OpenOptions(language=("language_instruction_3",))
    for opening, name in ((plain, "plain"), (named, "named")):
        run = run_retrieval(
            tmp_path / "t" / "1.0.0",
            [tmp_path / "p" / "1.0.0"],
            tmp_path / name,
            RetrievalOptions(
                "pixels",
                top_k=3,
                segmentation=Segmentation(method="full"),
                shared="keep",
                opening=opening,
                augmented="none",
            ),
            stores=tmp_path / "stores",
        )
        prior = opening.open(tmp_path / "p" / "1.0.0")
        found = {(m.segment.trajectory_id, m.instruction) for m in run.matches}
        assert found == {(trajectory.id, trajectory.instruction) for trajectory in prior}
