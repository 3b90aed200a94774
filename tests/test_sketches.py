"""Sketches rule out what cannot win, and nothing else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.dtw_problems import DTYPES, all_same, laid_end_to_end, steps, tunings
from tests.stores import make_store

import strap.dtw as dtw
from strap.cli import main
from strap.dtw.sketches.bounds import prepare_bounds
from strap.dtw.sketches.sketcher import SketchBlock, Sketcher, Sketches
from strap.dtw.steps import step_set
from strap.errors import StrapError
from strap.search import SearchOptions, search_corpus, search_stores
from strap.search.corpus import Corpus
from strap.store.sketches import SketchKind, open_sketches, sketch_store, usual_kinds


def curved(rng: np.random.Generator, length: int, dim: int):
    """A smooth walk near a few directions, as embeddings are."""
    walk = np.cumsum(rng.standard_normal((length, 6)), axis=0)
    spread = np.random.default_rng(7).standard_normal((6, dim))
    return walk @ spread + 0.3 * rng.standard_normal((length, dim)) + 20


@st.composite
def walks(draw, *, trajectories=8, frames=24, query_frames=11, dim=24):
    """Queries and trajectories near a few directions; one query is a part of a trajectory.

    Noise shrinks away, then the moves from frame to frame, then lengths.
    """
    dtype, noise = draw(st.sampled_from(DTYPES)), draw(st.sampled_from([0.0, 0.3]))
    rng = np.random.default_rng(0)
    directions = rng.standard_normal((6, dim))

    def walk(longest: int):
        shape = draw(st.integers(1, longest)), len(directions)
        moves = draw(hnp.arrays(np.int64, shape, elements=st.integers(-3, 3)))
        frames = np.cumsum(moves, axis=0) @ directions + 20
        return (frames + noise * rng.standard_normal(frames.shape)).astype(dtype)

    searched = [walk(frames) for _ in range(draw(st.integers(1, trajectories)))]
    queries = [walk(query_frames) for _ in range(draw(st.integers(1, 2)))]
    return [searched[-1][: draw(st.integers(1, 4))].copy(), *queries], searched


@st.composite
def paths(draw):
    """A trajectory, a query, and the frame of the trajectory that each query frame meets."""
    n_query, n_frames = draw(st.integers(1, 30)), draw(st.integers(1, 40))
    elements = st.floats(-4, 4, width=16, allow_subnormal=False)
    both = draw(hnp.arrays(np.float64, (n_frames + n_query, 10), elements=elements))
    moves = draw(hnp.arrays(np.int64, n_query, elements=st.integers(1, 2)))
    first = draw(st.integers(0, n_frames - 1))
    return both[:n_frames], both[n_frames:], first + np.cumsum(moves) - moves[0]


def curved_path(seed: int, n_query: int, n_frames: int):
    """As `paths` draws them, near a few directions."""
    rng = np.random.default_rng(seed)
    trajectory, query = curved(rng, n_frames, 10), curved(rng, n_query, 10)
    return trajectory, query, np.cumsum([rng.integers(n_frames), *rng.integers(1, 3, n_query - 1)])


def data(seed: int, dtype: type = np.float16, dim: int = 24):
    rng = np.random.default_rng(seed)
    trajectories = [curved(rng, int(rng.integers(5, 40)), dim).astype(dtype) for _ in range(30)]
    queries = [curved(rng, int(rng.integers(2, 12)), dim).astype(dtype) for _ in range(3)]
    queries[0] = trajectories[4][:4].copy()
    return queries, trajectories


PLAIN = ((8, 1), (16, 1))
COARSE = ((5, 4), (10, 2), (16, 1))


def sketched(trajectories, kinds=PLAIN) -> list[Sketches]:
    """As a store has them: the directions of short sketches are the first of long ones."""
    longest = Sketcher.fit(np.concatenate(trajectories), size=kinds[-1][0])
    return [sketches_of(longest.shorter(*kind), trajectories) for kind in kinds]


def sketches_of(sketcher: Sketcher, trajectories, first: int = 0) -> Sketches:
    made = [sketcher(one) for one in trajectories]
    blocks = [
        SketchBlock(rows, scales, np.array([0, len(rows)]), np.array([first + i]))
        for i, (rows, scales) in enumerate(made)
    ]
    return Sketches(sketcher, lambda: blocks)


def one_block(sketches: Sketches) -> SketchBlock:
    blocks = list(sketches.blocks())
    offsets = np.cumsum([0, *(len(block.integers) for block in blocks)])
    integers, scales, ids = (
        np.concatenate([getattr(block, part) for block in blocks])
        for part in ("integers", "scales", "ids")
    )
    return SketchBlock(integers, scales, offsets, ids)


def find(queries, trajectories, sketches, tuning=None, **options) -> dtw.SearchResult:
    """With sketches nothing is streamed."""
    library = dtw.Library(
        lambda _: iter(()), trajectories.__getitem__, "trajectory {}".format, sketches
    )
    exclude = options.pop("exclude", None)
    return dtw.search_library(
        queries, library, SearchOptions(backend="cpu", **options), exclude, tuning
    )


@settings(max_examples=30, deadline=None)
@given(problem=walks(), steps=steps, every=st.integers(1, 5))
def test_bounds_never_exceed_costs(problem, steps, every):
    queries, trajectories = problem
    every = every if steps == "strap" else 1
    kinds = sketched(trajectories, ((8, every), (16, 1)))
    found = [
        [dtw.best_match(q, t, steps=steps, backend="cpu") for t in trajectories] for q in queries
    ]
    costs = np.array([[np.inf if m is None else m.cost for m in row] for row in found])
    sketchers = [kind.sketcher for kind in kinds]
    with ThreadPoolExecutor(1) as pool:
        both = prepare_bounds(queries, sketchers, step_set(steps), pool)
    for kind, bounds in zip(kinds, both, strict=True):
        block, positions = one_block(kind), np.arange(len(trajectories))
        lower = bounds.bound_pairs(block, positions, np.ones(costs.shape, np.bool_))
        assert (lower <= costs).all()
        wanted = np.zeros(costs.shape, np.bool_)
        wanted[::2, ::2] = True
        some = bounds.bound_pairs(block, positions, wanted)
        assert np.array_equal(some, np.where(wanted, lower, 0))  # each pair by itself


@settings(max_examples=60, deadline=None)
@given(path=paths(), every=st.integers(2, 5))
@example(path=curved_path(351285, 12, 30), every=3)
@example(path=curved_path(1, 30, 40), every=2)
@example(path=curved_path(2, 30, 40), every=5)
def test_a_sketch_stands_for_every_way_through_its_block(path, every):
    """Any path at all costs at least what means and balls say of its groups of frames."""
    trajectory, query, places = path
    rows, length = len(trajectory), len(query)
    sketcher = Sketcher.fit(np.concatenate([trajectory, query]), size=6, every=every)
    numbers, scales = sketcher(trajectory)
    assert len(numbers) == rows // every
    centres = numbers * scales[:, :1].astype(float)
    np.testing.assert_allclose((centres**2).sum(axis=1), scales[:, 2], rtol=1e-6)
    assert ((centres**2).sum(axis=1) >= scales[:, 2]).all()
    exact, met = sketcher.exact(query), sketcher.exact(trajectory)[np.minimum(places, rows - 1)]
    for first in range(0, length - every + 1, every):
        group = slice(first, first + every)
        if places[group][-1] < rows:
            block = places[first] // every
            cost = np.linalg.norm(exact[group] - met[group], axis=1).sum()
            away = np.linalg.norm(exact[group].mean(axis=0) - centres[block])
            assert cost >= every * (away - scales[block, 1]) * (1 - 1e-12)
            if first + every < length:
                assert places[first + every] // every - block in (1, 2)


@pytest.mark.parametrize("value", [1e25, np.inf, np.nan])
def test_a_sketch_that_can_not_be_integers_says_nothing(value):
    """Integers must stay so short that their products fit in 32 bits."""
    rng = np.random.default_rng(0)
    sketcher = Sketcher.fit(rng.standard_normal((50, 30)), size=20)
    frames = np.full((3, 30), 3e4) @ sketcher.basis[:, :1].astype(float) * sketcher.basis[:, 0]
    frames = frames + sketcher.basis.sum(axis=1) * 3e4
    frames[1] += value * sketcher.basis[:, 3].astype(float)
    with np.errstate(invalid="ignore"):
        numbers, scales = sketcher(frames)
    assert ((numbers.astype(float) ** 2).sum(axis=1) < 2**31).all()
    assert (numbers[[0, 2]] != 0).any(axis=1).all()
    assert not numbers[1].any()
    assert scales[1, 1] > 1e24


def test_balls_are_small():
    """On a line the centre is the middle of the ways, and the radius half of what they span."""
    line = np.arange(40.0)[:, None] * [[0.6, 0.8, 0.0]]
    numbers, scales = Sketcher.fit(line, size=2, every=4)(line)
    middle = (numbers * scales[:, :1])[3, 0]
    means = [np.mean([12, 13, 14, 15]), np.mean([15, 17, 19, 21])]  # the first way and the last
    assert abs(middle) == pytest.approx(abs(np.mean(means) - 19.5), abs=0.15)
    assert scales[3, 1] == pytest.approx((means[1] - means[0]) / 2, abs=0.15)


@settings(max_examples=55, deadline=None)
@given(
    problem=walks(),
    steps=steps,
    tuning=tunings,
    k=st.integers(1, 8),
    kinds=st.sampled_from([((5, 1),), ((5, 3),), ((4, 1), (12, 1)), COARSE]),
)
def test_the_answer_is_the_same(problem, steps, tuning, k, kinds):
    queries, trajectories = problem
    library = dtw.Library(
        dtw.stream_blocks([laid_end_to_end(trajectories)]),
        trajectories.__getitem__,
        str,
        [sketched(trajectories, kinds)],
    )
    exclude = [{1}, *([set()] * (len(queries) - 1))]
    options = SearchOptions(k, steps, backend="cpu")
    found = dtw.search_library(queries, library, options, exclude, tuning)
    expected = dtw.search(
        queries, trajectories, k=k, steps=steps, exclude=exclude, backend="reference"
    )
    assert all_same(found.tops, expected)
    for counts in found.statistics:
        assert counts.by_sketches + counts.by_bounds + counts.evaluated == counts.pairs
        assert min(counts.by_sketches, counts.by_bounds, counts.evaluated) >= 0


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("inside", [False, True])
def test_quick_sketches_know_their_errors(inside, offset):
    rng = np.random.default_rng(2)
    frames = rng.standard_normal((200, 48)) + offset
    sketcher = Sketcher.fit(frames[:150], size=12)
    if inside:  # nothing is left over: where squares that cancel are least exact
        frames = sketcher.mean + rng.standard_normal((200, 11)) @ sketcher.basis.T.astype(float)
    quick, errors = sketcher.finish(*sketcher.project(frames))
    off = np.linalg.norm(quick - sketcher.exact(frames), axis=1)
    assert np.all(off <= errors)
    share = 1e-3 if inside else 1e-5
    assert np.all(errors < share * np.linalg.norm(frames - sketcher.mean, axis=1))


@pytest.mark.parametrize("sizes", [(6, 12), (12, 6)])
def test_directions_of_their_own_give_bounds_too(sizes):
    """Sketches made at different times need not share their directions."""
    queries, trajectories = data(3)
    starts = zip((0, 9), sizes, strict=True)
    sketchers = [Sketcher.fit(np.concatenate(trajectories[i:]), size=size) for i, size in starts]
    assert not sketchers[0].shares_directions(sketchers[1])
    longest = max(trajectories, key=len)
    costs = [dtw.best_match(query, longest, backend="cpu").cost for query in queries]
    with ThreadPoolExecutor(2) as pool:
        both = prepare_bounds(queries, sketchers, step_set("strap"), pool)
    for sketcher, bounds in zip(sketchers, both, strict=True):
        block = one_block(sketches_of(sketcher, [longest]))
        wanted = np.ones((len(queries), 1), np.bool_)
        lower = bounds.bound_pairs(block, np.array([0]), wanted)[:, 0]
        assert (lower <= costs).all()
        assert (lower[1:] > 0).all()


@pytest.mark.parametrize("kind", ["far too large", "queries of no ordinary size"])
def test_what_can_not_be_bounded_is_looked_at(kind):
    queries, trajectories = data(6, np.float64)
    if kind == "far too large":
        trajectories[7] = trajectories[7] * 1e40
        queries[1] = trajectories[7][:4].copy()
    else:
        queries = [query * 1e-30 for query in queries]
    found = find(queries, trajectories, [sketched(trajectories)], k=3)
    expected = dtw.search(queries, trajectories, k=3, backend="reference")
    assert all_same(found.tops, expected)


def test_stores_with_sketches_of_different_lengths():
    queries, trajectories = data(8, np.float32)
    half = len(trajectories) // 2
    parts = []
    for first, some, kinds in (
        (0, trajectories[:half], ((6, 1),)),
        (half, trajectories[half:], ((4, 4), (8, 2), (12, 1))),
    ):
        longest = Sketcher.fit(np.concatenate(some), size=kinds[-1][0])
        parts.append([sketches_of(longest.shorter(*kind), some, first) for kind in kinds])
    found = find(queries, trajectories, parts, k=4)
    assert all_same(found.tops, dtw.search(queries, trajectories, k=4, backend="reference"))


def test_most_is_ruled_out_where_data_lies_near_a_few_directions():
    queries, trajectories = data(0)
    counts = find(queries, trajectories, [sketched(trajectories)], k=1).total
    assert counts.by_sketches > 0.7 * counts.pairs


def test_numbers_that_are_not_finite_are_named_with_sketches_too():
    queries, trajectories = data(1)
    sketches = sketched(trajectories)
    trajectories[4] = trajectories[4].copy()
    trajectories[4][2, 3] = np.nan
    with pytest.raises(StrapError, match="trajectory 4, frame 2, dimension 3 is nan"):
        find(queries, trajectories, [sketches], k=2)


def test_where_sketches_leave_much_the_rest_is_bounded_together():
    rng = np.random.default_rng(5)
    trajectories = [rng.standard_normal((40, 64)).astype(np.float32) for _ in range(40)]
    queries = [rng.standard_normal((9, 64)).astype(np.float32) for _ in range(3)]
    found = find(queries, trajectories, [sketched(trajectories, ((4, 1),))], k=2)
    assert all_same(found.tops, dtw.search(queries, trajectories, k=2, backend="reference"))
    counts = found.total
    assert counts.by_bounds > counts.by_sketches
    assert counts.by_sketches + counts.by_bounds + counts.evaluated == counts.pairs == 120


@pytest.fixture
def store(tmp_path: Path):
    _, trajectories = data(1)
    arrays = {f"t{i}": frames for i, frames in enumerate(trajectories)}
    return make_store(tmp_path / "store", arrays, dtype="float16", per_shard=12)


@pytest.mark.parametrize("is_small", [False, True])
@pytest.mark.parametrize("k", [1, 5])
def test_a_store_with_sketches_gives_the_same_matches(store, is_small, k):
    corpus = Corpus([store], small_bytes=store.nbytes if is_small else 0)
    options = SearchOptions(k, backend="cpu")
    queries, _ = data(1)
    plain = search_corpus(queries, corpus, options, None)
    sketches = sketch_store(store, kinds=[(8, 1), (12, 1)])
    assert [kind.missing for kind in sketches] == [[], []]
    found = search_corpus(queries, corpus, options, None)
    assert all_same(found.tops, plain.tops)
    assert (found.total.by_sketches > 0) != (is_small and k * 8 > 30)
    unsketched = Corpus([store], small_bytes=0, uses_sketches=False)
    assert search_corpus(queries, unsketched, options, None).total.by_sketches == 0


def test_replaced_trajectories_are_left_out_of_sketches(store):
    """They lie between others in their shard: what follows must not slip."""
    queries, trajectories = data(1)
    new = {"t4": trajectories[20][:30], "t7": trajectories[4]}
    store = make_store(store.path, new, dtype="float16")
    assert [len(run) for run in store.current_spans(next(iter(store.shards.values())))] == [4, 2, 4]
    options = SearchOptions(5, backend="cpu")
    plain = search_stores(queries, [store], options).matches
    sketch_store(store, kinds=[(4, 4), (8, 2), (12, 1)])
    assert search_stores(queries, [store], options).matches == plain
    assert plain[0][0].trajectory_id == "t7"


def test_shorter_sketches_use_the_first_directions_of_longer_ones(store):
    short, long = sketch_store(store, kinds=[(4, 1), (10, 1)])
    assert short.sketcher.shares_directions(long.sketcher)
    assert not long.sketcher.shares_directions(short.sketcher)


def test_sketches_of_other_rows_are_not_used(store):
    (sketches,) = sketch_store(store, kinds=[(8, 1)])
    note = sorted(sketches.folder.glob("*.json"))[0]
    note.write_text('{"version": 2, "rows": "others"}')
    (opened,) = open_sketches(store)
    assert len(opened.missing) == 12
    assert sketch_store(store, kinds=[(8, 1)])[0].missing == []


def test_other_directions_are_noticed(store):
    before = sketch_store(store)[0]
    assert open_sketches(store)[0] is before  # kept as long as its files stay
    path = before.folder / "mean.npy"
    moved = before.sketcher.mean + 1
    path.unlink()
    np.save(path, moved)
    assert np.array_equal(open_sketches(store)[0].sketcher.mean, moved)


def test_sizes_that_make_no_sense(store):
    with pytest.raises(StrapError, match="size is 99: it must be at least 2 and at most 24"):
        sketch_store(store, kinds=[(8, 1), (99, 1)])


def test_what_a_sketch_can_not_stand_for(store):
    with pytest.raises(StrapError, match="cannot summarise 9 frames: give 1 to 6"):
        sketch_store(store, kinds=[(8, 9)])


@pytest.mark.parametrize("dim", [2, 3, 24, 384, 768, 1280])
def test_usual_kinds_suit_all_dimensions(dim):
    kinds = usual_kinds(dim)
    assert all(2 <= kind.size <= dim for kind in kinds)
    assert [kind.every for kind in kinds] == [4, 2, 1]
    if dim == 1280:
        assert [str(kind) for kind in kinds] == ["64x4", "256x2", "512x1"]


def test_the_command(store, capsys):
    assert main(["store", "sketch", str(store.path), "--sizes", "8", "6x3"]) == 0
    shown = capsys.readouterr().out
    assert "30 trajectories, 33 % of their vectors" in shown
    assert "30 trajectories, 8 % of their vectors" in shown
    assert main(["store", "sketch", str(store.path), "--sizes", "8by2"]) == 2
    assert "'8by2' is not a kind of sketch" in capsys.readouterr().err
    assert SketchKind.parse("64x4") == (64, 4)
