"""Exact top-k subsequence DTW on a GPU: the paper's benchmark, and what bounds it.

    python benchmarks/search/gpu.py [--trajectories 76000] [--parts page-locked …] [--out gpu.json]

76,000 trajectories of 250 frames, 768 dimensions, float16 (29 GB), 5 queries of 50 frames, random
numbers, on which nothing can be pruned. Measured in one run: the search with everything on the GPU
(wall clock, from arrays in to arrays out), what each kernel takes, the search from page-locked and
from ordinary memory against the rate of a bare copy, the bare product, our CPU backend on all of it
(which must find the same), and the authors' way, one pair at a time, on some of it, with BLAS on
all threads and on one: the faster counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch
import triton

import strap.dtw as dtw

sys.path.insert(0, str(Path(__file__).parent))
from cpu import DIM, QUERIES, QUERY, TRAJECTORY, authors_way, machine, pairwise

PAIRS = 400  # for the authors' way
PAUSE = 0.1  # seconds between searches
PARTS = ("steps", "page-locked", "ordinary", "peers")


def random_store(count: int) -> np.ndarray:
    """Frames [count·250 768] float16, made on the GPU."""
    frames = np.empty((count * TRAJECTORY, DIM), np.float16)
    torch.manual_seed(0)
    for first in range(0, len(frames), 2**19):
        part = frames[first : first + 2**19]
        torch.from_numpy(part).copy_(torch.randn(part.shape, device="cuda", dtype=torch.float16))
    return frames


def timed(work, rounds: int, pause: float = 0.0) -> list[float]:
    """Milliseconds of each round, wall clock; `pause` seconds between them."""
    work()
    found = []
    for _ in range(rounds):
        time.sleep(pause)
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        found.append(1e3 * (time.perf_counter() - began))
        if sum(found) > 2e4:
            break
    return found


def kernels(work) -> dict[str, float]:
    """Milliseconds by kernel of one round."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
        torch.cuda.synchronize()
    rows = [(e.key[:60], e.device_time_total / 1e3) for e in profile.key_averages()]
    return dict(sorted(rows, key=lambda row: -row[1])[:10])


def product(frames: torch.Tensor, rounds: int) -> list[float]:
    """The bare product of all frames with 256 rows, by the vendor's library."""
    rows = torch.randn(256, DIM, device="cuda", dtype=torch.float16)
    out = torch.empty(2**20, 256, device="cuda", dtype=torch.float16)

    def work():
        for first in range(0, len(frames), 2**20):
            part = frames[first : first + 2**20]
            torch.mm(part, rows.T, out=out[: len(part)])

    return timed(work, rounds)


