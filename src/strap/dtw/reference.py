"""The definition of subsequence DTW in plain float64: slow and readable; backends must equal it.

Query x_1..x_N, trajectory y_1..y_M. C(n, m) is the local cost of matching frame n with frame m.
D(n, m) is the cost of the cheapest path that starts anywhere in row 1 and ends in cell (n, m):

    D(1, m) = C(1, m)
    D(n, m) = C(n, m) + min D(n − Δn, m − Δm)   over the moves (Δn, Δm) of the step set

Predecessors out of range cost ∞. Each cell also keeps the start column of its path, so that no
path has to be traced back. Of equally cheap predecessors, the one with the larger start wins.
The match ends at the m with the smallest D(N, m), the first of them on ties.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from strap.dtw.metrics import local_costs
from strap.dtw.steps import STEPS
from strap.dtw.types import (
    Alignment,
    Excluded,
    Floats,
    Frames,
    Ints,
    Lengths,
    Library,
    SearchOptions,
    SearchResult,
    SearchStatistics,
    TopK,
)
from strap.dtw.validation import check_numbers


def align(costs: Floats, steps: str) -> Alignment | None:
    """Return the cheapest path through costs [n m], or None when no path fits."""
    D, starts = _accumulate(costs, steps, is_free=True)
    stop = int(np.argmin(D[-1]))
    if D[-1, stop] == math.inf:
        return None
    return Alignment(float(D[-1, stop]), int(starts[-1, stop]), stop + 1)


def align_within(costs: Floats, steps: str, lengths: Lengths) -> Alignment | None:
    """Return the cheapest path of an allowed length through costs [n m], trying each start.

    With a fixed start, a path may also move along row 1, if the step set has such a move.
    """
    least, most = lengths
    best: tuple[float, int, int] | None = None
    for start in range(costs.shape[1]):
        last = _accumulate(costs[:, start : start + most], steps, is_free=False)[0][-1]
        for m in range(least - 1, len(last)):
            match = float(last[m]), start + m + 1, -start
            if last[m] < math.inf and (best is None or match < best):
                best = match
    return None if best is None else Alignment(best[0], -best[2], best[1])


def _accumulate(costs: Floats, steps: str, *, is_free: bool) -> tuple[Floats, Ints]:
    """Return D [n m] and the start columns [n m]; paths start in row 1, or (not free) in (1, 1)."""
    N, M = costs.shape
    D, starts = np.full((N, M), math.inf), np.zeros((N, M), np.int64)
    for n in range(N):
        for m in range(M):
            if n == 0 and (is_free or m == 0):
                D[0, m], starts[0, m] = costs[0, m], m
                continue
            cells = [(n - dn, m - dm) for dn, dm in STEPS[steps] if dn <= n and dm <= m]
            reached = [(D[cell], -starts[cell]) for cell in cells if D[cell] < math.inf]
            if reached:
                cost, less_start = min(reached)
                D[n, m], starts[n, m] = cost + costs[n, m], -less_start
    return D, starts


def best_match(
    query: Frames, trajectory: Frames, lengths: Lengths | None = None, *, steps: str, metric: str
) -> Alignment | None:
    """Return the best match of query [n d] in trajectory [m d]; inputs are assumed valid."""
    costs = local_costs(query, trajectory, metric)
    return align(costs, steps) if lengths is None else align_within(costs, steps, lengths)


def find_cells(query: Frames, window: Frames, steps: str, metric: str) -> tuple[Ints, Floats]:
    """Return the cells [p 2] of the cheapest path from corner to corner, and their local costs [p].

    p is 0 if there is no path. It is traced back: of equally cheap predecessors, the first move of
    `STEPS` wins. The matrix has a row per frame of query [n d], a column per frame of window [m d].
    """
    costs = local_costs(query, window, metric)
    D, _ = _accumulate(costs, steps, is_free=False)
    n, m = len(query) - 1, len(window) - 1
    path = [(n, m)] if D[n, m] < math.inf else []
    while path and (n, m) != (0, 0):
        moves = [(dn, dm) for dn, dm in STEPS[steps] if dn <= n and dm <= m]
        dn, dm = min(moves, key=lambda move: D[n - move[0], m - move[1]])
        n, m = n - dn, m - dm
        path.append((n, m))
    cells = np.array(path[::-1], np.int64).reshape(-1, 2)
    return cells, costs[cells[:, 0], cells[:, 1]]


def search(
    queries: Sequence[Frames],
    library: Library,
    options: SearchOptions,
    exclude: Excluded,
) -> SearchResult:
    """Return the k best matches of each query; every pair is aligned."""
    found: list[list[tuple[float, int, int, int]]] = [[] for _ in queries]
    for index, frames in library.stream(queries[0].shape[1]):
        check_numbers(frames, library.name(index), options.metric)
        for q, query in enumerate(queries):
            if exclude is not None and index in exclude[q]:
                continue
            match = best_match(query, frames, steps=options.steps, metric=options.metric)
            if match is not None:
                found[q].append((match.cost, index, match.stop, -match.start))
    tops = [TopK.of(sorted(matches)[: options.k]) for matches in found]
    # No statistics: without lower bounds, nothing is ruled out.
    return SearchResult(tops, [SearchStatistics() for _ in queries])
