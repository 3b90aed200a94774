"""The filtered search equals the reference; bounds never exceed costs; properties of S-DTW."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.dtw_problems import all_same, laid_end_to_end, metrics, problems, same, steps, tunings

import strap.dtw as dtw
from strap.dtw import alignment, batching, buffers, llvm, local_costs
from strap.dtw.batching import TrajectoryBatch, as_doubles, as_floats
from strap.dtw.cpu.exact import ExactAligner
from strap.dtw.cpu.float32_bounds import Float32Bounds
from strap.dtw.cpu.int16 import gemm, quantize
from strap.dtw.cpu.int16.workspace import LOADED_FRAMES, PADDING_COLUMNS, bound_error
from strap.dtw.cpu.int16_bounds import Int16Bounds
from strap.dtw.cpu.pair_alignment import best_match
from strap.dtw.cpu.query_stack import QueryStack
from strap.dtw.cpu.tiled_bounds import bound_batch
from strap.dtw.cpu.tuning import CpuTuning
from strap.dtw.metrics import local_costs as exact_local_costs
from strap.dtw.steps import step_set
from strap.errors import StrapError

search = partial(dtw.search, backend="cpu")
quick = settings(max_examples=40, deadline=None)


@settings(max_examples=220, deadline=None)
@given(problem=problems(), steps=steps, metric=metrics, k=st.integers(1, 9), tuning=tunings)
def test_search_equals_the_reference_whatever_the_tuning(problem, steps, metric, k, tuning):
    queries, trajectories = problem
    exclude = [{0} if q % 2 else set() for q in range(len(queries))]
    options = {"k": k, "steps": steps, "metric": metric, "exclude": exclude}
    found = search(queries, trajectories, tuning=tuning, **options)
    expected = dtw.search(queries, trajectories, backend="reference", **options)
    assert all_same(found, expected)


@quick
@given(problem=problems(), steps=steps, cuts=st.sets(st.integers(1, 7)), data=st.data())
def test_blocks_of_any_size_and_order(problem, steps, cuts, data):
    queries, trajectories = problem
    order = np.array(data.draw(st.permutations(range(len(trajectories))), "order"))
    parts = [part for part in np.split(order, sorted(cuts)) if len(part)]
    blocks = [laid_end_to_end([trajectories[i] for i in part], part) for part in parts]
    expected = dtw.search(queries, trajectories, k=5, steps=steps, backend="reference")
    for backend in ("cpu", "reference"):
        found = dtw.search_blocks(
            queries, blocks, k=5, steps=steps, fetch=trajectories.__getitem__, backend=backend
        )
        assert all_same(found, expected)


def test_search_on_wide_frames_with_many_near_ties():
    rng = np.random.default_rng(3)
    base = rng.standard_normal((40, 96)).astype(np.float32)
    trajectories = [base + np.float32(1e-6) * rng.standard_normal(base.shape) for _ in range(60)]
    trajectories += [base.copy(), base.copy()]
    queries = [base[5:17], base[20:31] + np.float32(1e-7)]
    for name in dtw.STEPS:
        found = search(queries, trajectories, k=9, steps=name)
        expected = dtw.search(queries, trajectories, k=9, steps=name, backend="reference")
        assert all_same(found, expected)


@pytest.mark.parametrize("metric", dtw.METRICS)
@pytest.mark.parametrize("name", dtw.STEPS)
@settings(max_examples=60, deadline=None)
@given(problem=problems(dims=(24, 40, 65), trajectories=1, frames=30))
def test_a_pruned_alignment_is_that_of_all_local_costs(name, metric, problem):
    (query, *_), (trajectory,) = problem
    exact, values = as_doubles(query, metric), as_floats(trajectory, metric)
    aligner = ExactAligner([exact[:1], exact], step_set(name), metric)
    costs = local_costs.compute_local_costs(exact, values, metric == "cosine")
    cost, start, stop = alignment.align(costs, step_set(name))
    expected = dtw.Alignment(cost, start, stop) if cost < np.inf else None
    assert aligner.align(1, trajectory) == expected

    def evaluate(threshold):
        (outcome,) = aligner.align_candidate([1], trajectory, [threshold], lambda: None)
        return outcome

    for threshold in (cost, np.nextafter(cost, np.inf), 1.5 * cost + 1e-9):
        assert evaluate(threshold).is_exact
        assert evaluate(threshold).match == expected
    if 0 < cost < np.inf:
        assert evaluate(np.nextafter(cost, 0)).match is None
        assert evaluate(0.7 * cost).match is None


@quick
@given(problem=problems(trajectories=1), metric=metrics)
def test_local_costs_are_the_definition_s_bits(problem, metric):
    (query, *_), (trajectory,) = problem
    exact, values = as_doubles(query, metric), as_floats(trajectory, metric)
    expected = exact_local_costs(query, trajectory, metric)
    assert np.array_equal(
        local_costs.compute_local_costs(exact, values, metric == "cosine"), expected
    )
    pairs = np.argwhere(expected >= 0)[::2]
    bits = trajectory.view(np.uint16) if trajectory.dtype == np.float16 else trajectory
    costs = np.full(expected.shape, -1.0)
    frames = values if metric == "cosine" else bits
    local_costs.fill_local_costs(exact, frames, pairs, metric == "cosine", costs)
    rows, columns = pairs.T
    assert np.array_equal(costs[rows, columns], expected[rows, columns])
    assert (costs == -1).sum() == costs.size - len(pairs)


def float32(queries, steps, metric):
    return Float32Bounds(QueryStack.of(queries, metric), step_set(steps), metric, 512)


def int16(queries, steps, metric):
    return Int16Bounds(QueryStack.of(queries, metric), step_set(steps), metric, 512)


KINDS = (float32, int16)


def bounds_of(tile_bounds, trajectories):
    with ThreadPoolExecutor(1) as pool:
        batch = TrajectoryBatch(list(range(len(trajectories))), trajectories)
        return bound_batch(tile_bounds, batch, 30, str, pool)


def costs_of(queries, trajectories, steps, metric):
    found = [[best_match(q, t, steps=steps, metric=metric) for t in trajectories] for q in queries]
    return np.array([[np.inf if match is None else match.cost for match in row] for row in found])


def adversarial():
    """Data on which careless bounds break, by name."""
    rng = np.random.default_rng(11)

    def noise(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    query = noise(8, 48)
    yield "random", [query, noise(5, 48)], [noise(20, 48) for _ in range(6)]
    yield "huge common offset", [query + 1e4], [noise(20, 48) + 1e4 for _ in range(6)]
    yield "offset only in the trajectories", [query], [noise(20, 48) + 1e5 for _ in range(4)]
    yield "tiny", [query * 1e-30], [noise(20, 48) * 1e-30 for _ in range(6)]
    yield "tiny trajectories", [query], [noise(20, 48) * 1e-35, np.zeros((20, 48)) + 1e-42]
    yield "huge", [query * 1e30], [noise(20, 48) * 1e30 for _ in range(6)]
    large = [noise(20, 48).astype(float) * scale for scale in (1e100, 1e99, 1e-99)]
    yield "huge float64", [query.astype(float) * 1e100], large
    yield "huge trajectories", [query], large
    yield "duplicates", [query], [np.concatenate([noise(6, 48), query, noise(6, 48)])] * 3
    near = [query + np.float32(s) * noise(8, 48) for s in (1e-7, 1e-6, 1e-5, 1e-3)]
    yield "near-ties", [query], near
    yield "spikes", [query * (rng.random(query.shape) < 0.02)], [noise(20, 48) ** 5] * 2
    yield "all query frames alike", [np.ones((4, 48))], [noise(20, 48), np.ones((9, 48))]
    yield "one dimension", [noise(3, 1)], [noise(9, 1) for _ in range(5)]
    for name, scale in (("", 1), ("tiny", 1e-7), ("largest", 1.2e4), ("one in ten tiny", 0.01)):
        many = [(noise(20, 48) * scale).astype(np.float16) for _ in range(4)]
        if name == "one in ten tiny":
            many = [
                np.where(rng.random(one.shape) < 0.1, one * np.float16(1e-5), one) for one in many
            ]
        yield f"float16 {name}", [many[0][3:9], (noise(5, 48) * scale).astype(np.float16)], many


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("metric", dtw.METRICS)
@pytest.mark.parametrize("name", dtw.STEPS)
def test_bounds_never_exceed_costs(name, metric, kind):
    for case, queries, trajectories in adversarial():
        if metric == "cosine" and any(not f.any(axis=1).all() for f in queries + trajectories):
            continue
        lower = bounds_of(kind(queries, name, metric), trajectories)
        cost = costs_of(queries, trajectories, name, metric)
        assert np.all(lower <= cost), (case, (lower - cost).max())
        assert np.all(np.isfinite(lower) | np.isinf(cost)), case


@settings(max_examples=80, deadline=None)
@given(problem=problems(), steps=steps, metric=metrics)
def test_bounds_never_exceed_costs_of_drawn_problems(problem, steps, metric):
    queries, trajectories = problem
    cost = costs_of(queries, trajectories, steps, metric)
    for kind in KINDS:
        lower = bounds_of(kind(queries, steps, metric), trajectories)
        assert np.all(lower <= cost)
        assert np.array_equal(np.isinf(lower), np.isinf(cost))


@quick
@given(
    problem=problems(query_frames=40, frames=80),
    metric=metrics,
    group_rows=st.sampled_from([1, 512]),
)
def test_recurrences_in_registers_and_row_by_row_agree(problem, metric, group_rows):
    queries, trajectories = problem
    stack, strap = QueryStack.of(queries, metric), step_set("strap")
    ways = strap, strap._replace(is_strap=False)
    one, other = (
        bounds_of(Int16Bounds(stack, way, metric, group_rows), trajectories) for way in ways
    )
    assert np.array_equal(one, other)


def test_bounds_are_close_enough_to_prune():
    rng = np.random.default_rng(5)
    queries = [rng.standard_normal((20, 256)).astype(np.float32)]
    trajectories = [rng.standard_normal((60, 256)).astype(np.float32) for _ in range(10)]
    cost = costs_of(queries, trajectories, "strap", "l2")
    assert np.all(bounds_of(float32(queries, "strap", "l2"), trajectories) > 0.999 * cost)
    assert np.all(bounds_of(int16(queries, "strap", "l2"), trajectories) > 0.9996 * cost)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("use_int16", [False, True])
def test_what_is_no_number_is_reported(wrong, dtype, use_int16):
    rng = np.random.default_rng(0)
    frames = [rng.standard_normal((20, 40)).astype(dtype) for _ in range(3)]
    frames[1][7, 5] = wrong
    with pytest.raises(StrapError, match="trajectory 1, frame 7, dimension 5 is"):
        search([frames[0][:5]], frames, k=1, tuning=CpuTuning(use_int16=use_int16))


def test_a_tuning_says_when_integers_are_used():
    assert CpuTuning(use_int16=True).bounds_by_int16(1, 1, 1)
    assert not CpuTuning(use_int16=False).bounds_by_int16(250, 32768, 768)
    assert CpuTuning().bounds_by_int16(250, 32768, 768) == gemm.is_fast()
    assert not CpuTuning().bounds_by_int16(250, 100, 768)


def test_frames_of_very_many_dimensions_are_searched_too():
    rng = np.random.default_rng(0)
    trajectories = [rng.standard_normal((3, 2**16 + 1)) for _ in range(3)]
    found = search([trajectories[1][1:]], trajectories, k=2, tuning=CpuTuning(use_int16=True))
    expected = dtw.search([trajectories[1][1:]], trajectories, k=2, backend="reference")
    assert all_same(found, expected)


def check_products(rows, dim):
    rng = np.random.default_rng(rows)
    most = 46340 // max(2, int(dim**0.5))  # so that products are just below 2³¹
    queries = rng.choice([-most, most, 3], (rows, dim)).astype(np.int16)
    frames = rng.choice([-most, most, 5], (LOADED_FRAMES, dim)).astype(np.int16)
    frames[0] = queries[0]
    packed = gemm.pack_rows(queries)
    loaded = buffers.aligned(
        (LOADED_FRAMES, -(-dim // gemm.CHUNK_DIMS) * gemm.CHUNK_DIMS), np.int16
    )
    loaded[:] = 0
    loaded[:, :dim] = frames
    columns = len(packed) * gemm.BLOCK_ROWS
    products = buffers.aligned((LOADED_FRAMES, columns + PADDING_COLUMNS), np.int32)
    expected = frames.astype(np.int64) @ queries.T.astype(np.int64)
    for count in (LOADED_FRAMES, 17, 1):
        products[:] = -1
        gemm.multiply(loaded, count, packed, 0, len(packed), products)
        assert np.array_equal(products[:count, :rows], expected[:count])
        assert not products[:count, rows:columns].any()


SIZES = [(16, 192), (1, 1), (33, 40), (48, 128), (70, 200)]


@pytest.mark.parametrize(("rows", "dim"), SIZES)
def test_products_of_integers(rows, dim):
    """By the processor's own instruction where it has that."""
    check_products(rows, dim)


