"""The filtered search equals the reference; bounds never exceed costs; properties of S-DTW."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from unittest import mock

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strap.dtw as dtw
from strap.dtw import (
    amx,
    bits,
    bounds,
    cells,
    cpu,
    halves,
    halving,
    instructions,
    kernels,
    pieces,
    reference,
    refinement,
    vnni,
)
from strap.dtw.bounds import Moved
from strap.dtw.corridor import Corridor
from strap.dtw.pieces import Stacked
from strap.errors import StrapError

STEPS = tuple(dtw.STEPS)
seeds = st.integers(0, 2**32 - 1)
quick = settings(max_examples=40, deadline=None)


def same(a: dtw.TopK, b: dtw.TopK) -> bool:
    return all(
        np.array_equal(getattr(a, field), getattr(b, field))
        for field in ("trajectory", "start", "stop", "cost")
    )


def sets(seed: int, *, dim: int = 20, trajectories: int = 12, queries: int = 3):
    rng = np.random.default_rng(seed)
    spread = rng.choice([1.0, 1e-3, 50.0])
    offset = rng.choice([0.0, 3.0, 1000.0]) * rng.standard_normal(dim)

    def some(longest):
        frames = rng.standard_normal((rng.integers(1, longest), dim)) * spread + offset
        return frames.astype(rng.choice([np.float32, np.float64, np.float16]))

    found = [some(30) for _ in range(trajectories)]
    found[3] = found[1].copy()  # a tie between trajectories
    return [some(9) for _ in range(queries)], found


@pytest.mark.parametrize("metric", dtw.METRICS)
@pytest.mark.parametrize("steps", STEPS)
@quick
@given(seed=seeds, k=st.integers(1, 14))
def test_search_equals_the_reference(steps, metric, seed, k):
    queries, trajectories = sets(seed)
    found = dtw.search(queries, trajectories, k=k, steps=steps, metric=metric)
    expected = dtw.search(
        queries, trajectories, k=k, steps=steps, metric=metric, backend="reference"
    )
    assert all(same(a, b) for a, b in zip(found, expected, strict=True))


def hard(seed: int):
    """A query and a trajectory on which low precision goes wrong: ties, near ties, far offsets."""
    rng = np.random.default_rng(seed)
    d, N, M = int(rng.choice([24, 40, 65])), int(rng.integers(1, 9)), int(rng.integers(1, 30))
    base, query = rng.standard_normal((M, d)), rng.standard_normal((N, d))
    kind = int(rng.integers(0, 5))
    if kind == 1:
        base, query = rng.integers(0, 2, (M, d)) + 0.5, rng.integers(0, 2, (N, d)) + 0.5
    elif kind == 2:
        base, query = base[:1] + 1e-7 * base, np.repeat(base[:1], N, axis=0)
    elif kind == 3:
        base, query = base * 1e-3 + 1000, query * 1e-3 + 1000
    elif kind == 4:
        base = np.concatenate([base[: M // 2 + 1]] * 3)[:M]  # the same piece again and again
        query = base[:N].copy()
    dtype = rng.choice([np.float16, np.float32, np.float64])
    return query.astype(dtype), base.astype(dtype)


@pytest.mark.parametrize("metric", dtw.METRICS)
@pytest.mark.parametrize("steps", STEPS)
@settings(max_examples=150, deadline=None)
@given(seed=seeds, by_integers=st.booleans())
def test_a_corridor_gives_what_all_cells_give(steps, metric, seed, by_integers):
    query, trajectory = hard(seed)
    exact = refinement.exact(query, metric)
    with mock.patch.object(halves, "by_integers", return_value=by_integers):
        corridor = Corridor([query[:1].astype(np.float64), exact], steps, metric)
    found = corridor.align(1, trajectory)
    columns = kernels.transposed(pieces.as_values(trajectory, metric))
    half = metric == "cosine"
    cost, start, stop = kernels.align(exact, columns, kernels.CODES[steps], half)
    expected = dtw.Alignment(cost, start, stop) if cost < np.inf else None
    assert found == expected
    for beat in (cost, np.nextafter(cost, np.inf), 1.5 * cost + 1e-9):
        (look,) = corridor.look([1], trajectory, [beat])
        assert look.evaluated
        assert look.match == expected
    if 0 < cost < np.inf:
        for beat in (np.nextafter(cost, 0), 0.7 * cost):
            (look,) = corridor.look([1], trajectory, [beat])
            assert look.match is None


def test_a_corridor_s_bounds_are_close():
    """Else too many cells would be evaluated in float64."""
    rng = np.random.default_rng(0)
    query, trajectory = rng.standard_normal((20, 256)), rng.standard_normal((90, 256))
    moved, frames, squares = (
        Moved(Stacked.of([query], "l2")),
        np.empty((90, 256), np.float32),
        np.empty(90),
    )
    assert moved.take(trajectory, frames, squares)
    products = moved.rows @ frames.T
    low = cells.costs(moved.alpha, moved.beta(squares), products, moved.stacked.scale, False)
    costs = reference.local_costs(query, trajectory, "l2")
    assert (low <= costs).all()
    assert (costs - low).max() < 1e-3 * costs.max()


def test_search_on_wide_frames_with_many_near_ties():
    rng = np.random.default_rng(3)
    base = rng.standard_normal((40, 96)).astype(np.float32)
    trajectories = [base + np.float32(1e-6) * rng.standard_normal(base.shape) for _ in range(60)]
    trajectories += [base.copy(), base.copy()]
    queries = [base[5:17], base[20:31] + np.float32(1e-7)]
    for steps in STEPS:
        found = dtw.search(queries, trajectories, k=9, steps=steps)
        expected = dtw.search(queries, trajectories, k=9, steps=steps, backend="reference")
        assert all(same(a, b) for a, b in zip(found, expected, strict=True))


bfloat = partial(halves.HalfFilter, numbers=halving.BFLOAT)
split = partial(halves.HalfFilter, numbers=halving.SPLIT)
whole = partial(halves.HalfFilter, numbers=halving.WHOLE)
FILTERS = (bounds.Filter, bfloat, split, whole)


def bound_of(queries, trajectories, steps, metric, kind=bounds.Filter):
    with ThreadPoolExecutor(2) as pool:
        filter_ = kind(queries, steps, metric, pool)
        piece = pieces.Piece(list(range(len(trajectories))), trajectories)
        return filter_.bounds(piece, str)


def costs_of(queries, trajectories, steps, metric):
    found = [[cpu.best_match(q, t, steps, metric) for t in trajectories] for q in queries]
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
                np.where(rng.random(own.shape) < 0.1, own * np.float16(1e-5), own) for own in many
            ]
        yield f"float16 {name}", [many[0][3:9], (noise(5, 48) * scale).astype(np.float16)], many


@pytest.mark.parametrize("kind", FILTERS)
@pytest.mark.parametrize("metric", dtw.METRICS)
@pytest.mark.parametrize("steps", STEPS)
def test_bounds_never_exceed_costs(steps, metric, kind):
    for name, queries, trajectories in adversarial():
        if metric == "cosine" and any(not f.any(axis=1).all() for f in queries + trajectories):
            continue
        low = bound_of(queries, trajectories, steps, metric, kind)
        cost = costs_of(queries, trajectories, steps, metric)
        assert np.all(low <= cost), (name, (low - cost).max())
        assert np.all(np.isfinite(low) | np.isinf(cost)), name


@quick
@given(seed=seeds)
def test_bounds_never_exceed_costs_at_random(seed):
    queries, trajectories = sets(seed)
    for metric in dtw.METRICS:
        cost = costs_of(queries, trajectories, "strap", metric)
        for kind in FILTERS:
            assert np.all(bound_of(queries, trajectories, "strap", metric, kind) <= cost)


def test_every_float16_number_is_widened_exactly():
    every = np.arange(2**16, dtype=np.uint16).view(np.float16).reshape(256, 256)
    found = pieces.as_values(every, "l2")
    finite = np.isfinite(every)
    assert np.array_equal(
        found[finite].view(np.uint32), every[finite].astype(np.float32).view(np.uint32)
    )
    assert not np.isfinite(found[~finite]).any()
    assert np.array_equal(pieces.as_values(every[::2, ::2], "l2"), found[::2, ::2], equal_nan=True)


def test_bounds_are_close_enough_to_prune():
    rng = np.random.default_rng(5)
    queries = [rng.standard_normal((20, 256)).astype(np.float32)]
    trajectories = [rng.standard_normal((60, 256)).astype(np.float32) for _ in range(10)]
    cost = costs_of(queries, trajectories, "strap", "l2")
    assert np.all(bound_of(queries, trajectories, "strap", "l2") > 0.999 * cost)
    assert np.all(bound_of(queries, trajectories, "strap", "l2", bfloat) > 0.99 * cost)
    assert np.all(bound_of(queries, trajectories, "strap", "l2", split) > 0.9995 * cost)
    assert np.all(bound_of(queries, trajectories, "strap", "l2", whole) > 0.9996 * cost)


def test_bounds_of_some_pairs():
    queries, trajectories = sets(5, queries=4)
    wanted = np.random.default_rng(0).random((len(queries), len(trajectories))) < 0.4
    with ThreadPoolExecutor(1) as pool:
        bound = split(queries, "strap", "l2", pool)
        found = bound.some(trajectories, wanted)
        every = bound.bounds(pieces.Piece(list(range(len(trajectories))), trajectories), str)
    assert np.array_equal(found, np.where(wanted, every, 0))


@quick
@given(
    seed=seeds,
    steps=st.sampled_from(STEPS),
    metric=st.sampled_from(dtw.METRICS),
    split_too=st.booleans(),
    numbers=st.sampled_from([halving.BFLOAT, halving.WHOLE]),
)
def test_a_filter_of_halves_changes_no_answer(seed, steps, metric, split_too, numbers):
    queries, trajectories = sets(seed)
    exact = {"k": 4, "steps": steps, "metric": metric}
    expected = dtw.search(queries, trajectories, backend="reference", **exact)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(halves, "pays", lambda *size: True)
        patch.setattr(halves, "fastest", lambda: numbers)
        patch.setattr(cpu, "SPLIT_FROM", 1 if split_too else 10**9)
        found = dtw.search(queries, trajectories, **exact)
    assert all(same(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("numbers", [halving.BFLOAT, halving.WHOLE])
def test_a_filter_of_halves_reports_what_is_no_number(monkeypatch, wrong, dtype, numbers):
    monkeypatch.setattr(halves, "pays", lambda *size: True)
    monkeypatch.setattr(halves, "fastest", lambda: numbers)
    rng = np.random.default_rng(0)
    frames = [rng.standard_normal((20, 40)).astype(dtype) for _ in range(3)]
    frames[1][7, 5] = wrong
    with pytest.raises(StrapError, match="trajectory 1, frame 7, dimension 5 is"):
        dtw.search([frames[0][:5]], frames, k=1)


@pytest.mark.parametrize(
    ("tiles", "lanes", "numbers"),
    [(True, True, halving.BFLOAT), (True, False, halving.BFLOAT), (False, True, halving.WHOLE)],
)
def test_halves_are_used_where_they_pay(monkeypatch, tiles, lanes, numbers):
    monkeypatch.setattr(amx, "available", lambda: tiles)
    monkeypatch.setattr(vnni, "available", lambda: lanes)
    assert halves.pays(250, 32768, 768)
    assert halves.fastest() == numbers
    assert not halves.pays(250, 100, 768)
    assert not halves.pays(250, 32768, 2**17)


def test_halves_are_not_used_where_they_are_slow(monkeypatch):
    monkeypatch.setattr(amx, "available", lambda: False)
    monkeypatch.setattr(vnni, "available", lambda: False)
    assert not halves.pays(250, 32768, 768)


SIZES = [(16, 192), (1, 1), (33, 40), (48, 128), (70, 200)]


def padded(numbers, step):
    out = pieces.aligned((halving.FRAMES, -(-numbers.shape[1] // step) * step), np.uint16)
    out[:] = 0
    out[:, : numbers.shape[1]] = numbers
    return out


@pytest.mark.parametrize(("rows", "dim"), SIZES)
def test_products_of_tiles(rows, dim):
    """By the processor's tile registers where it has them, else by the plain loop."""
    rng = np.random.default_rng(rows)

    def bfloats(count):
        return rng.integers(-128, 129, (count, dim)).astype(np.float32)  # exact, and so are sums

    def bits_of(values):
        return (values.view(np.uint32) >> 16).astype(np.uint16)

    queries, frames = bfloats(rows), bfloats(halving.FRAMES)
    packed, taken = amx.packed(bits_of(queries)), padded(bits_of(frames), amx.STEP)
    columns = len(packed) * halving.ROWS
    found = pieces.aligned((halving.FRAMES, columns + halving.BESIDE), np.float32)
    for multiply in {amx.multiply, amx._plainly}:
        for count in (halving.FRAMES, 17, 1):
            found[:] = np.nan
            multiply(taken, count, packed, found)
            assert np.array_equal(found[:count, :rows], frames[:count] @ queries.T)
            assert not found[:count, rows:columns].any()


