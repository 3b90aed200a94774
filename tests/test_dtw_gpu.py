"""The GPU backend's kernels, on a GPU where there is one, else through Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import strap.dtw as dtw
from strap.errors import StrapError

pytest.importorskip("torch")
pytest.importorskip("triton")
import torch

from strap.dtw.batching import TrajectoryBatch
from strap.dtw.gpu import devices
from strap.dtw.gpu.bounds import CostBounds
from strap.dtw.gpu.quantize import fit_quantization, quantize_batch
from strap.dtw.gpu.queries import GpuTuning, SearchRequest, upload_queries
from strap.dtw.gpu.resident import Resident
from strap.dtw.gpu.search import search
from strap.dtw.gpu.streams import CostWorkspace, prefetch, run_on_devices
from strap.dtw.steps import lay_out_steps
from strap.dtw.types import Library, SearchOptions

DEVICE = devices.find_devices()[0]
SHORT = GpuTuning(min_extra=0, extra_share=0.0, n_reserve=0)  # the shortlist is k, the rest remains
DTYPES = (np.float16, np.float32, np.float64)
# Tracing more than doubles the interpreter's time: lines that other tests run are not traced again.


def are_equal(found: list[dtw.TopK], expected: list[dtw.TopK]) -> bool:
    return all(
        np.array_equal(getattr(a, field), getattr(b, field))
        for a, b in zip(found, expected, strict=True)
        for field in ("trajectory", "start", "stop", "cost")
    )


def search_both(queries, trajectories, tuning=SHORT, **options):
    """What the GPU backend finds and counts, and what the definition finds."""
    exclude = options.get("exclude")
    chosen = SearchOptions(**{name: value for name, value in options.items() if name != "exclude"})
    library = Library(lambda _: enumerate(trajectories), trajectories.__getitem__, str)
    result = search(queries, library, chosen, exclude, tuning=tuning)
    expected = dtw.search(queries, trajectories, backend="reference", **options)
    return result.tops, result.total, expected


def draw_frames(draw, length: int, dim: int, dtype: type, numbers) -> np.ndarray:
    return draw(arrays.arrays(dtype, (length, dim), elements=numbers))


@st.composite
def problems(draw):
    """Queries and trajectories of drawn shapes and values: small integers, so that many tie, or
    any numbers; float32 ones beyond float16 included.
    """
    dtype, dim = draw(st.sampled_from(DTYPES)), draw(st.integers(1, 9))
    largest = 1000.0 if dtype == np.float16 else 1e6
    numbers = draw(
        st.sampled_from(
            [
                st.integers(-2, 2).map(float),
                st.floats(-largest, largest, width=16 if dtype == np.float16 else 32),
            ]
        )
    )

    def some(least: int, most: int, longest: int):
        lengths = draw(st.lists(st.integers(1, longest), min_size=least, max_size=most))
        return [draw_frames(draw, length, dim, dtype, numbers) for length in lengths]

    return some(1, 2, 5), some(1, 9, 9)


def make_problem(dtype: type, dim: int, seed: int = 0):
    """Six trajectories, two of them alike, with a query planted in one."""
    rng = np.random.default_rng(seed)
    offset = 5 * rng.standard_normal(dim)

    def some(length: int):
        return (rng.standard_normal((length, dim)) + offset).astype(dtype)

    trajectories = [some(length) for length in (1, 9, 21, 14, 20, 17)]
    trajectories[3] = trajectories[2][:14].copy()
    queries = [some(length) for length in (1, 4, 7)]
    trajectories[4][3:7] = queries[1]
    return queries, trajectories


@pytest.mark.no_cover
@settings(max_examples=8, deadline=None)
@given(
    problem=problems(),
    k=st.integers(1, 4),
    steps=st.sampled_from(list(dtw.STEPS)),
    exclude=st.sets(st.integers(0, 8), max_size=3),
    n_reserve=st.integers(0, 3),
)
def test_search_equals_the_reference(problem, k, steps, exclude, n_reserve):
    queries, trajectories = problem
    tuning = GpuTuning(batch_bytes=200, min_extra=0, extra_share=0.0, n_reserve=n_reserve)
    options = {"k": k, "steps": steps, "exclude": [exclude] * len(queries)}
    found, counts, expected = search_both(queries, trajectories, tuning, **options)
    assert are_equal(found, expected)
    assert counts.evaluated + counts.by_bounds == counts.pairs
    library = Resident(trajectories, devices=[str(DEVICE)], tuning=tuning)
    assert are_equal(library.search(queries, **options), expected)


@pytest.mark.parametrize(
    ("steps", "dtype", "dim"),
    [("strap", np.float32, 8), ("fmp", np.float64, 5), ("classic", np.float16, 3)],
)
def test_search_by_cosine_equals_the_reference(steps, dtype, dim):
    queries, trajectories = make_problem(dtype, dim)
    options = {"k": 2, "steps": steps, "metric": "cosine", "exclude": [{0}, set(), {5, 2}]}
    found, _, expected = search_both(queries, trajectories, **options)
    assert are_equal(found, expected)


def test_another_step_set_needs_its_moves_alone(monkeypatch):
    monkeypatch.setitem(dtw.STEPS, "leaping", ((1, 1), (1, 2), (3, 1)))
    rng = np.random.default_rng(0)
    query, *trajectories = (rng.standard_normal((n, 1)).astype(np.float16) for n in (5, 3, 7))
    found, _, expected = search_both([query], trajectories, k=2, steps="leaping")
    assert are_equal(found, expected)
    assert len(found[0]) == 2  # three frames are enough only where a move leaps


def test_moves_that_the_kernels_lack_are_told(monkeypatch):
    monkeypatch.setitem(dtw.STEPS, "wide", ((1, 1), (1, 2), (1, 3)))
    with pytest.raises(StrapError, match=r"can't take the moves of steps 'wide': .* align_pairs"):
        lay_out_steps("wide")


@pytest.mark.parametrize("steps", list(dtw.STEPS))
def test_bounds_save_alignments(steps):
    """Only as many pairs are aligned as there are near ones: wrong bounds would show here."""
    rng = np.random.default_rng(0)
    near = rng.standard_normal((10, 8)).astype(np.float16)
    trajectories = [near, *(near + np.float16(9 + i) for i in range(8))]
    found, counts, expected = search_both([near[2:6]], trajectories, k=1, steps=steps)
    assert are_equal(found, expected)
    assert (counts.pairs, counts.evaluated, counts.by_bounds) == (9, 1, 8)


@pytest.mark.parametrize(
    ("limit", "n_reserve"),
    [
        (0, 0),
        pytest.param(None, 0, marks=pytest.mark.no_cover),
        (None, 3),
        pytest.param(None, 64, marks=pytest.mark.no_cover),
    ],
)
def test_what_the_shortlist_leaves_out_is_found(limit, n_reserve):
    """Bounds can't tell these trajectories apart, so the best two are not the first two."""
    rng = np.random.default_rng(0)
    base = rng.standard_normal((6, 8))
    many = [(base + 1e-4 * rng.standard_normal(base.shape)).astype(np.float16) for _ in range(9)]
    queries, options = [many[7][3:5], many[3][2:5]], {"k": 2, "exclude": [{7}, set()]}
    tuning = GpuTuning(min_extra=0, extra_share=0.0, n_reserve=n_reserve)
    expected = dtw.search(queries, many, backend="reference", **options)
    library = Resident(many, devices=[str(DEVICE)], limit=limit, tuning=tuning)
    assert are_equal(library.search(queries, **options), expected)
    bounds = bound_costs(queries, many, "strap")
    assert np.argsort(bounds[1])[:2].tolist() != expected[1].trajectory.tolist()