def copy_rate(rounds: int = 5) -> float:
    """GB/s from page-locked memory to the GPU."""
    host = torch.empty(2**30, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    return 2**30 / 1e6 / statistics.median(timed(lambda: there.copy_(host), rounds))


def largest_error(frames: np.ndarray) -> float:
    """The largest error of a product on tensor cores, as a share of what the proof allows."""
    a = torch.from_numpy(frames[:512]).cuda().abs()
    b = torch.from_numpy(frames[512 : 512 + 4096]).cuda().abs()
    exact = a.double() @ b.double().T
    got = torch.mm(a, b.T, out_dtype=torch.float32).double()
    allowed = (DIM + 16) * 2.0**-22 * a.double().norm(dim=1)[:, None] * b.double().norm(dim=1)
    return float(((got - exact).abs() / allowed).max())


def same(one: list[dtw.TopK], other: list[dtw.TopK]) -> bool:
    """Whether two answers are equal to the last bit."""
    return all(
        np.array_equal(getattr(a, part), getattr(b, part))
        for a, b in zip(one, other, strict=True)
        for part in ("trajectory", "start", "stop", "cost")
    )


class Notes:
    """What was measured, printed and written as it comes."""

    def __init__(self, out: Path, **known: object) -> None:
        self._out, self._found = out, dict(known)

    def __call__(self, name: str, value: object) -> None:
        self._found[name] = value
        print(f"{name}: {value}", flush=True)
        self._out.write_text(json.dumps(self._found, indent=2) + "\n")


def on_the_gpu(note: Notes, queries, trajectories, options) -> list[dtw.TopK]:
    """Everything resident: the search by the clock, what each kernel takes, the other steps."""
    began = time.perf_counter()
    library = dtw.Resident(trajectories)
    note("sending it to the GPU, s", time.perf_counter() - began)
    for k in (20, options.k):
        # Without a pause the chip reaches its limit of power and slows down.
        for pause in (PAUSE, 0.0):
            rounds = timed(lambda k=k: library.search(queries, k=k), options.rounds, pause)
            name = f"search on the GPU, k = {k}, {f'{pause} s apart' if pause else 'on end'}"
            note(f"{name}, ms", [round(ms, 2) for ms in sorted(rounds)])
            note(f"{name}, median, ms", statistics.median(rounds))
    note("kernels, ms", kernels(lambda: library.search(queries, k=options.k)))
    for steps in ("fmp", "classic") if "steps" in options.parts else ():
        rounds = timed(lambda s=steps: library.search(queries, k=options.k, steps=s), 3)
        note(f"search on the GPU, steps {steps}, ms", statistics.median(rounds))
    return library.search(queries, k=options.k)


def from_page_locked(note: Notes, queries, trajectories, k: int, answer: list[dtw.TopK]) -> None:
    """Nothing kept on the GPU: sent from page-locked memory in every search."""
    torch.cuda.empty_cache()
    library = dtw.Resident(trajectories, limit=0)
    for n_best in (20, k):
        milliseconds = statistics.median(timed(lambda n=n_best: library.search(queries, k=n), 5))
        name = f"search from page-locked memory, k = {n_best}"
        note(f"{name}, ms", milliseconds)
        note(f"{name}, GB/s", library.on_host / 1e6 / milliseconds)
    note("the same answer from page-locked memory", same(answer, library.search(queries, k=k)))


def from_ordinary(note: Notes, queries, trajectories, k: int, answer: list[dtw.TopK]) -> None:
    """Nothing prepared at all."""
    torch.cuda.empty_cache()
    began = time.perf_counter()
    streamed = dtw.search(queries, trajectories, k=k, backend="gpu")
    note("search from ordinary memory, s", time.perf_counter() - began)
    note("the same answer from ordinary memory", same(answer, streamed))


def peers(note: Notes, queries, trajectories, k: int, answer: list[dtw.TopK]) -> None:
    """The bare product, our CPU backend, and the authors' way on some pairs, the faster of two."""
    whole = torch.from_numpy(trajectories.reshape(-1, DIM)).cuda()
    note("the bare product, ms", statistics.median(product(whole, 5)))
    del whole
    began = time.perf_counter()
    on_cpu = dtw.search(queries, trajectories, k=k, backend="cpu")
    note("our CPU backend, s", time.perf_counter() - began)
    note("the same answer on the CPU", same(answer, on_cpu))
    singles = [np.float32(query) for query in queries]
    some = [np.float32(frames) for frames in trajectories[: PAIRS // QUERIES]]
    seconds = {}
    for name, threads in (("all threads", None), ("1 thread", 1)):
        pairwise(authors_way, singles[:1], some[:1], threads=threads)()  # compiles
        began = time.perf_counter()
        pairwise(authors_way, singles, some, threads=threads)()
        seconds[name] = (time.perf_counter() - began) / len(some) * len(trajectories)
    note("authors' way on this CPU by BLAS threads, s for all of it", seconds)
    note("authors' way on this CPU, s for all of it", min(seconds.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trajectories", type=int, default=76_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--k", type=int, default=100)
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS, help="beside resident")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("gpu.json"))
    options = parser.parse_args()
    note = Notes(
        options.out,
        machine=machine(),
        gpu=torch.cuda.get_device_name(),
        torch=torch.__version__,
        triton=triton.__version__,
        trajectories=options.trajectories,
        k=options.k,
    )
    frames = random_store(options.trajectories)
    trajectories = frames.reshape(options.trajectories, TRAJECTORY, DIM)
    rng = np.random.default_rng(1)
    queries = [rng.standard_normal((QUERY, DIM)).astype(np.float16) for _ in range(QUERIES)]
    note("gigabytes", frames.nbytes / 1e9)
    note("largest product error, share of the allowed", largest_error(frames))
    note("copy from page-locked memory, GB/s", copy_rate())
    answer = on_the_gpu(note, queries, trajectories, options)
    measures = {"page-locked": from_page_locked, "ordinary": from_ordinary, "peers": peers}
    for part, measure in measures.items():
        if part in options.parts:
            measure(note, queries, trajectories, options.k, answer)


if __name__ == "__main__":
    main()
