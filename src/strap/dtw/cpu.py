"""Exact top-k on the CPU: bound everything cheaply, then evaluate exactly what may still win."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

import numpy as np

from strap.dtw import kernels, reference
from strap.dtw.bounds import Filter
from strap.dtw.pieces import LowerBound, pieces
from strap.dtw.randomised import RandomisedFilter, suits
from strap.dtw.types import Alignment, Fetch, Floats, Frames, Ints, Name, TopK, top


def threads() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def best_match(query: Frames, trajectory: Frames, steps: str, metric: str) -> Alignment | None:
    """The best match of query [n d] in trajectory [m d]; inputs are taken as valid."""
    return _align(_exact(query, metric), trajectory, steps, metric)


def _exact(frames: Frames, metric: str) -> Floats:
    if metric == "cosine":
        return reference.unit(frames)
    return np.ascontiguousarray(frames, np.float64)


def _align(query: Floats, trajectory: Frames, steps: str, metric: str) -> Alignment | None:
    # Columns, so that the loop over frames is the innermost, and one sum per frame stays in order.
    columns = np.ascontiguousarray(_exact(trajectory, metric).T)
    half = metric == "cosine"
    cost, start, stop = kernels.align(query, columns, kernels.CODES[steps], half)
    return Alignment(cost, start, stop) if cost < np.inf else None


def lower_bound(queries: Sequence[Frames], steps: str, metric: str, pool: Executor) -> LowerBound:
    """The cheapest filter that is proved for these steps and quick on this machine."""
    if suits(steps, queries[0].shape[1]):
        return RandomisedFilter(queries, steps, metric, pool)
    return Filter(queries, steps, metric, pool)


def search(
    queries: Sequence[Frames],
    stream: Iterable[tuple[int, Frames]],
    fetch: Fetch,
    *,
    k: int,
    steps: str,
    metric: str,
    exclude: Sequence[Collection[int]] | None,
    name: Name,
) -> list[TopK]:
    """Each query's k best of the (id, frames) in stream; `fetch(id)` reads frames again."""
    with ThreadPoolExecutor(threads()) as pool:
        bound = lower_bound(queries, steps, metric, pool)
        ids: list[int] = []
        lows: list[Floats] = []
        for piece in pieces(stream, bound.frames_per_piece()):
            ids += piece.ids
            lows.append(bound.bounds(piece, name))
        order = np.array(ids, np.int64)
        bounds = np.concatenate(lows, axis=1) if lows else np.empty((len(queries), 0))
        results = []
        for q, query in enumerate(queries):
            row = bounds[q]
            if exclude is not None and len(exclude[q]):
                row = np.where(np.isin(order, list(exclude[q])), np.inf, row)
            results.append(_refine(query, order, row, fetch, k, steps, metric, pool))
    return results


def _refine(
    query: Frames,
    ids: Ints,
    lows: Floats,
    fetch: Fetch,
    k: int,
    steps: str,
    metric: str,
    pool: Executor,
) -> TopK:
    """Evaluate in order of the bound, until the bound exceeds the k-th best cost found."""
    values = _exact(query, metric)

    def evaluate(index: int) -> Alignment | None:
        return _align(values, fetch(index), steps, metric)

    order = np.lexsort((ids, lows))
    order = order[np.isfinite(lows[order])]
    found: list[tuple[float, int, int, int]] = []
    worst, done, batch = np.inf, 0, k
    # An equal bound may still hide an equal cost with a smaller index: only a larger one ends it.
    while done < len(order) and lows[order[done]] <= worst:
        some = order[done : done + batch]
        some = some[lows[some] <= worst]
        indices = [int(index) for index in ids[some]]
        for index, match in zip(indices, pool.map(evaluate, indices), strict=True):
            if match is not None:
                found.append((match.cost, index, match.stop, match.start))
        found = sorted(found)[:k]
        worst = found[-1][0] if len(found) == k else np.inf
        done, batch = done + len(some), 2 * threads()
    return top(found)