@pytest.mark.parametrize(("rows", "dim"), SIZES)
def test_products_of_integers(rows, dim):
    """By the processor's own instruction where it has it, else by the plain loop."""
    rng = np.random.default_rng(rows)
    most = 46340 // max(2, int(dim**0.5))  # so that products are just below 2³¹
    queries = rng.choice([-most, most, 3], (rows, dim)).astype(np.int16)
    frames = rng.choice([-most, most, 5], (halving.FRAMES, dim)).astype(np.int16)
    frames[0] = queries[0]
    packed, taken = vnni.packed(queries.view(np.uint16)), padded(frames.view(np.uint16), vnni.STEP)
    columns = len(packed) * halving.ROWS
    found = pieces.aligned((halving.FRAMES, columns + halving.BESIDE), np.float32)
    expected = frames.astype(np.int64) @ queries.T.astype(np.int64)
    for multiply in {vnni.multiply, vnni._plainly}:
        for count in (halving.FRAMES, 17, 1):
            found.view(np.int32)[:] = -1
            multiply(taken, count, packed, found)
            assert np.array_equal(found.view(np.int32)[:count, :rows], expected[:count])
            assert not found[:count, rows:columns].any()


def as_integers(frames, mean, scale):
    """As the search rounds them: integers, squared norms, errors, and what an integer is worth."""
    count, dim = frames.shape
    out = np.zeros((count, -(-dim // vnni.STEP) * vnni.STEP), np.uint16)
    (squares, errors), worth = np.empty((2, count)), np.empty(count, np.float32)
    plain = frames.view(np.uint16) if frames.dtype == np.float16 else frames
    halving.round_frames(plain, mean, scale, halving.WHOLE, out, squares, errors, worth)
    assert not out[:, dim:].any()
    return out[:, :dim].view(np.int16).astype(np.int64), squares, errors, worth


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("dim", [1, 15, 16, 17, 63, 64, 100, 1280])
def test_frames_of_any_length_and_kind_become_integers(dim, dtype):
    rng = np.random.default_rng(dim)
    frames = rng.standard_normal((5, dim)).astype(dtype)
    wide = np.float64 if dtype is np.float64 else np.float32
    mean = rng.standard_normal(dim).astype(np.float32).astype(wide)
    integers, squares, errors, worth = as_integers(frames, mean, wide(0.5))
    moved = ((frames.astype(wide) - mean) * wide(0.5)).astype(np.float32)
    assert np.abs(integers - moved / worth[:, None].astype(float)).max() < 0.51
    assert (integers**2).sum(axis=1).max() < 2**31
    stands = integers * worth[:, None].astype(float)
    np.testing.assert_allclose(squares, (stands**2).sum(axis=1), rtol=1e-12)
    off = ((moved - stands) ** 2).sum(axis=1)
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
    integers, square, error, worth = as_integers(frame, np.zeros(300, np.float32), np.float32(1))
    assert (integers**2).sum() < 2**31
    stands = integers * np.float64(worth)
    np.testing.assert_allclose(square, (stands**2).sum(), rtol=1e-12)
    off = np.linalg.norm(frame.astype(np.float64) - stands)
    assert off <= halving.raised(error[0], square[0])
    assert off <= 1e-3 * np.linalg.norm(frame) + 1e-13


@pytest.mark.parametrize(
    ("there", "chosen", "expected"),
    [
        ("+avx2,+amx-tile,+amx-bf16", None, True),
        ("+avx2,+amx-tile,-amx-bf16", None, False),
        ("+avx2,+amx-tile,+amx-bf16", "+avx2", False),
        ("+avx2,+amx-tile,+amx-bf16", "", False),
        ("+avx2", "+avx2,+amx-tile,+amx-bf16", False),
    ],
)
def test_instructions_are_used_where_numba_compiles_for_them(monkeypatch, there, chosen, expected):
    monkeypatch.setattr(instructions, "get_host_cpu_features", lambda: there)
    monkeypatch.setattr(numba.core.config, "CPU_FEATURES", chosen)
    assert instructions.has("amx-tile", "amx-bf16") is expected


def test_memory_begins_with_a_cache_line():
    kept = pieces.Buffers()
    for size in (1, 7, 1000):
        for own in (pieces.aligned((size, 3), np.uint16), kept.get("x", np.uint16, size, 3)):
            assert own.shape == (size, 3)
            assert own.ctypes.data % 64 == 0


def test_numbers_and_their_bits():
    @numba.njit
    def all_of(halves, singles, wide, near, upper):
        for i in range(halves.shape[0]):
            wide[i] = bits.number(halves[i])
        for i in range(singles.shape[0]):
            near[i] = bits.nearest_bfloat(singles[i])
            upper[i] = bits.upper_half(singles[i])

    halves_ = np.arange(2**16, dtype=np.uint16)
    singles = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    wide, near = np.empty(2**16, np.float32), np.empty(1000, np.float32)
    upper = np.empty(1000, np.uint16)
    all_of(halves_, singles, wide, near, upper)
    with np.errstate(invalid="ignore"):
        expected = halves_.view(np.float16).astype(np.float32)
    assert np.array_equal(wide, expected, equal_nan=True)
    assert np.array_equal(upper, singles.view(np.uint32) >> 16)
    assert not (near.view(np.uint32) & 0xFFFF).any()
    assert (np.abs(near - singles) <= 2.0**-8 * np.abs(singles)).all()


def test_many_query_frames_go_in_groups(monkeypatch):
    monkeypatch.setattr(pieces, "GROUP_ROWS", 10)
    queries, trajectories = sets(2, queries=6)
    found = dtw.search(queries, trajectories, k=4)
    expected = dtw.search(queries, trajectories, k=4, backend="reference")
    assert all(same(a, b) for a, b in zip(found, expected, strict=True))


@quick
@given(seed=seeds, size=st.sampled_from([1, 20, 90, 10**6]), tile=st.sampled_from([1, 30, 512]))
def test_blocks_of_any_size_and_order(seed, size, tile):
    queries, trajectories = sets(seed)
    expected = dtw.search(queries, trajectories, k=5)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(trajectories))
    blocks = []
    for part in np.array_split(order, rng.integers(1, 6)):
        frames = [trajectories[i].astype(np.float64) for i in part]
        offsets = np.cumsum([0, *(len(f) for f in frames)])
        blocks.append(dtw.Block(np.concatenate(frames), offsets, part))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "PIECE_FRAMES", size)
        patch.setattr(bounds.Filter, "tile_frames", tile)
        for backend in ("cpu", "reference"):
            found = dtw.search_blocks(
                queries, blocks, k=5, fetch=trajectories.__getitem__, backend=backend
            )
            assert all(same(a, b) for a, b in zip(found, expected, strict=True))


@quick
@given(seed=seeds, k=st.integers(1, 11))
def test_top_k_is_a_prefix(seed, k):
    queries, trajectories = sets(seed)
    fewer = dtw.search(queries, trajectories, k=k)
    more = dtw.search(queries, trajectories, k=k + 1)
    for a, b in zip(fewer, more, strict=True):
        count = len(a)
        assert same(
            a, dtw.TopK(b.trajectory[:count], b.start[:count], b.stop[:count], b.cost[:count])
        )
        assert np.all(np.diff(b.cost) >= 0)


@quick
@given(seed=seeds, length=st.integers(1, 8), start=st.integers(0, 20))
def test_planted_segment_is_found_at_cost_zero(seed, length, start):
    rng = np.random.default_rng(seed)
    trajectories = [rng.standard_normal((30, 8)).astype(np.float32) for _ in range(6)]
    which = int(rng.integers(6))
    query = trajectories[which][start : start + length].copy()
    for steps in STEPS:
        (found,) = dtw.search([query], trajectories, k=1, steps=steps)
        assert (found.trajectory[0], found.start[0], found.stop[0], found.cost[0]) == (
            which,
            start,
            start + length,
            0.0,
        )


pairs = st.tuples(seeds, st.integers(1, 7), st.integers(1, 16))


def pair(drawn):
    seed, n, m = drawn
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 3)), rng.standard_normal((m, 3))