@pytest.mark.skipif(not gemm.is_fast(), reason="the test before this one ran these loops")
def test_products_of_integers_without_the_processor_s_instruction():
    """What is compiled is decided once for a process."""
    features = numba.core.codegen.get_host_cpu_features().replace("+avx512vnni", "-avx512vnni")
    script = (
        "from strap.dtw.cpu.int16 import gemm\n"
        "from tests.test_dtw_search import SIZES, check_products\n"
        "assert not gemm.is_fast()\n"
        "for rows, dim in SIZES: check_products(rows, dim)"
    )
    environment = {**os.environ, "NUMBA_CPU_FEATURES": features}
    command = [sys.executable, "-c", script]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=root)
    assert done.returncode == 0, done.stderr


def quantized(frames, mean, scale):
    """Integers, squared norms, errors, and the scale of each frame."""
    count, dim = frames.shape
    out = np.zeros((count, -(-dim // gemm.CHUNK_DIMS) * gemm.CHUNK_DIMS), np.int16)
    (squares, errors), scales = np.empty((2, count)), np.empty(count, np.float32)
    bits = frames.view(np.uint16) if frames.dtype == np.float16 else frames
    quantize.quantize(bits, mean, scale, out, squares, errors, scales)
    assert not out[:, dim:].any()
    return out[:, :dim].astype(np.int64), squares, errors, scales


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("dim", [1, 15, 16, 17, 63, 64, 100, 1280])
def test_frames_of_any_length_and_kind_become_integers(dim, dtype):
    rng = np.random.default_rng(dim)
    frames = rng.standard_normal((5, dim)).astype(dtype)
    wide = np.float64 if dtype is np.float64 else np.float32
    mean = rng.standard_normal(dim).astype(np.float32).astype(wide)
    integers, squares, errors, scales = quantized(frames, mean, wide(0.5))
    centered = ((frames.astype(wide) - mean) * wide(0.5)).astype(np.float32)
    assert np.abs(integers - centered / scales[:, None].astype(float)).max() < 0.51
    assert (integers**2).sum(axis=1).max() < 2**31
    stands_for = integers * scales[:, None].astype(float)
    np.testing.assert_allclose(squares, (stands_for**2).sum(axis=1), rtol=1e-12)
    off = ((centered - stands_for) ** 2).sum(axis=1)
    np.testing.assert_allclose(errors, off, rtol=0.02, atol=1e-14)


@pytest.mark.parametrize(
    "frame",
    [
        np.eye(1, 300, 7),  # one number holds all of the length
        np.ones((1, 300)),
        np.zeros((1, 300)),
        np.full((1, 300), 1e-16),
        np.full((1, 300), 1e-20),
        np.full((1, 300), 3e13),
        np.linspace(-1, 1, 300)[None] ** 9,
    ],
)
def test_integers_stand_for_a_frame(frame):
    frame = frame.astype(np.float32)
    integers, square, error, scale = quantized(frame, np.zeros(300, np.float32), np.float32(1))
    assert (integers**2).sum() < 2**31
    stands_for = integers * np.float64(scale)
    np.testing.assert_allclose(square, (stands_for**2).sum(), rtol=1e-12)
    off = np.linalg.norm(frame.astype(np.float64) - stands_for)
    assert off <= bound_error(error[0], square[0])
    assert off <= 1e-3 * np.linalg.norm(frame) + 1e-13


@pytest.mark.parametrize(
    ("there", "chosen", "expected"),
    [
        ("+avx2,+avx512f,+avx512vnni", None, True),
        ("+avx2,+avx512f,-avx512vnni", None, False),
        ("+avx2,+avx512f,+avx512vnni", "+avx2", False),
        ("+avx2,+avx512f,+avx512vnni", "", False),
        ("+avx2", "+avx2,+avx512f,+avx512vnni", False),
    ],
)
def test_instructions_are_used_where_numba_compiles_for_them(monkeypatch, there, chosen, expected):
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: there)
    monkeypatch.setattr(numba.core.config, "CPU_FEATURES", chosen)
    assert llvm.has_instructions("avx512f", "avx512vnni") is expected


def test_every_float16_number_is_widened_exactly():
    every = np.arange(2**16, dtype=np.uint16).view(np.float16).reshape(256, 256)
    found = batching.as_floats(every, "l2")
    finite = np.isfinite(every)
    assert np.array_equal(
        found[finite].view(np.uint32), every[finite].astype(np.float32).view(np.uint32)
    )
    assert not np.isfinite(found[~finite]).any()
    halved = batching.as_floats(every[::2, ::2], "l2")
    assert np.array_equal(halved, found[::2, ::2], equal_nan=True)


@given(
    lengths=st.lists(st.integers(1, 600), min_size=1, max_size=9), most=st.sampled_from([1, 256])
)
def test_tiles_are_as_large_as_they_may_or_hold_one(lengths, most):
    offsets = np.cumsum([0, *lengths])
    tiles = batching.split_into_tiles(offsets, most)
    assert [i for tile in tiles for i in tile] == list(range(len(lengths)))
    sizes = [int(offsets[tile.stop] - offsets[tile.start]) for tile in tiles]
    assert all(size <= most or len(tile) == 1 for size, tile in zip(sizes, tiles, strict=True))
    for size, following in zip(sizes, tiles[1:], strict=False):
        assert size + lengths[following.start] > most


def test_memory_begins_with_a_cache_line():
    kept = buffers.Buffers()
    for size in (1, 7, 1000):
        for array in (buffers.aligned((size, 3), np.int16), kept.get("x", np.int16, size, 3)):
            assert array.shape == (size, 3)
            assert array.ctypes.data % 64 == 0


@quick
@given(problem=problems(), k=st.integers(1, 7))
def test_top_k_is_a_prefix(problem, k):
    queries, trajectories = problem
    fewer, more = (search(queries, trajectories, k=count) for count in (k, k + 1))
    for a, b in zip(fewer, more, strict=True):
        count = len(a)
        prefix = (part[:count] for part in (b.trajectory, b.start, b.stop, b.cost))
        assert same(a, dtw.TopK(*prefix))
        assert np.all(np.diff(b.cost) >= 0)


@quick
@given(problem=problems(), steps=steps, data=st.data())
def test_planted_segment_is_found_at_cost_zero(problem, steps, data):
    """It, or what costs as little and comes first."""
    _, trajectories = problem
    which = data.draw(st.integers(0, len(trajectories) - 1), "which")
    start = data.draw(st.integers(0, len(trajectories[which]) - 1), "start")
    stop = data.draw(st.integers(start + 1, len(trajectories[which])), "stop")
    (found,) = search([trajectories[which][start:stop]], trajectories, k=1, steps=steps)
    assert found.cost[0] == 0
    match = found.trajectory[0], found.stop[0], -found.start[0]
    assert match <= (which, stop, -start)


pairs = problems(dims=(3,), trajectories=1, query_frames=7)
match_of = partial(dtw.best_match, backend="cpu")


@quick
@given(problem=pairs)
def test_match_length_is_what_the_steps_imply(problem):
    (query, *_), (trajectory,) = problem
    n = len(query)
    for name, low, high in (("strap", n, 2 * n - 1), ("fmp", n // 2 + 1, 2 * n - 1)):
        match = match_of(query, trajectory, steps=name)
        if match is None:
            assert len(trajectory) < low
        else:
            assert low <= match.stop - match.start <= high


@quick
@given(problem=pairs)
def test_more_steps_never_raise_the_cost(problem):
    (query, *_), (trajectory,) = problem
    strap, fmp = (match_of(query, trajectory, steps=name) for name in ("strap", "fmp"))
    if strap is not None:
        assert fmp is not None
        assert fmp.cost <= strap.cost


@quick
@given(problem=pairs, steps=steps)
def test_more_frames_never_raise_the_cost(problem, steps):
    (query, *_), (trajectory,) = problem
    shorter = match_of(query, trajectory[:-1], steps=steps) if len(trajectory) > 1 else None
    longer = match_of(query, trajectory, steps=steps)
    if shorter is not None:
        assert longer is not None
        assert longer.cost <= shorter.cost


def test_every_trajectory_is_read_once_and_few_again():
    rng = np.random.default_rng(9)
    trajectories = [rng.standard_normal((50, 64)).astype(np.float32) for _ in range(200)]
    fetched = []

    def fetch(index):
        fetched.append(index)
        return trajectories[index]

    block = laid_end_to_end(trajectories)
    (found,) = dtw.search_blocks([trajectories[7][10:20]], [block], k=1, fetch=fetch, backend="cpu")
    assert found.trajectory.tolist() == [7]
    assert len(fetched) < 20


@quick
@given(problem=problems(), k=st.integers(1, 9), per_trajectory=st.integers(1, 3))
def test_every_pair_is_counted_once(problem, k, per_trajectory):
    """Also where constraints make a search look at the same pairs again, with a larger k."""
    queries, trajectories = problem
    options = dtw.SearchOptions(k, backend="cpu")
    library = dtw.Library(
        dtw.stream_blocks([laid_end_to_end(trajectories)]), trajectories.__getitem__, str
    )
    plain = dtw.search_library(queries, library, options).total
    limited = dtw.Constraints(per_trajectory, [(len(q), len(q)) for q in queries])
    options = replace(options, constraints=limited)
    counts = dtw.search_library(queries, library, options).total
    assert (
        counts.pairs == plain.pairs == sum(len(q) <= len(t) for q in queries for t in trajectories)
    )
    for each in (plain, counts):
        assert each.pairs == each.by_sketches + each.by_bounds + each.evaluated
