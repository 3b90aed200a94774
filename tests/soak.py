"""Random problems for as long as one likes: every way to search must give the reference's answer.

    make soak                          10 minutes
    python tests/soak.py --minutes 1 [--seed 7] [--gpu]

Random, planted, tied and nearly tied data, all step sets and metrics, all dtypes; the CPU backend
over lists, over blocks cut anywhere in any order, with sketches, with other tile sizes, and with
`--gpu` the GPU backend, streamed and resident; the same again with several matches a trajectory and
limits of length. The first disagreement is printed with its seed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

import strap.dtw as dtw
from strap.dtw import bounds, cpu, halves, halving
from strap.dtw.sketches import Sketcher, Sketches


def problem(seed: int):
    """Queries, trajectories and options, all drawn from the seed."""
    rng = np.random.default_rng(seed)
    dim, dtype = int(rng.integers(1, 40)), rng.choice([np.float16, np.float32, np.float64])
    offset = rng.choice([0.0, 3.0, 100.0]) * rng.standard_normal(dim) + 0.01
    spread = rng.choice([1.0, 1e-3, 30.0])

    def some(longest: int):
        length = int(rng.integers(1, longest))
        return (rng.standard_normal((length, dim)) * spread + offset).astype(dtype)

    trajectories = [some(60) for _ in range(int(rng.integers(1, 40)))]
    queries = [some(12) for _ in range(int(rng.integers(1, 5)))]
    for query in queries:  # planted, exactly and nearly; copies for ties
        home = trajectories[int(rng.integers(len(trajectories)))]
        if len(home) >= len(query):
            first = int(rng.integers(len(home) - len(query) + 1))
            home[first : first + len(query)] = query
    kind = rng.integers(3)
    if kind == 1:
        trajectories += [own.copy() for own in trajectories[:5]]
    if kind == 2:
        tiny = spread * float(rng.choice([1e-7, 1e-5, 1e-3]))
        base = trajectories[0].astype(np.float64)
        noisy = [base + tiny * rng.standard_normal(base.shape) for _ in range(10)]
        trajectories += [own.astype(dtype) for own in noisy]
    options = {
        "k": int(rng.integers(1, 15)),
        "steps": str(rng.choice(list(dtw.STEPS))),
        "metric": str(rng.choice(dtw.METRICS)),
        "exclude": [set(rng.integers(0, len(trajectories), 3).tolist()) for _ in queries],
    }
    return queries, trajectories, options


def blocks(trajectories, rng: np.random.Generator) -> Iterator[dtw.Block]:
    """The trajectories in blocks cut anywhere, in any order."""
    order = rng.permutation(len(trajectories))
    cuts = np.flatnonzero(rng.random(len(order)) < 0.3)
    for part in np.split(order, cuts):
        if len(part):
            own = [trajectories[i] for i in part]
            offsets = np.cumsum([0, *map(len, own)])
            yield dtw.Block(np.concatenate(own), offsets, part)


def sketched(trajectories, rng: np.random.Generator) -> list[list[Sketches]]:
    """Sketches of everything, of some kinds."""
    frames = np.concatenate(trajectories)
    kinds = []
    for every in rng.permutation([1, 2, 3, 4])[: rng.integers(1, 4)].tolist():
        size = int(rng.integers(2, max(3, frames.shape[1] + 1)))
        sketcher = Sketcher.fit(frames, size=min(size, frames.shape[1]), every=every)
        kinds.append(_sketches(sketcher, trajectories))
    return [kinds]


def _sketches(sketcher: Sketcher, trajectories) -> Sketches:
    made = [sketcher(own) for own in trajectories]
    parts = [
        (dtw.Block(rows, np.array([0, len(rows)]), np.array([i])), scales)
        for i, (rows, scales) in enumerate(made)
    ]
    return Sketches(sketcher, lambda: parts)


@contextmanager
def with_halves(numbers: int, split_from: int = 1) -> Iterator[None]:
    """As on a processor that multiplies such numbers, however small the search."""
    kept = halves.pays, halves.by_integers, halves.fastest, cpu.SPLIT_FROM, cpu.MANY
    halves.pays, halves.fastest = lambda *_: True, lambda: numbers
    halves.by_integers = lambda _: numbers == halving.WHOLE
    cpu.SPLIT_FROM = split_from
    if numbers == halving.BFLOAT:
        cpu.MANY = 0  # else what sketches leave is looked at without them
    try:
        yield
    finally:
        halves.pays, halves.by_integers, halves.fastest, cpu.SPLIT_FROM, cpu.MANY = kept


def answers(seed: int, *, gpu: bool) -> Iterator[tuple[str, list[dtw.TopK]]]:
    """What every way to search gives for a random problem."""
    return every_way(*problem(seed), seed, gpu=gpu)


def every_way(
    queries, trajectories, options, seed: int, *, gpu: bool
) -> Iterator[tuple[str, list[dtw.TopK]]]:
    """What every way to search gives, the reference first; the seed draws how things are cut."""
    rng = np.random.default_rng(seed + 1)
    fetch = trajectories.__getitem__
    yield "reference", dtw.search(queries, trajectories, backend="reference", **options)
    filters = bounds.Filter, halves.HalfFilter
    kept = [own.tile_frames for own in filters]
    for own in filters:
        own.tile_frames = int(rng.integers(1, 100))
    cpu.PIECE_FRAMES = int(rng.integers(1, 500))
    yield "cpu", dtw.search(queries, trajectories, backend="cpu", **options)
    with with_halves(halving.WHOLE):
        yield "integers", dtw.search(queries, trajectories, backend="cpu", **options)
    with with_halves(halving.BFLOAT, split_from=1000):
        yield "halves", dtw.search(queries, trajectories, backend="cpu", **options)
    with with_halves(halving.BFLOAT):
        yield "halves, then split", dtw.search(queries, trajectories, backend="cpu", **options)
    cut = blocks(trajectories, rng)
    yield "blocks", dtw.search_blocks(queries, cut, fetch=fetch, backend="cpu", **options)
    for own, size in zip(filters, kept, strict=True):
        own.tile_frames = size
    if trajectories[0].shape[1] > 1:
        short = sketched(trajectories, rng)
        cut = list(blocks(trajectories, rng))
        given = {"fetch": fetch, "backend": "cpu", "sketched": short, **options}
        yield "sketches", dtw.search_blocks(queries, cut, **given)
        with with_halves(halving.BFLOAT):
            yield "sketches, then halves", dtw.search_blocks(queries, cut, **given)
        with with_halves(halving.WHOLE):
            yield "sketches, then integers", dtw.search_blocks(queries, cut, **given)
    if gpu:
        yield "gpu", dtw.search(queries, trajectories, backend="gpu", **options)
        library = dtw.Resident(trajectories, metric=options["metric"], limit=(seed % 2) * 10**9)
        asked = {name: options[name] for name in ("k", "steps", "exclude")}
        yield "resident", library.search(queries, **asked)


def wished(seed: int, *, gpu: bool) -> Iterator[tuple[str, list[dtw.TopK]]]:
    """The same with several matches a trajectory, or limits of length, or both."""
    queries, trajectories, options = problem(seed)
    rng = np.random.default_rng(seed + 2)
    options["per_trajectory"] = int(rng.integers(1, 4))
    if options["per_trajectory"] == 1 or rng.random() < 0.5:
        least = [int(rng.integers(1, 2 * len(query) + 1)) for query in queries]
        options["lengths"] = [(one, one + int(rng.integers(0, 9))) for one in least]
    for backend in ("reference", "cpu", *(["gpu"] if gpu else [])):
        found = dtw.search(queries, trajectories, backend=backend, **options)
        yield f"{backend}, matches and limits", found


def same(one: list[dtw.TopK], other: list[dtw.TopK]) -> bool:
    """The same matches; costs to the last bit."""
    return all(
        np.array_equal(getattr(a, part), getattr(b, part))
        for a, b in zip(one, other, strict=True)
        for part in ("trajectory", "start", "stop", "cost")
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--gpu", action="store_true")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else time.time_ns() % 2**32
    print(f"first seed {seed}", flush=True)
    end, problems, compared = time.monotonic() + 60 * given.minutes, 0, 0
    while time.monotonic() < end:
        for ways in (answers, wished):
            (_, expected), *others = ways(seed + problems, gpu=given.gpu)
            for name, found in others:
                compared += 1
                if not same(found, expected):
                    print(f"seed {seed + problems}: {name} differs from the reference")
                    return 1
        problems += 1
    print(f"{problems} problems, {compared} answers compared with the reference: all equal")
    return 0


if __name__ == "__main__":
    sys.exit(main())
