"""Random problems for as long as one likes: every way to search must give the reference's answer.

    make soak                          10 minutes
    python tests/soak.py --minutes 1 [--seed 7] [--gpu]

Random, planted, tied and nearly tied data, all step sets and metrics, all dtypes; the CPU backend
over lists, over blocks cut anywhere in any order, with sketches, with tunings drawn at random, and
with `--gpu` the GPU backend, streamed and resident; the same again with several matches a
trajectory and limits of length. The first disagreement is printed with its seed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

import numpy as np

import strap.dtw as dtw
from strap.dtw.cpu.tuning import CpuTuning
from strap.dtw.sketches.sketcher import SketchBlock, Sketcher, Sketches


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
        trajectories += [one.copy() for one in trajectories[:5]]
    if kind == 2:
        tiny = spread * float(rng.choice([1e-7, 1e-5, 1e-3]))
        base = trajectories[0].astype(np.float64)
        noisy = [base + tiny * rng.standard_normal(base.shape) for _ in range(10)]
        trajectories += [one.astype(dtype) for one in noisy]
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
            chosen = [trajectories[i] for i in part]
            offsets = np.cumsum([0, *map(len, chosen)])
            yield dtw.Block(np.concatenate(chosen), offsets, part)


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
    made = [sketcher(one) for one in trajectories]
    parts = [
        SketchBlock(rows, scales, np.array([0, len(rows)]), np.array([i]))
        for i, (rows, scales) in enumerate(made)
    ]
    return Sketches(sketcher, lambda: parts)


def drawn_tuning(rng: np.random.Generator, *, use_int16: bool) -> CpuTuning:
    """As on processors that multiply such numbers fast, however small the search."""
    return CpuTuning(
        use_int16=use_int16,
        batch_frames=int(rng.integers(1, 500)),
        tile_frames=int(rng.integers(1, 100)),
        group_rows=int(rng.integers(1, 40)),
        round_size=int(rng.integers(1, 20)),
        batched_share=float(rng.choice([0.0, 0.3, 1.0])),
    )


def answers(seed: int, *, gpu: bool) -> Iterator[tuple[str, list[dtw.TopK]]]:
    """What every way to search gives for a random problem."""
    return every_way(*problem(seed), seed, gpu=gpu)


def every_way(
    queries, trajectories, options, seed: int, *, gpu: bool
) -> Iterator[tuple[str, list[dtw.TopK]]]:
    """What every way to search gives, the reference first; the seed draws how things are cut."""
    rng = np.random.default_rng(seed + 1)
    yield "reference", dtw.search(queries, trajectories, backend="reference", **options)
    yield "cpu", dtw.search(queries, trajectories, backend="cpu", **options)
    tunings = {
        "float32": drawn_tuning(rng, use_int16=False),
        "int16": drawn_tuning(rng, use_int16=True),
    }
    names = {name: value for name, value in options.items() if name != "exclude"}
    search = dtw.SearchOptions(backend="cpu", **names)
    has_sketches = trajectories[0].shape[1] > 1
    sketches = sketched(trajectories, rng) if has_sketches else ()
    for name, tuning in tunings.items():
        for kind, chosen in (("blocks", ()), *([("sketches", sketches)] if has_sketches else [])):
            stream = dtw.stream_blocks(list(blocks(trajectories, rng)))
            library = dtw.Library(stream, trajectories.__getitem__, str, chosen)
            found = dtw.search_library(queries, library, search, options["exclude"], tuning)
            yield f"{kind}, {name}", found.tops
    if gpu:
        yield "gpu", dtw.search(queries, trajectories, backend="gpu", **options)
        library = dtw.Resident(trajectories, metric=options["metric"], limit=(seed % 2) * 10**9)
        chosen = {name: options[name] for name in ("k", "steps", "exclude")}
        yield "resident", library.search(queries, **chosen)


def constrained(seed: int, *, gpu: bool) -> Iterator[tuple[str, list[dtw.TopK]]]:
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
        for ways in (answers, constrained):
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