@pytest.mark.no_cover
@settings(max_examples=12, deadline=None)
@given(problem=problems(), steps=st.sampled_from(list(dtw.STEPS)), factor=st.sampled_from([1, 1e4]))
def test_bounds_never_exceed_the_costs(problem, steps, factor):
    queries, trajectories = problem
    queries = [np.float32(query) * np.float32(factor) for query in queries]
    bounds = bound_costs(queries, trajectories, steps)
    for q, query in enumerate(queries):
        for t, trajectory in enumerate(trajectories):
            match = dtw.best_match(query, trajectory, steps=steps, backend="reference")
            assert bounds[q, t] <= (np.inf if match is None else match.cost)
            assert (bounds[q, t] == np.inf) == (match is None)


def require_near_bounds(queries, trajectories, far=()):
    """Bounds are just below the costs; of far trajectories they may be anywhere below."""
    bounds = bound_costs(queries, trajectories, "strap")
    for q, query in enumerate(queries):
        for t, trajectory in enumerate(trajectories):
            match = dtw.best_match(query, trajectory, backend="reference")
            if match is not None:
                least = 0 if t in far else 0.995 * match.cost - 0.02
                assert least <= bounds[q, t] <= match.cost


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_bounds_are_near_the_costs(dtype):
    queries, trajectories = make_problem(dtype, 24, seed=1)
    queries[0][0] = 0  # a frame of zeros is a frame, not padding
    require_near_bounds(queries, trajectories)


