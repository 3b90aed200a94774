"""Several matches a trajectory, lengths within limits, frames as they come: against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import naive

import strap.dtw as dtw
from strap.errors import StrapError

seeds = st.integers(0, 2**32 - 1)
quick = settings(max_examples=40, deadline=None)


def small(seed: int, queries: int = 2, trajectories: int = 5):
    """Whole numbers in two dimensions: many ties, exact sums under l2 of one dimension."""
    rng = np.random.default_rng(seed)
    few = [rng.integers(0, 4, (rng.integers(1, 5), 1)).astype(float) for _ in range(queries)]
    many = [rng.integers(0, 4, (rng.integers(1, 8), 1)).astype(float) for _ in range(trajectories)]
    return few, many


def brute(query, trajectory, steps, lengths):
    """(cost, stop, −start) of the best path of an allowed length, or None."""
    least, most = lengths
    found = naive.all_matches(query, trajectory, steps, "l2", along=True)
    return min((m for m in found if least <= m[1] + m[2] <= most), default=None)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("steps", dtw.STEPS)
@quick
@given(seed=seeds, least=st.integers(1, 6), more=st.integers(0, 4))
def test_one_match_within_limits(backend, steps, seed, least, more):
    queries, trajectories = small(seed)
    lengths = (least, least + more)
    for trajectory in trajectories:
        found = dtw.best_match(
            queries[0], trajectory, steps=steps, backend=backend, lengths=lengths
        )
        best = brute(queries[0], trajectory, steps, lengths)
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
@given(seed=seeds, k=st.integers(1, 9), per=st.integers(1, 3), least=st.integers(1, 4))
def test_several_matches_and_limits(backend, limited, steps, seed, k, per, least):
    queries, trajectories = small(seed)
    lengths = [(least, least + 1), (1, 3)] if limited else None
    found = dtw.search(
        queries, trajectories, k=k, steps=steps, backend=backend, per_trajectory=per,
        lengths=lengths,
    )  # fmt: skip
    for q, (query, own) in enumerate(zip(queries, found, strict=True)):
        limit = lengths[q] if lengths else (1, 99)
        expected = greedy(query, trajectories, k, per, steps, limit)
        rows = zip(own.cost, own.trajectory, own.stop, -own.start, strict=True)
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
def test_wishes_that_make_no_sense(options, text):
    with pytest.raises(StrapError, match=text):
        dtw.search([np.ones((3, 1))], [np.ones((9, 1))], k=2, **options)


@pytest.mark.parametrize("metric", dtw.METRICS)
@pytest.mark.parametrize("steps", dtw.STEPS)
@quick
@given(seed=seeds)
def test_frames_as_they_come(steps, metric, seed):
    """After every frame the best so far is that of all frames so far, to the last bit."""
    rng = np.random.default_rng(seed)
    queries = [rng.standard_normal((n, 5)) for n in (1, 3, 6)]
    trajectory = rng.standard_normal((14, 5))
    trajectory[7] = queries[1][0]
    stream = dtw.Stream(queries, steps=steps, metric=metric)
    assert stream.best == [None, None, None]
    stop = 0
    while stop < len(trajectory):
        count = int(rng.integers(1, 4))
        stream.append(trajectory[stop : stop + count])
        stop = min(stop + count, len(trajectory))
        whole = [dtw.best_match(q, trajectory[:stop], steps=steps, metric=metric) for q in queries]
        assert stream.best == whole
        for best, newest in zip(stream.best, stream.newest, strict=True):
            assert (newest < np.inf) == (best is not None)
            assert best is None or newest >= best.cost


def test_a_stream_checks_what_comes():
    stream = dtw.Stream([np.ones((2, 3))])
    stream.append(np.ones((4, 3)))
    with pytest.raises(StrapError, match="what follows frame 4 has 2 dimensions"):
        stream.append(np.ones((1, 2)))
    with pytest.raises(StrapError, match=r"what follows frame 4, frame 0, dimension 1 is nan"):
        stream.append(np.array([[0, np.nan, 1]]))
    assert stream.frames == 4
