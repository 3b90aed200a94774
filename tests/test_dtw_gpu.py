"""The GPU backend's kernels, on a GPU where there is one, else through Triton's interpreter."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import strap.dtw as dtw
from strap.errors import StrapError

pytest.importorskip("torch")
pytest.importorskip("triton")
import torch

from strap.dtw.batching import Batch as Piece
from strap.dtw.gpu import devices
from strap.dtw.gpu.asked import Asked
from strap.dtw.gpu.bounds import Filter
from strap.dtw.gpu.frames import Space, as_tensor, load
from strap.dtw.gpu.overlap import Scratch
from strap.dtw.gpu.resident import Resident
from strap.dtw.gpu.search import Refinement

PLACE = devices.find_devices()[0]
pytestmark = pytest.mark.xdist_group("gpu")


def same(found: list[dtw.TopK], expected: list[dtw.TopK]) -> bool:
    return all(
        np.array_equal(getattr(a, field), getattr(b, field))
        for a, b in zip(found, expected, strict=True)
        for field in ("trajectory", "start", "stop", "cost")
    )


def data(dtype: type, dim: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    offset = 5 * rng.standard_normal(dim)

    def some(length: int):
        return (rng.standard_normal((length, dim)) + offset).astype(dtype)

    trajectories = [some(length) for length in (1, 9, 21, 14, 20, 17)]
    trajectories[3] = trajectories[2][:14].copy()
    queries = [some(length) for length in (1, 4, 7)]
    trajectories[4][3:7] = queries[1]
    return queries, trajectories


@pytest.mark.parametrize(
    ("steps", "metric", "dtype", "dim"),
    [
        ("strap", "l2", np.float16, 8),
        ("strap", "l2", np.float64, 5),
        ("strap", "cosine", np.float32, 8),
        ("fmp", "l2", np.float32, 8),
        ("classic", "l2", np.float16, 8),
        ("classic", "cosine", np.float16, 3),
    ],
)
def test_search_equals_the_reference(steps, metric, dtype, dim):
    queries, trajectories = data(dtype, dim)
    options = {"k": 3, "steps": steps, "metric": metric, "exclude": [{0}, set(), {5, 2}]}
    expected = dtw.search(queries, trajectories, backend="cpu", **options)
    assert same(dtw.search(queries, trajectories, backend="gpu", **options), expected)


@pytest.mark.parametrize(("limit", "count"), [(None, 1), (0, 2)])
def test_resident_trajectories(limit, count):
    queries, trajectories = data(np.float16, 8)
    library = Resident(trajectories, devices=[str(PLACE)] * count, limit=limit)
    size = sum(own.nbytes for own in trajectories)
    assert (library.on_device, library.on_host) == ((0, size) if limit == 0 else (size, 0))
    assert len(library) == len(trajectories)
    for _ in range(2):
        found = library.search(queries, k=4)
        assert same(found, dtw.search(queries, trajectories, k=4))


def test_kernels_are_launched_on_the_device_that_holds_the_frames(monkeypatch):
    """Triton launches on the current device, whatever device its arguments lie on."""
    current = threading.local()

    @contextlib.contextmanager
    def foreground(device):
        current.device = device
        yield
        current.device = None

    def checked(piece, frames, *options):
        assert current.device == frames.device
        return load(piece, frames, *options)

    monkeypatch.setattr("strap.dtw.gpu.resident.foreground", foreground)
    monkeypatch.setattr("strap.dtw.gpu.resident.load", checked)
    queries, trajectories = data(np.float16, 8)
    library = Resident(trajectories, devices=[str(PLACE)] * 2)
    assert same(library.search(queries, k=2), dtw.search(queries, trajectories, k=2))


def test_the_last_pieces_become_shorter(monkeypatch):
    queries, trajectories = data(np.float16, 8)
    monkeypatch.setattr("strap.dtw.gpu.resident.PIECE_BYTES", 2 * 8 * 10)
    library = Resident(trajectories, devices=[str(PLACE)])
    (card,) = library._cards
    counts = [len(piece.ids) for piece in card.here]
    assert sum(counts) == len(trajectories)
    assert len(counts) > 2
    assert counts[0] > counts[-1]
    assert same(library.search(queries, k=4), dtw.search(queries, trajectories, k=4))


@pytest.mark.parametrize(("offset", "is_moved"), [(0.1, False), (5.0, True)])
def test_frames_are_centered_where_that_makes_them_shorter(offset, is_moved):
    rng = np.random.default_rng(0)
    frames = (rng.standard_normal((40, 8)) + offset).astype(np.float16)
    assert Space.of(frames, "l2", rounded=False).mean.any() == is_moved


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_bounds_are_below_the_costs_and_near_them(dtype):
    queries, trajectories = data(dtype, 24, seed=1)
    queries[0][0] = 0  # a frame of zeros is a frame, not padding
    space = Space.of(np.concatenate(queries), "l2", rounded=dtype != np.float16)
    frames = as_tensor(np.concatenate(trajectories)).to(PLACE)
    piece = Piece(list(range(len(trajectories))), trajectories)
    loaded = load(piece, frames, space, "l2", Scratch(PLACE), str)
    lows = torch.empty(len(queries), len(trajectories), dtype=torch.float64, device=PLACE)
    Filter(queries, "strap", "l2", space, Asked.of(queries, PLACE)).bounds(loaded, lows)
    loaded.scratch.join()
    for q, query in enumerate(queries):
        for t, trajectory in enumerate(trajectories):
            match = dtw.best_match(query, trajectory)
            if match is None:
                assert lows[q, t] == torch.inf
            else:
                assert lows[q, t] <= match.cost
                assert lows[q, t] >= 0.995 * match.cost - 0.02


def test_near_ties_that_low_precision_can_not_tell_apart():
    rng = np.random.default_rng(3)
    base = rng.standard_normal((12, 16)).astype(np.float32)
    trajectories = [base + np.float32(1e-6) * rng.standard_normal(base.shape) for _ in range(5)]
    trajectories += [base.copy(), base.copy()]
    queries = [base[3:9], base[2:8] + np.float32(1e-7)]
    trajectories = [own.astype(np.float32) for own in trajectories]
    found = dtw.search(queries, trajectories, k=4, backend="gpu")
    assert same(found, dtw.search(queries, trajectories, k=4, backend="reference"))
    assert found[0].trajectory[:2].tolist() == [5, 6]
    assert found[0].cost[0] == 0


@pytest.mark.parametrize(("limit", "next_ones"), [(0, 0), (None, 0), (0, 5), (None, 64)])
def test_what_the_first_look_leaves_out_is_found_by_later_ones(limit, next_ones, monkeypatch):
    monkeypatch.setattr("strap.dtw.gpu.search.LEAST_MORE", 0)
    monkeypatch.setattr("strap.dtw.gpu.search.MORE", 0.0)
    monkeypatch.setattr("strap.dtw.gpu.search.NEXT", next_ones)
    looked = []
    rest = Refinement._rest
    monkeypatch.setattr(
        Refinement, "_rest", lambda self, seen: (looked.append(seen), rest(self, seen))
    )
    rng = np.random.default_rng(0)
    base = rng.standard_normal((10, 16))
    many = [(base + 1e-4 * rng.standard_normal(base.shape)).astype(np.float16) for _ in range(12)]
    queries = [many[7][3:7], many[3][2:8]]
    found = dtw.Resident(many, devices=[str(PLACE)], limit=limit).search(
        queries, k=3, exclude=[{7}, set()]
    )
    expected = dtw.search(queries, many, k=3, backend="reference", exclude=[{7}, set()])
    assert same(found, expected)
    assert bool(looked) == (next_ones < len(many))


def test_one_pair_and_queries_that_do_not_fit():
    queries, trajectories = data(np.float16, 8)
    expected = dtw.best_match(queries[1], trajectories[4])
    assert dtw.best_match(queries[1], trajectories[4], backend="gpu") == expected
    assert dtw.best_match(queries[2], trajectories[0], backend="gpu") is None


@pytest.mark.filterwarnings("error", "ignore:invalid value encountered in sqrt:RuntimeWarning")
def test_frames_that_are_read_only_are_taken_as_they_are():
    queries, trajectories = data(np.float16, 8)
    for own in trajectories:
        own.flags.writeable = False
    assert same(
        dtw.search(queries, trajectories, k=2, backend="gpu"),
        dtw.search(queries, trajectories, k=2, backend="reference"),
    )


def test_numbers_that_are_not_finite_are_named():
    queries, trajectories = data(np.float16, 8)
    trajectories[2][5, 3] = np.nan
    with pytest.raises(StrapError, match="trajectory 2, frame 5, dimension 3 is nan"):
        dtw.search(queries, trajectories, k=1, backend="gpu")


def test_the_interpreter_is_never_chosen_by_itself():
    if not devices.interpreted():
        pytest.skip("there is a GPU here")
    assert dtw.resolve_backend("auto").name == "cpu"
    assert dtw.resolve_backend("gpu").name == "gpu"


def test_what_is_missing_is_said(monkeypatch):
    monkeypatch.setattr(devices, "interpreted", lambda: False)
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
