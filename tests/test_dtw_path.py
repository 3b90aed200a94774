"""Warping paths: compiled, by the definition and by enumeration, ties included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import naive
from tests.dtw_problems import metrics, problems, steps

import strap.dtw as dtw
from strap.errors import StrapError

BACKENDS = ("cpu", "reference")
quick = settings(max_examples=150, deadline=None)


def cells(path: dtw.WarpingPath) -> list[tuple[int, int]]:
    return list(zip(path.query.tolist(), path.trajectory.tolist(), strict=True))


def same_paths(a: dtw.WarpingPath, b: dtw.WarpingPath) -> bool:
    """The same cells; costs to the last bit."""
    fields = ("query", "trajectory", "costs")
    return all(np.array_equal(getattr(a, field), getattr(b, field)) for field in fields)


def is_path_of(path: dtw.WarpingPath, match: dtw.Alignment, n_query: int, steps: str) -> bool:
    """Whether it leads from end to end by allowed moves, and costs what the alignment does."""
    visited = cells(path)
    ends = [(0, match.start), (n_query - 1, match.stop - 1)]
    moves = set(map(tuple, np.diff(visited, axis=0).tolist()))
    return (
        [visited[0], visited[-1]] == ends
        and moves <= set(dtw.STEPS[steps])
        and np.cumsum(path.costs)[-1] == match.cost
    )


@quick
@given(problem=problems(dims=(1, 3, 40), trajectories=1), steps=steps, metric=metrics)
def test_compiled_and_definition_agree(problem, steps, metric):
    """The same cells and bits; the costs along the path add up to the alignment's."""
    queries, (trajectory,) = problem
    for query in queries:
        options = {"steps": steps, "metric": metric}
        match = dtw.best_match(query, trajectory, **options, backend="cpu", path=True)
        if match is None:
            continue
        twin = dtw.path(query, trajectory, match, **options, backend="reference")
        assert is_path_of(match.path, match, len(query), steps)
        assert same_paths(match.path, twin)
        assert same_paths(match.path, dtw.path(query, trajectory, match, **options))


@quick
@given(
    problem=problems(dims=(1, 3), trajectories=1),
    steps=steps,
    metric=metrics,
    least=st.integers(1, 12),
    more=st.integers(0, 4),
)
def test_paths_of_matches_within_limits(problem, steps, metric, least, more):
    """Under classic such a path may run along the first row, which the plain best never does."""
    queries, (trajectory,) = problem
    options = {"steps": steps, "metric": metric, "lengths": (least, least + more), "path": True}
    found = [dtw.best_match(queries[0], trajectory, **options, backend=name) for name in BACKENDS]
    assert found[0] == found[1]
    if found[0] is not None:
        assert is_path_of(found[0].path, found[0], len(queries[0]), steps)
        assert same_paths(found[0].path, found[1].path)


def whole_numbers(longest: int):
    """Frames of one small whole number each: many ties, exact sums."""
    numbers = st.lists(st.integers(0, 2), min_size=1, max_size=longest)
    return numbers.map(lambda values: np.array(values, float)[:, None])


def axes(longest: int):
    """Frames along axes, whose cosine costs are exactly 0, 1 or 2."""
    directions = np.concatenate([np.eye(2), -np.eye(2)]) * 4
    numbers = st.lists(st.integers(0, 3), min_size=1, max_size=longest)
    return numbers.map(lambda values: directions[values])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("metric", "frames"), [("l2", whole_numbers), ("cosine", axes)])