def test_a_frame_beyond_float16_takes_nothing_from_the_others():
    queries, trajectories = make_problem(np.float32, 24, seed=1)
    trajectories[3][7] = 1e9
    require_near_bounds(queries, trajectories, far={3})


def bound_costs(queries, trajectories, steps: str) -> np.ndarray:
    """The lower bounds [query, trajectory] alone."""
    options = SearchOptions(1, steps)
    request = SearchRequest(queries, options, None, trajectories.__getitem__, GpuTuning())
    frames = torch.from_numpy(np.concatenate(trajectories)).to(DEVICE)
    quantization = fit_quantization(np.concatenate(queries), frames.dtype, "l2", DEVICE)
    batch = TrajectoryBatch(list(range(len(trajectories))), trajectories)
    quantized = quantize_batch(batch, frames, quantization, str)
    workspace = CostWorkspace(DEVICE)
    bounds = CostBounds(request, upload_queries(queries, DEVICE), quantization, workspace)
    lower_bounds = bounds.bound_batch(quantized)
    workspace.join_background()
    return lower_bounds.cpu().numpy()


@pytest.mark.parametrize(("limit", "count"), [(None, 1), (0, 2)])
def test_resident_trajectories(limit, count):
    queries, trajectories = make_problem(np.float16, 8)
    library = Resident(trajectories, devices=[str(DEVICE)] * count, limit=limit, tuning=SHORT)
    size = sum(frames.nbytes for frames in trajectories)
    assert (library.on_device, library.on_host) == ((0, size) if limit == 0 else (size, 0))
    assert len(library) == len(trajectories)
    expected = dtw.search(queries, trajectories, k=2, backend="reference")
    for _ in range(2):
        assert are_equal(library.search(queries, k=2), expected)


def test_what_is_kept_on_the_host_leaves_the_device():
    _, trajectories = make_problem(np.float16, 8)
    library = Resident(trajectories, devices=[str(DEVICE)], limit=0)
    (batch,) = library._shares[0].on_host
    assert batch.quantized.untyped_storage().nbytes() == 0


def test_a_library_without_trajectories_finds_nothing():
    (found,) = Resident([], devices=[str(DEVICE)] * 2).search([np.zeros((2, 3))], k=1)
    assert len(found) == 0


def test_a_library_has_one_dtype():
    _, trajectories = make_problem(np.float16, 8)
    trajectories[2] = np.float32(trajectories[2])
    with pytest.raises(StrapError, match="trajectory 2 has dtype float32 but trajectory 0 has f"):
        Resident(trajectories, devices=[str(DEVICE)])


@pytest.mark.no_cover
def test_a_stream_may_mix_dtypes():
    queries, trajectories = make_problem(np.float16, 8)
    trajectories[1] = trajectories[1].astype(np.float32)
    trajectories[4] = trajectories[4].astype(np.int16)
    for tuning in (SHORT, GpuTuning(batch_bytes=200)):
        found, _, expected = search_both(queries, trajectories, tuning, k=2)
        assert are_equal(found, expected)


def test_work_runs_on_its_device_in_inference_mode():
    """Both hold for one thread; Triton launches on the current device, wherever tensors lie."""
    places = [DEVICE] * 3
    if DEVICE.type == "cuda":
        places = [torch.device("cuda", i) for i in range(torch.cuda.device_count())]

    def work(place: torch.device):
        current = torch.cuda.current_device() if place.type == "cuda" else None
        is_usual = place.type != "cuda" or torch.cuda.current_stream() == usual[place]
        return current, torch.is_inference_mode_enabled(), is_usual

    usual = {p: torch.cuda.current_stream(p) for p in places if p.type == "cuda"}
    found = run_on_devices(places, [lambda place=place: work(place) for place in places])
    assert found == [(place.index, True, place.type != "cuda") for place in places]
    assert not torch.is_inference_mode_enabled()