@quick
@given(drawn=pairs)
def test_match_length_is_what_the_steps_imply(drawn):
    query, trajectory = pair(drawn)
    n = len(query)
    for steps, low, high in (("strap", n, 2 * n - 1), ("fmp", n // 2 + 1, 2 * n - 1)):
        match = dtw.best_match(query, trajectory, steps=steps)
        if match is None:
            assert len(trajectory) < low
        else:
            assert low <= match.stop - match.start <= high


@quick
@given(drawn=pairs)
def test_more_steps_never_raise_the_cost(drawn):
    query, trajectory = pair(drawn)
    strap = dtw.best_match(query, trajectory, steps="strap")
    fmp = dtw.best_match(query, trajectory, steps="fmp")
    if strap is not None:
        assert fmp is not None
        assert fmp.cost <= strap.cost


@quick
@given(drawn=pairs)
def test_more_frames_never_raise_the_cost(drawn):
    query, trajectory = pair(drawn)
    for steps in STEPS:
        shorter = (
            dtw.best_match(query, trajectory[:-1], steps=steps) if len(trajectory) > 1 else None
        )
        longer = dtw.best_match(query, trajectory, steps=steps)
        if shorter is not None:
            assert longer is not None
            assert longer.cost <= shorter.cost


def test_every_trajectory_is_read_once_and_few_again():
    rng = np.random.default_rng(9)
    trajectories = [rng.standard_normal((50, 64)).astype(np.float32) for _ in range(200)]
    queries = [trajectories[7][10:20]]
    offsets = np.arange(0, 50 * 200 + 1, 50)
    fetched = []

    def fetch(index):
        fetched.append(index)
        return trajectories[index]

    block = dtw.Block(np.concatenate(trajectories), offsets, np.arange(200))
    (found,) = dtw.search_blocks(queries, [block], k=1, fetch=fetch)
    assert found.trajectory.tolist() == [7]
    assert len(fetched) < 20
