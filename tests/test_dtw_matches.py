"""Several matches a trajectory, lengths within limits, frames as they come: against brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import naive
from tests.dtw_problems import metrics, problems, steps

import strap.dtw as dtw
from strap.errors import StrapError

quick = settings(max_examples=40, deadline=None)


def lines(longest: int):
    """Frames of one small whole number each: many ties, exact sums."""
    numbers = st.lists(st.integers(0, 3), min_size=1, max_size=longest)
    return numbers.map(lambda values: np.array(values, float)[:, None])


pairs_of_queries = st.tuples(lines(4), lines(4))
some_trajectories = st.lists(lines(7), min_size=1, max_size=5)


def brute(query, trajectory, steps, lengths):
    """(cost, stop, −start) of the best path of an allowed length, or None."""
    least, most = lengths
    found = naive.all_matches(query, trajectory, steps, "l2", along=True)
    return min((m for m in found if least <= m[1] + m[2] <= most), default=None)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("steps", dtw.STEPS)
@quick
@given(query=lines(4), trajectory=lines(7), least=st.integers(1, 6), more=st.integers(0, 4))
def test_one_match_within_limits(backend, steps, query, trajectory, least, more):
    lengths = (least, least + more)
    found = dtw.best_match(query, trajectory, steps=steps, backend=backend, lengths=lengths)
    best = brute(query, trajectory, steps, lengths)
    expected = None if best is None else dtw.Alignment(best[0], -best[2], best[1])
    assert found == expected


def greedy(query, trajectories, k, per, steps, lengths):
    """The definition: the best, then the best clear of it, and so on, in each; then the k best."""
    found = []
    for index, trajectory in enumerate(trajectories):
        free = [(0, len(trajectory))]
        for _ in range(per):
            best = []
            for lo, hi in free:
                match = brute(query, trajectory[lo:hi], steps, lengths)
                if match is not None:
                    cost, stop, start = match
                    best.append((cost, index, lo + stop, -(lo - start), lo, hi))
            if not best:
                break
            cost, _, stop, less_start, lo, hi = min(best)
            found.append((cost, index, stop, less_start))
            free.remove((lo, hi))
            free += [(lo, -less_start), (stop, hi)]
    return sorted(found)[:k]


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("steps", dtw.STEPS)
@quick
@given(
    queries=pairs_of_queries,
    trajectories=some_trajectories,
    k=st.integers(1, 9),
    per=st.integers(1, 3),
    least=st.integers(1, 4),
)
def test_several_matches_and_limits(backend, limited, steps, queries, trajectories, k, per, least):
    lengths = [(least, least + 1), (1, 3)] if limited else None
    found = dtw.search(
        queries, trajectories, k=k, steps=steps, backend=backend, per_trajectory=per,
        lengths=lengths,
    )  # fmt: skip
    for q, (query, top) in enumerate(zip(queries, found, strict=True)):
        limit = lengths[q] if lengths else (1, 99)
        expected = greedy(query, trajectories, k, per, steps, limit)
        rows = zip(top.cost, top.trajectory, top.stop, -top.start, strict=True)
        assert [tuple(map(float, row)) for row in rows] == [tuple(map(float, r)) for r in expected]


def test_a_task_done_twice_is_found_twice():
    rng = np.random.default_rng(0)
    query = rng.standard_normal((12, 8))
    twice = rng.standard_normal((80, 8))
    twice[10:22], twice[50:62] = query, query + 1e-3
    other = rng.standard_normal((80, 8))
    (found,) = dtw.search([query], [other, twice], k=3, per_trajectory=2)
    assert list(zip(found.trajectory, found.start, found.stop, strict=True))[:2] == [
        (1, 10, 22),
        (1, 50, 62),
    ]
    assert found.trajectory[2] == 0


def test_excluded_trajectories_stay_out():
    trajectories = [np.arange(9.0)[:, None] for _ in range(3)]
    (found,) = dtw.search(
        [np.arange(2.0)[:, None]], trajectories, k=9, per_trajectory=9, exclude=[{1}]
    )
    assert set(found.trajectory) == {0, 2}


def test_limits_that_cannot_be_met_find_nothing():
    (found,) = dtw.search([np.ones((3, 1))], [np.ones((9, 1))] * 5, k=2, lengths=[(7, 8)])
    assert len(found) == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"per_trajectory": 0}, "per_trajectory is 0: it must be at least 1"),
        ({"lengths": [(1, 2), (1, 2)]}, "lengths has 2 entries for 1 queries"),
        ({"lengths": [(5, 4)]}, "query 0: matches of 5 to 4 frames are asked for"),
    ],
)
def test_constraints_that_make_no_sense(options, text):
    with pytest.raises(StrapError, match=text):
        dtw.search([np.ones((3, 1))], [np.ones((9, 1))], k=2, **options)


@settings(max_examples=100, deadline=None)
@given(
    problem=problems(dims=(1, 5), trajectories=1),
    steps=steps,
    metric=metrics,
    counts=st.lists(st.integers(1, 4), min_size=1),
)
def test_frames_as_they_come(problem, steps, metric, counts):
    """After every frame the best so far is that of all frames so far, to the last bit."""
    queries, (trajectory,) = problem
    stream = dtw.Stream(queries, steps=steps, metric=metric)
    assert stream.best == [None for _ in queries]
    stop = 0
    for count in itertools.cycle(counts):
        stream.append(trajectory[stop : stop + count])
        stop = min(stop + count, len(trajectory))
        assert stream.frames == stop
        assert stream.best == [
            dtw.best_match(q, trajectory[:stop], steps=steps, metric=metric, backend="reference")
            for q in queries
        ]
        for best, newest in zip(stream.best, stream.newest, strict=True):
            assert (newest < np.inf) == (best is not None)
            assert best is None or newest >= best.cost
        if stop == len(trajectory):
            break


def test_a_stream_checks_what_comes():
    stream = dtw.Stream([np.ones((2, 3))])
    stream.append(np.ones((4, 3)))
    with pytest.raises(StrapError, match="what follows frame 4 has 2 dimensions"):
        stream.append(np.ones((1, 2)))
    with pytest.raises(StrapError, match=r"what follows frame 4, frame 0, dimension 1 is nan"):
        stream.append(np.array([[0, np.nan, 1]]))
    assert stream.frames == 4