@pytest.mark.no_cover
def test_the_last_batches_become_shorter():
    queries, trajectories = make_problem(np.float16, 8)
    tuning = GpuTuning(batch_bytes=2 * 8 * 10)
    library = Resident(trajectories, devices=[str(DEVICE)], tuning=tuning)
    counts = [len(batch.ids) for batch in library._shares[0].on_device]
    assert counts == [3, 1, 1, 1]  # five uploads, of which the first had two trajectories
    expected = dtw.search(queries, trajectories, k=4, backend="reference")
    assert are_equal(library.search(queries, k=4), expected)


@given(count=st.integers(0, 9), taken=st.integers(0, 9))
def test_prefetching_changes_no_order_and_stops_when_left(count, taken):
    made = []
    items = prefetch(made.append(i) or i for i in range(1, count + 1))
    assert [item for item, _ in zip(items, range(taken), strict=False)] == list(
        range(1, min(count, taken) + 1)
    )
    items.close()
    assert len(made) <= min(count, taken + 4)


def test_an_error_while_prefetching_is_raised():
    def fail():
        yield 1
        raise StrapError("the disk is full")

    items = prefetch(fail())
    assert next(items) == 1
    with pytest.raises(StrapError, match="the disk is full"):
        next(items)


@pytest.mark.parametrize(("offset", "is_moved"), [(0.1, False), (5.0, True)])
def test_frames_are_centered_where_that_makes_them_shorter(offset, is_moved):
    rng = np.random.default_rng(0)
    frames = (rng.standard_normal((40, 8)) + offset).astype(np.float16)
    assert bool(fit_quantization(frames, torch.float16, "l2", DEVICE).mean.any()) == is_moved


@pytest.mark.no_cover
def test_near_ties_that_low_precision_can_not_tell_apart():
    rng = np.random.default_rng(3)
    base = rng.standard_normal((12, 16)).astype(np.float32)
    trajectories = [base + np.float32(1e-6) * rng.standard_normal(base.shape) for _ in range(5)]
    trajectories = [np.float32(frames) for frames in [*trajectories, base, base]]
    queries = [base[3:9], base[2:8] + np.float32(1e-7)]
    found, _, expected = search_both(queries, trajectories, k=4)
    assert are_equal(found, expected)
    assert found[0].trajectory[:2].tolist() == [5, 6]
    assert found[0].cost[0] == 0


def test_one_pair_and_queries_that_do_not_fit():
    queries, trajectories = make_problem(np.float16, 8)
    expected = dtw.best_match(queries[1], trajectories[4], backend="reference")
    assert dtw.best_match(queries[1], trajectories[4], backend="gpu") == expected
    assert dtw.best_match(queries[2], trajectories[0], backend="gpu") is None


@pytest.mark.no_cover
@pytest.mark.filterwarnings("error", "ignore:invalid value encountered in sqrt:RuntimeWarning")
def test_frames_that_are_read_only_are_taken_as_they_are():
    queries, trajectories = make_problem(np.float16, 8)
    for frames in trajectories:
        frames.flags.writeable = False
    found, _, expected = search_both(queries, trajectories, k=2)
    assert are_equal(found, expected)


def test_numbers_that_are_not_finite_are_named():
    queries, trajectories = make_problem(np.float16, 8)
    trajectories[2][5, 3] = np.nan
    with pytest.raises(StrapError, match="trajectory 2, frame 5, dimension 3 is nan"):
        dtw.search(queries, trajectories, k=1, backend="gpu")


def test_the_interpreter_is_never_chosen_by_itself():
    if not devices.is_interpreted():
        pytest.skip("there is a GPU here")
    assert dtw.resolve_backend("auto").name == "cpu"
    assert dtw.resolve_backend("gpu").name == "gpu"


def test_what_is_missing_is_said(monkeypatch):
    monkeypatch.setattr(devices, "find_spec", lambda name: None)
    with pytest.raises(StrapError, match='backend "gpu": torch is not installed'):
        dtw.resolve_backend("gpu")


def test_kernels_compile_for_hopper_without_a_gpu(tmp_path):
    """What the interpreter accepts, the compiler may not: so compile, in a process without it."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    script = Path(__file__).with_name("compile_kernels.py")
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
