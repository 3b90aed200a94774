"""Sketches rule out what cannot win, and nothing else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.stores import make_store

import strap.dtw as dtw
from strap.cli import main
from strap.dtw import cpu, halves
from strap.dtw.sketches import Finer, Sketched, Sketcher, SketchFilter
from strap.errors import StrapError
from strap.search import corpus, search_stores
from strap.sketches import open_sketches, sketch_store

seeds = st.integers(0, 2**32 - 1)


def curved(rng: np.random.Generator, length: int, dim: int):
    """A smooth walk near a few directions, as embeddings are."""
    walk = np.cumsum(rng.standard_normal((length, 6)), axis=0)
    spread = np.random.default_rng(7).standard_normal((6, dim))
    return walk @ spread + 0.3 * rng.standard_normal((length, dim)) + 20


def data(seed: int, dtype: type = np.float16, dim: int = 24):
    rng = np.random.default_rng(seed)
    trajectories = [curved(rng, int(rng.integers(5, 40)), dim).astype(dtype) for _ in range(30)]
    queries = [curved(rng, int(rng.integers(2, 12)), dim).astype(dtype) for _ in range(3)]
    queries[0] = trajectories[4][:4].copy()
    return queries, trajectories


def sketched(trajectories, sizes: tuple[int, ...] = (8, 16)) -> Sketched:
    """As a store has them: the directions of short sketches are the first of long ones."""
    longest = Sketcher.fit(np.concatenate(trajectories), size=sizes[-1])
    short, *longer = (longest.shorter(size) for size in sizes)
    made = [short(own) for own in trajectories]
    blocks = [
        dtw.Block(rows, np.array([0, len(rows)]), np.array([i])) for i, (rows, _) in enumerate(made)
    ]
    finer = [finer_of(own, trajectories) for own in longer]
    return Sketched(short, blocks, lambda index: float(made[index][1].max()), finer)


def finer_of(sketcher: Sketcher, trajectories) -> Finer:
    def fetch(index: int):
        rows, errors = sketcher(trajectories[index])
        return rows, float(errors.max())

    return Finer(sketcher, fetch)


@pytest.mark.parametrize("steps", tuple(dtw.STEPS))
@settings(max_examples=15, deadline=None)
@given(seed=seeds)
def test_bounds_never_exceed_costs(steps, seed):
    queries, trajectories = data(seed)
    parts = sketched(trajectories)
    rows = [block.frames for block in parts.blocks]
    ends = np.cumsum([0, *map(len, rows)])
    errors = np.array([parts.error(index) for index in range(len(rows))])
    every = np.ones((len(queries), len(rows)), np.bool_)
    some = np.array([[True], [False], [True]])
    (longer,) = parts.finer
    with ThreadPoolExecutor(1) as pool:
        sketchers = [parts.sketcher, longer.sketcher]
        short, finer = SketchFilter.ladder(queries, sketchers, steps, pool)
    lows = short.bounds(np.concatenate(rows), ends, errors, every)
    for t, own_rows in enumerate(rows):
        own = short.bounds(own_rows, np.array([0, len(own_rows)]), errors[t : t + 1], some)
        np.testing.assert_array_equal(own[some], lows[[0, 2], t])
        assert own[1, 0] == 0
        sketches, error = longer.fetch(t)
        own_ends = np.array([0, len(sketches)])
        better = finer.bounds(sketches, own_ends, np.array([error]), some)
        lows[:, t] = np.maximum(lows[:, t], better[:, 0])
    for q, query in enumerate(queries):
        for t, own in enumerate(trajectories):
            match = dtw.best_match(query, own, steps=steps)
            assert lows[q, t] <= (np.inf if match is None else match.cost)


@pytest.mark.parametrize("then_halves", [False, True])
@pytest.mark.parametrize("steps", tuple(dtw.STEPS))
@settings(max_examples=15, deadline=None)
@given(seed=seeds, k=st.integers(1, 8), sizes=st.sampled_from([(5,), (4, 12), (3, 6, 16)]))
def test_the_answer_is_the_same(steps, then_halves, seed, k, sizes):
    queries, trajectories = data(seed, np.float32)
    tally = dtw.Tally()
    with (
        mock.patch.object(halves, "pays", return_value=then_halves),
        mock.patch.object(halves, "usable", return_value=then_halves),
        mock.patch.object(cpu, "SPLIT_FROM", 1),
    ):
        found = dtw.search_blocks(
            queries,
            iter(()),  # with sketches the frames aren't streamed
            k=k,
            fetch=trajectories.__getitem__,
            steps=steps,
            exclude=[{1}, set(), {4}],
            sketched=[sketched(trajectories, sizes)],
            tally=tally,
        )
    expected = dtw.search(queries, trajectories, k=k, steps=steps, exclude=[{1}, set(), {4}])
    for a, b in zip(found, expected, strict=True):
        for field in ("trajectory", "start", "stop", "cost"):
            assert np.array_equal(getattr(a, field), getattr(b, field))
    assert tally.by_sketches + tally.by_bounds + tally.evaluated == tally.pairs
    assert min(tally.by_sketches, tally.by_bounds, tally.evaluated) >= 0


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("inside", [False, True])
def test_quick_sketches_know_their_errors(inside, offset):
    rng = np.random.default_rng(2)
    frames = rng.standard_normal((200, 48)) + offset
    sketcher = Sketcher.fit(frames[:150], size=12)
    if inside:  # nothing is left over: where squares that cancel are least exact
        frames = sketcher.mean + rng.standard_normal((200, 11)) @ sketcher.basis.T.astype(float)
    quick, errors = sketcher.quick(*sketcher.along(frames))
    off = np.linalg.norm(quick - sketcher.exact(frames), axis=1)
    assert np.all(off <= errors)
    assert np.all(errors < 1e-5 * np.linalg.norm(frames - sketcher.mean, axis=1))


@pytest.mark.parametrize("sizes", [(6, 12), (12, 6)])
def test_directions_of_their_own_give_bounds_too(sizes):
    """Sketches made at different times need not share their directions."""
    queries, trajectories = data(3)
    starts = zip((0, 9), sizes, strict=True)
    alone = [Sketcher.fit(np.concatenate(trajectories[i:]), size=size) for i, size in starts]
    assert not alone[0].begins(alone[1])
    longest = max(trajectories, key=len)
    ends = np.array([0, len(longest)])
    with ThreadPoolExecutor(2) as pool:
        for sketcher, bound in zip(
            alone, SketchFilter.ladder(queries, alone, "strap", pool), strict=True
        ):
            rows, errors = sketcher(longest)
            wanted = np.ones((len(queries), 1), np.bool_)
            lows = bound.bounds(rows, ends, errors.max(keepdims=True), wanted)[:, 0]
            costs = [dtw.best_match(query, longest).cost for query in queries]
            assert (lows <= costs).all()
            assert (lows[1:] > 0).all()


@pytest.mark.parametrize("kind", ["too large for float16", "queries of no ordinary size"])
def test_what_can_not_be_bounded_is_looked_at(kind):
    queries, trajectories = data(6, np.float64)
    if kind == "too large for float16":
        trajectories[7] = trajectories[7] * 1e6
        queries[1] = trajectories[7][:4].copy()
    else:
        queries = [query * 1e-30 for query in queries]
    found = dtw.search_blocks(
        queries, iter(()), k=3, fetch=trajectories.__getitem__, sketched=[sketched(trajectories)]
    )
    expected = dtw.search(queries, trajectories, k=3, backend="reference")
    for a, b in zip(found, expected, strict=True):
        assert np.array_equal(a.trajectory, b.trajectory)


def test_stores_with_sketches_of_different_lengths():
    queries, trajectories = data(8, np.float32)
    half = len(trajectories) // 2
    parts = []
    for first, own, sizes in (
        (0, trajectories[:half], (6,)),
        (half, trajectories[half:], (4, 8, 12)),
    ):
        alone = sketched(own, sizes)
        parts.append(
            Sketched(
                alone.sketcher,
                [dtw.Block(b.frames, b.offsets, b.ids + first) for b in alone.blocks],
                lambda index, alone=alone, first=first: alone.error(index - first),
                [
                    Finer(f.sketcher, lambda index, f=f, first=first: f.fetch(index - first))
                    for f in alone.finer
                ],
            )
        )
    found = dtw.search_blocks(
        queries, iter(()), k=4, fetch=trajectories.__getitem__, sketched=parts
    )
    expected = dtw.search(queries, trajectories, k=4, backend="reference")
    for a, b in zip(found, expected, strict=True):
        assert np.array_equal(a.trajectory, b.trajectory)
        assert np.array_equal(a.start, b.start)


def test_most_is_ruled_out_where_data_lies_near_a_few_directions():
    queries, trajectories = data(0)
    tally = dtw.Tally()
    dtw.search_blocks(
        queries,
        iter(()),
        k=1,
        fetch=trajectories.__getitem__,
        sketched=[sketched(trajectories)],
        tally=tally,
    )
    assert tally.by_sketches > 0.7 * tally.pairs


def test_numbers_that_are_not_finite_are_named_with_sketches_too(tmp_path: Path):
    queries, trajectories = data(1)
    sketches = sketched(trajectories)
    trajectories[4] = trajectories[4].copy()
    trajectories[4][2, 3] = np.nan
    with pytest.raises(StrapError, match="trajectory 4, frame 2, dimension 3 is nan"):
        dtw.search_blocks(
            queries, iter(()), k=2, fetch=trajectories.__getitem__, sketched=[sketches]
        )


def test_where_sketches_leave_much_the_rest_is_bounded_together():
    rng = np.random.default_rng(5)
    trajectories = [rng.standard_normal((40, 64)).astype(np.float32) for _ in range(40)]
    queries = [rng.standard_normal((9, 64)).astype(np.float32) for _ in range(3)]
    tally = dtw.Tally()
    found = dtw.search_blocks(
        queries,
        iter(()),
        k=2,
        fetch=trajectories.__getitem__,
        sketched=[sketched(trajectories, (4,))],
        tally=tally,
    )
    expected = dtw.search(queries, trajectories, k=2, backend="reference")
    for a, b in zip(found, expected, strict=True):
        assert np.array_equal(a.trajectory, b.trajectory)
        assert np.array_equal(a.cost, b.cost)
    assert tally.by_bounds > tally.by_sketches
    assert tally.by_sketches + tally.by_bounds + tally.evaluated == tally.pairs == 120


@pytest.fixture
def store(tmp_path: Path):
    _, trajectories = data(1)
    arrays = {f"t{i}": own for i, own in enumerate(trajectories)}
    return make_store(tmp_path / "store", arrays, dtype="float16", per_shard=12)


@pytest.mark.parametrize("has_tiles", [False, True])
@pytest.mark.parametrize("is_small", [False, True])
def test_a_store_with_sketches_gives_the_same_matches(store, monkeypatch, has_tiles, is_small):
    monkeypatch.setattr(halves, "usable", lambda dim: has_tiles)
    monkeypatch.setattr(corpus, "SMALL_BYTES", store.nbytes if is_small else 0)
    queries, _ = data(1)
    plain = search_stores(queries, [store], k=5, backend="cpu")
    sketches = sketch_store(store, sizes=(8, 12))
    assert [own.missing for own in sketches] == [[], []]
    tally = dtw.Tally()
    found = search_stores(queries, [store], k=5, backend="cpu", tally=tally)
    assert found == plain
    assert (tally.by_sketches > 0) != (has_tiles and is_small)


def test_replaced_trajectories_are_left_out_of_sketches(store):
    """They lie between others in their shard: what follows must not slip."""
    queries, trajectories = data(1)
    new = {"t4": trajectories[20][:30], "t7": trajectories[4]}
    store = make_store(store.path, new, dtype="float16")
    assert [len(run) for run in store.live_runs(next(iter(store.shards.values())))] == [4, 2, 4]
    plain = search_stores(queries, [store], k=5, backend="cpu")
    sketch_store(store, sizes=(4, 8, 12))
    assert search_stores(queries, [store], k=5, backend="cpu") == plain
    assert plain[0][0].trajectory_id == "t7"


def test_shorter_sketches_use_the_first_directions_of_longer_ones(store):
    short, long = sketch_store(store, sizes=(4, 10))
    assert short.sketcher.begins(long.sketcher)
    assert not long.sketcher.begins(short.sketcher)


def test_sketches_of_other_rows_are_not_used(store):
    (sketches,) = sketch_store(store, sizes=(8,))
    note = sorted(sketches.folder.glob("*.json"))[0]
    note.write_text('{"version": 1, "rows": "others"}')
    (opened,) = open_sketches(store)
    assert len(opened.missing) == 12
    assert sketch_store(store, sizes=(8,))[0].missing == []


def test_other_directions_are_noticed(store):
    before = sketch_store(store)[0]
    path = before.folder / "mean.npy"
    moved = before.sketcher.mean + 1
    path.unlink()
    np.save(path, moved)
    assert np.array_equal(open_sketches(store)[0].sketcher.mean, moved)


def test_sizes_that_make_no_sense(store):
    with pytest.raises(StrapError, match="size is 99: it must be at least 2 and at most 24"):
        sketch_store(store, sizes=(8, 99))


def test_the_command(store, capsys):
    assert main(["store", "sketch", str(store.path), "--sizes", "8"]) == 0
    assert "30 trajectories, 33 % of their vectors" in capsys.readouterr().out