@pytest.mark.parametrize("steps", dtw.STEPS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_enumeration_agrees(backend, metric, frames, steps, data):
    """Any two ends: the cheapest of all paths between them, by the rule for ties."""
    query, trajectory = data.draw(frames(4)), data.draw(frames(7))
    start = data.draw(st.integers(0, len(trajectory) - 1))
    stop = data.draw(st.integers(start + 1, len(trajectory)))
    costs = [[naive.local_cost(a, b, metric) for b in trajectory[start:stop]] for a in query]
    expected = naive.best_path(costs, steps)
    match = dtw.Alignment(sum(costs[n][m] for n, m in expected or ()), start, stop)
    options = {"steps": steps, "metric": metric, "backend": backend}
    if expected is None:
        with pytest.raises(StrapError, match=f"no path of steps '{steps}'"):
            dtw.path(query, trajectory, match, **options)
        return
    path = dtw.path(query, trajectory, match, **options)
    assert list(path) == [(n, start + m, costs[n][m]) for n, m in expected]


@pytest.mark.parametrize("backend", BACKENDS)
class TestPath:
    @pytest.mark.parametrize("steps", dtw.STEPS)
    @pytest.mark.parametrize("metric", dtw.METRICS)
    def test_a_planted_segment_gives_the_diagonal(self, backend, steps, metric):
        trajectory = np.random.default_rng(0).standard_normal((40, 5)).astype(np.float16)
        match = dtw.best_match(
            trajectory[12:30], trajectory, steps=steps, metric=metric, backend=backend, path=True
        )
        assert list(match.path) == [(n, 12 + n, 0.0) for n in range(18)]
        assert len(match.path) == 18

    def test_frames_that_were_skipped(self, backend):
        trajectory = np.random.default_rng(0).standard_normal((30, 4))
        kept = [3, 4, 6, 7, 9, 11, 12]
        path = dtw.best_match(trajectory[kept], trajectory, backend=backend, path=True).path
        assert path.trajectory.tolist() == kept
        assert path.query.tolist() == list(range(7))
        assert (path.query.dtype, path.costs.dtype) == (np.int64, np.float64)

    @pytest.mark.parametrize(
        ("steps", "expected"),
        [
            # Back from the end: (1, 1) as long as it leads to the start, then what must be.
            ("strap", [(0, 0), (1, 2), (2, 4), (3, 5)]),
            ("fmp", [(0, 0), (1, 2), (2, 4), (3, 5)]),
            ("classic", [(0, 0), (0, 1), (0, 2), (1, 3), (2, 4), (3, 5)]),
        ],
    )
    def test_identical_frames(self, backend, steps, expected):
        frames = np.ones((8, 3))
        match = dtw.Alignment(0.0, 1, 7)
        path = dtw.path(frames[:4], frames, match, steps=steps, backend=backend)
        assert cells(path) == [(n, 1 + m) for n, m in expected]

    def test_the_later_trajectory_frame_where_the_diagonal_is_dearer(self, backend):
        # D:   0  1  2
        #      1  2  1   <- as cheap as
        #      2  1  3      the one below, both cheaper than the 2 between them
        query, trajectory = np.array([[0.0], [1], [-1]]), np.array([[0.0], [-1], [1]])
        match = dtw.Alignment(3.0, 0, 3)
        path = dtw.path(query, trajectory, match, steps="classic", backend=backend)
        assert cells(path) == [(0, 0), (0, 1), (1, 2), (2, 2)]

    def test_textbook_example(self, backend):
        query = np.array([3.0, 0, 6])[:, None]
        trajectory = np.array([2.0, 4, 0, 4, 0, 0, 5, 2])[:, None]
        match = dtw.best_match(query, trajectory, steps="classic", backend=backend, path=True)
        assert list(match.path) == [(0, 3, 1.0), (1, 4, 0.0), (1, 5, 0.0), (2, 6, 1.0)]

    def test_one_frame_each(self, backend):
        match = dtw.best_match([[1.0, 2.0]], [[4.0, 6.0]], backend=backend, path=True)
        assert list(match.path) == [(0, 0, 5.0)]

    def test_matches_of_a_search(self, backend):
        rng = np.random.default_rng(1)
        query, trajectories = rng.standard_normal((9, 6)), rng.standard_normal((4, 50, 6))
        (top,) = dtw.search([query], list(trajectories), k=8, per_trajectory=2, backend=backend)
        assert len(top) == 8
        rows = zip(top.cost, top.start, top.stop, top.trajectory, strict=True)
        for cost, start, stop, number in rows:
            match = dtw.Alignment(cost, start, stop)
            path = dtw.path(query, trajectories[number], match, backend=backend)
            assert is_path_of(path, match, 9, "strap")

    def test_where_nothing_fits(self, backend):
        frames = np.ones((3, 1))
        assert dtw.best_match(frames, frames[:2], backend=backend, path=True) is None

    def test_an_alignment_is_the_same_with_and_without(self, backend):
        frames = np.arange(6.0)[:, None]
        with_path = dtw.best_match(frames[2:5], frames, backend=backend, path=True)
        without = dtw.best_match(frames[2:5], frames, backend=backend)
        assert without.path is None
        assert with_path == without
        assert hash(with_path) == hash(without)
        assert repr(with_path) == repr(without) == "Alignment(cost=0.0, start=2, stop=5)"

    @pytest.mark.parametrize(("start", "stop"), [(-1, 2), (2, 2), (4, 7), (5, 3)])
    def test_an_alignment_outside_the_trajectory(self, backend, start, stop):
        frames = np.ones((6, 2))
        text = f"covers frames {start}:{stop} of a trajectory of 6: it needs 0 <= start < stop <= 6"
        with pytest.raises(StrapError, match=text):
            dtw.path(frames[:2], frames, dtw.Alignment(0.0, start, stop), backend=backend)

    @pytest.mark.parametrize("steps", ["strap", "fmp"])
    @pytest.mark.parametrize("length", [1, 8])
    def test_an_alignment_that_no_path_reaches(self, backend, steps, length):
        frames, match = np.ones((9, 2)), dtw.Alignment(0.0, 0, length)
        text = f"no path of steps '{steps}' leads through 4 query frames and the {length} frames"
        with pytest.raises(StrapError, match=text):
            dtw.path(frames[:4], frames, match, steps=steps, backend=backend)

    @pytest.mark.parametrize("cost", [0.0, 1.0, 99.0, np.nan])
    def test_an_alignment_of_another_cost(self, backend, cost):
        query, trajectory = np.zeros((2, 1)), np.full((2, 1), 3.0)
        text = rf"costs {cost}, but the cheapest path between its ends costs 6\.0 \(steps 'strap'"
        with pytest.raises(StrapError, match=text):
            dtw.path(query, trajectory, dtw.Alignment(cost, 0, 2), backend=backend)

    def test_the_pair_is_checked(self, backend):
        frames, match = np.ones((3, 2)), dtw.Alignment(0.0, 0, 3)
        with pytest.raises(StrapError, match="unknown steps 'fpm': did you mean 'fmp'"):
            dtw.path(frames, frames, match, steps="fpm", backend=backend)
        with pytest.raises(StrapError, match="trajectory has 1 dimensions"):
            dtw.path(frames, frames[:, :1], match, backend=backend)
        with pytest.raises(StrapError, match="trajectory, frame 0, dimension 0 is nan"):
            dtw.path(frames, frames * np.nan, match, backend=backend)


@pytest.mark.parametrize("name", dtw.STEPS)
def test_a_step_set_lists_its_moves_in_the_order_in_which_a_path_prefers_them(name):
    def rank(move):
        dn, dm = move
        return move != (1, 1), dm, dn

    assert list(dtw.STEPS[name]) == sorted(dtw.STEPS[name], key=rank)
