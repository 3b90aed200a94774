"""CPU, reference and enumeration agree, ties included; what is invalid is said by name."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from tests import naive

import strap.dtw as dtw
from strap.errors import StrapError

STEPS = tuple(dtw.STEPS)
CASES = 10_000
CHUNKS = 10


def random_case(rng: np.random.Generator, metric: str, kind: int):
    """A small query and trajectory: noise, or whole numbers with many ties and repeats."""
    n, m, d = rng.integers(1, 5), rng.integers(1, 7), rng.integers(1, 4)
    if kind == 0:
        query, trajectory = rng.standard_normal((n, d)), rng.standard_normal((m, d))
    elif kind == 1:  # ties everywhere
        query, trajectory = rng.integers(0, 3, (n, d)), rng.integers(0, 3, (m, d))
    elif kind == 2:  # frames repeated, in the query and in the trajectory
        frames = rng.integers(-1, 2, (2, d))
        query, trajectory = frames[rng.integers(0, 2, n)], frames[rng.integers(0, 2, m)]
    else:  # N = M, and a copy of the query itself
        query = rng.integers(0, 4, (n, d))
        trajectory = query.copy()
    dtype = np.float32 if rng.integers(2) else np.float64
    query, trajectory = query.astype(dtype), trajectory.astype(dtype)
    if metric == "cosine":
        # Along an axis costs are whole numbers, so ties are exact there too.
        for frames in (query, trajectory):
            frames[~frames.any(axis=1), 0] = 2
    return query, trajectory


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("steps", STEPS)
def test_three_ways_agree_on_ten_thousand_cases(steps, chunk):
    rng, last_bits = np.random.default_rng([STEPS.index(steps), chunk]), 0
    for case in range(CASES // CHUNKS):
        metric = "l2" if case % 3 else "cosine"
        query, trajectory = random_case(rng, metric, case % 4)
        expected = naive.best_match(query.tolist(), trajectory.tolist(), steps, metric)
        reference = dtw.best_match(
            query, trajectory, steps=steps, metric=metric, backend="reference"
        )
        fast = dtw.best_match(query, trajectory, steps=steps, metric=metric, backend="cpu")
        assert fast == reference  # to the last bit: both sum in the same order
        if expected is None:
            assert reference is None
            continue
        assert reference is not None
        cost, start, stop = expected
        assert reference.cost == pytest.approx(cost, rel=1e-10, abs=1e-12)
        if (reference.start, reference.stop) != (start, stop):
            # Two sums of roots can differ in their last bit before the last cell is added and be
            # equal after: a tie for the enumeration, none for the recurrence.
            borders = naive.cheapest_borders(query.tolist(), trajectory.tolist(), steps, metric)
            assert metric == "cosine"
            assert (reference.start, reference.stop) in borders
            last_bits += 1
    assert last_bits <= 2


@pytest.mark.parametrize("steps", STEPS)
def test_cosine_ties_on_axes(steps):
    """Frames along axes cost exactly 0, 1 or 2, so borders must agree as well."""
    rng = np.random.default_rng(7)
    for _ in range(300):
        n, m = rng.integers(1, 5), rng.integers(1, 7)
        axes = np.concatenate([np.eye(3), -np.eye(3)]) * 4.0
        query, trajectory = axes[rng.integers(0, 6, n)], axes[rng.integers(0, 6, m)]
        expected = naive.best_match(query.tolist(), trajectory.tolist(), steps, "cosine")
        found = dtw.best_match(query, trajectory, steps=steps, metric="cosine", backend="cpu")
        assert found == (expected and dtw.Alignment(*expected))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
class TestEdges:
    def test_one_frame_each(self, backend):
        found = dtw.best_match([[1.0, 2.0]], [[1.0, 2.0]], backend=backend)
        assert found == dtw.Alignment(0.0, 0, 1)

    def test_query_longer_than_trajectory(self, backend):
        query, trajectory = np.zeros((3, 2)), np.zeros((2, 2))
        assert dtw.best_match(query, trajectory, backend=backend) is None
        fmp = dtw.best_match(query, trajectory, steps="fmp", backend=backend)
        assert fmp == dtw.Alignment(0.0, 0, 2)
        classic = dtw.best_match(query, trajectory, steps="classic", backend=backend)
        assert classic == dtw.Alignment(0.0, 0, 1)

    def test_identical_frames_cost_nothing(self, backend):
        frames = np.full((6, 5), 0.1, np.float32)
        found = dtw.best_match(frames[:3], frames, backend=backend)
        # Smallest stop, then the larger start: three frames, not five.
        assert found == dtw.Alignment(0.0, 0, 3)

    def test_same_length(self, backend):
        frames = np.arange(8.0).reshape(4, 2)
        assert dtw.best_match(frames, frames, backend=backend) == dtw.Alignment(0.0, 0, 4)

    def test_integers_are_taken(self, backend):
        found = dtw.best_match(np.array([[3]]), np.array([[1], [3]]), backend=backend)
        assert found == dtw.Alignment(0.0, 1, 2)

    def test_half_precision_is_taken_at_its_value(self, backend):
        frames = np.random.default_rng(0).standard_normal((9, 4)).astype(np.float16)
        found = dtw.best_match(frames[2:5], frames, backend=backend)
        assert found == dtw.Alignment(0.0, 2, 5)

    def test_first_row_is_free_but_not_walked(self, backend):
        # Under classic a path may not gather cells of row 1: D(1, m) = C(1, m).
        trajectory = [[0.0], [0.0], [5.0]]
        found = dtw.best_match([[0.0], [5.0]], trajectory, steps="classic", backend=backend)
        assert found == dtw.Alignment(0.0, 1, 3)

    def test_search_without_trajectories_or_queries(self, backend):
        assert dtw.search([], [np.zeros((2, 1))], k=1, backend=backend) == []
        (empty,) = dtw.search([np.zeros((2, 1))], [], k=3, backend=backend)
        assert len(empty) == 0
        assert empty.trajectory.dtype == np.int64

    def test_search_where_nothing_fits(self, backend):
        (found,) = dtw.search([np.zeros((3, 1))], [np.zeros((2, 1))], k=1, backend=backend)
        assert len(found) == 0

    def test_exclude(self, backend):
        trajectories = [np.full((3, 1), float(i)) for i in range(4)]
        queries = [np.zeros((2, 1)), np.ones((2, 1))]
        first, second = dtw.search(
            queries, trajectories, k=2, backend=backend, exclude=[{0}, [1, 2]]
        )
        assert first.trajectory.tolist() == [1, 2]
        assert second.trajectory.tolist() == [0, 3]

    def test_textbook_example(self, backend):
        # Worked by hand: |3 − 3| + |0 − 0| + |6 − 6| with one frame skipped.
        query = np.array([[3.0], [0.0], [6.0]])
        trajectory = np.array([[2.0], [4.0], [0.0], [4.0], [0.0], [0.0]])
        found = dtw.best_match(query, trajectory, backend=backend)
        assert found == dtw.Alignment(3.0, 1, 4)


class TestErrors:
    def test_unknown_names_suggest_the_nearest(self):
        frames = np.zeros((2, 1))
        with pytest.raises(StrapError, match="unknown steps 'strapp': did you mean 'strap'"):
            dtw.best_match(frames, frames, steps="strapp")
        with pytest.raises(StrapError, match="unknown metric 'cosin': did you mean 'cosine'"):
            dtw.best_match(frames, frames, metric="cosin")
        with pytest.raises(StrapError, match="unknown backend 'cpuu': did you mean 'cpu'"):
            dtw.search([frames], [frames], k=1, backend="cpuu")

    def test_shapes(self):
        frames = np.zeros((2, 3))
        with pytest.raises(StrapError, match=r"query has shape \(3,\): it must be 2-D.*x\[:, None"):
            dtw.best_match(frames[0], frames)
        with pytest.raises(StrapError, match="query is empty"):
            dtw.best_match(frames[:0], frames)
        with pytest.raises(StrapError, match="trajectory 1 is empty"):
            dtw.search([frames], [frames, frames[:0]], k=1)
        with pytest.raises(StrapError, match="0 dimensions"):
            dtw.best_match(np.zeros((2, 0)), np.zeros((2, 0)))
        with pytest.raises(StrapError, match=r"trajectory 0 has 2 dimensions .* has 3"):
            dtw.search([frames], [np.zeros((4, 2))], k=1)
        with pytest.raises(StrapError, match="dtype complex128"):
            dtw.best_match(frames.astype(complex), frames)

    @pytest.mark.parametrize("backend", ["cpu", "reference"])
    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
    def test_not_finite_names_trajectory_and_frame(self, backend, bad, dtype):
        frames = np.ones((4, 20), dtype)
        broken = frames.copy()
        broken[2, 17] = bad
        with pytest.raises(StrapError, match=r"trajectory 1, frame 2, dimension 17 is -?(nan|inf)"):
            dtw.search([frames], [frames, broken], k=1, backend=backend)
        with pytest.raises(StrapError, match="query 0, frame 2"):
            dtw.search([broken], [frames], k=1, backend=backend)
        with pytest.raises(StrapError, match="trajectory, frame 2"):
            dtw.best_match(frames, broken, backend=backend)

    @pytest.mark.parametrize("backend", ["cpu", "reference"])
    def test_zero_frame_under_cosine(self, backend):
        frames = np.ones((3, 4), np.float32)
        broken = frames.copy()
        broken[1] = 0
        with pytest.raises(StrapError, match=r'trajectory 0, frame 1 has norm 0.*metric="l2"'):
            dtw.search([frames], [broken], k=1, metric="cosine", backend=backend)
        with pytest.raises(StrapError, match="query, frame 1 has norm 0"):
            dtw.best_match(broken, frames, metric="cosine", backend=backend)

    @pytest.mark.parametrize("k", [0, -1, 1.5, True])
    def test_k(self, k):
        with pytest.raises(StrapError, match=r"k is .* at least 1"):
            dtw.search([np.zeros((1, 1))], [np.zeros((1, 1))], k=k)

    def test_exclude_of_another_length(self):
        with pytest.raises(StrapError, match="exclude has 2 entries for 1 queries"):
            dtw.search([np.zeros((1, 1))], [np.zeros((1, 1))], k=1, exclude=[[], []])

    def test_blocks_that_do_not_tile(self):
        frames = np.zeros((4, 1))

        def search(offsets, ids):
            block = dtw.Block(frames, np.array(offsets), np.array(ids))
            dtw.search_blocks([frames[:1]], [block], k=1, fetch=lambda _: frames)

        with pytest.raises(StrapError, match="2 ids and 2 offsets"):
            search([0, 4], [0, 1])
        with pytest.raises(StrapError, match="must rise from 0 to its 4 frames"):
            search([0, 2, 2, 4], [0, 1, 2])
        with pytest.raises(StrapError, match="must rise from 0 to its 4 frames"):
            search([0, 3], [0])

    def test_names_of_the_caller_are_used(self):
        frames = np.array([[np.nan]])
        block = dtw.Block(frames, np.array([0, 1]), np.array([5]))
        with pytest.raises(StrapError, match="demo_5 of kitchen, frame 0"):
            dtw.search_blocks(
                [np.zeros((1, 1))],
                [block],
                k=1,
                fetch=lambda _: frames,
                name=lambda index: f"demo_{index} of kitchen",
            )


class TestBackends:
    def test_reasons_are_given(self, monkeypatch):
        assert dtw.resolve_backend("reference").name == "reference"
        monkeypatch.setattr("strap.dtw.gpu.devices.missing", lambda: "there is no driver")
        chosen = dtw.resolve_backend("auto")
        assert chosen == dtw.Backend("cpu", "numba is installed, there is no driver")

    def test_without_numba(self, monkeypatch):
        monkeypatch.setattr("strap.dtw.api.find_spec", lambda _: None)
        assert dtw.resolve_backend("auto").name == "reference"
        with pytest.raises(StrapError, match="needs numba"):
            dtw.resolve_backend("cpu")

    def test_import_loads_no_numba(self):
        code = "import sys, strap.dtw; assert 'numba' not in sys.modules, 'numba was imported'"
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_import_asks_nothing_of_the_processor(self):
        code = (
            "import strap.dtw.cpu.search; from strap.dtw.cpu.int16.gemm import is_fast;"
            "assert is_fast.cache_info().misses == 0, 'asked at import'"
        )
        subprocess.run([sys.executable, "-c", code], check=True)
