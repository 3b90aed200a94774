"""Subsequence DTW as it is defined, in plain float64: slow, readable, what the others must equal.

Query x_1..x_N, trajectory y_1..y_M. C(n, m) is the cost of matching frame n with frame m, and
D(n, m) that of the cheapest path which starts anywhere in row 1 and ends in cell (n, m):

    D(1, m) = C(1, m)
    D(n, m) = C(n, m) + min D(n − Δn, m − Δm)   over the moves (Δn, Δm) of the step set

        strap             fmp                 classic
        m−2 m−1  m        m−2 m−1  m          m−1  m
                                 .                       n−2
         o   o   .     →   o   o   .           o   o     n−1
         .   .   x         .   .   x           o   x     n
                     (fmp also from (n−2, m−1))

Predecessors out of range cost ∞. Beside D the column where the path left row 1 is carried along,
so that no path need be traced back; among equally cheap predecessors the larger start wins.
The match ends at the smallest m of least D(N, m).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from strap.dtw import checks
from strap.dtw.types import STEPS, Alignment, Floats, Frames, Lengths, Name, TopK, top


def unit(frames: Frames) -> Floats:
    """Frames [m d] divided by their norms, in float64; no norm may be 0."""
    values = np.asarray(frames, np.float64)
    # An exact power of two first, so that squares neither over- nor underflow.
    _, exponent = np.frexp(np.abs(values).max(axis=1, keepdims=True))
    values = np.ldexp(values, -exponent)
    return np.asarray(values / np.sqrt((values * values).sum(axis=1, keepdims=True)))


def local_costs(query: Frames, trajectory: Frames, metric: str) -> Floats:
    """C [n m]: l2 is |a − b|, cosine is ½·|a/|a| − b/|b||², which equals 1 − cos(a, b).

    Differences first, then squares, summed in order of the dimension: identical frames cost
    exactly 0, and every backend that sums in this order gets the same bits.
    """
    a = unit(query) if metric == "cosine" else np.asarray(query, np.float64)
    b = unit(trajectory) if metric == "cosine" else np.asarray(trajectory, np.float64)
    squares = np.zeros((len(a), len(b)))
    for k in range(a.shape[1]):
        difference = a[:, k, None] - b[None, :, k]
        squares += difference * difference
    return 0.5 * squares if metric == "cosine" else np.sqrt(squares)


def align(costs: Floats, steps: str) -> Alignment | None:
    """The cheapest path through costs [n m], or None when no path fits."""
    N, M = costs.shape
    D = np.full((N, M), math.inf)
    S = np.zeros((N, M), np.int64)
    D[0], S[0] = costs[0], np.arange(M)
    for n in range(1, N):
        for m in range(M):
            for dn, dm in STEPS[steps]:
                i, j = n - dn, m - dm
                if i < 0 or j < 0 or D[i, j] == math.inf:
                    continue
                if D[i, j] < D[n, m] or (D[i, j] == D[n, m] and S[i, j] > S[n, m]):
                    D[n, m], S[n, m] = D[i, j], S[i, j]
            D[n, m] += costs[n, m]
    stop = int(np.argmin(D[-1]))
    if D[-1, stop] == math.inf:
        return None
    return Alignment(float(D[-1, stop]), int(S[-1, stop]), stop + 1)


def align_within(costs: Floats, steps: str, lengths: Lengths) -> Alignment | None:
    """The cheapest path of an allowed length through costs [n m]: each start by itself.

    A path from a given start may move within row 1 too, where the step set lets it.
    """
    least, most = lengths
    best: tuple[float, int, int] | None = None
    for start in range(costs.shape[1]):
        last = _from_first_column(costs[:, start : start + most], steps)[-1]
        for m in range(least - 1, len(last)):
            found = float(last[m]), start + m + 1, -start
            if last[m] < math.inf and (best is None or found < best):
                best = found
    return None if best is None else Alignment(best[0], -best[2], best[1])


def _from_first_column(costs: Floats, steps: str) -> Floats:
    """D of the paths that start in cell (1, 1)."""
    N, M = costs.shape
    D = np.full((N, M), math.inf)
    D[0, 0] = costs[0, 0]
    for n in range(N):
        for m in range(M):
            before = [D[n - dn, m - dm] for dn, dm in STEPS[steps] if dn <= n and dm <= m]
            if n + m and before:
                D[n, m] = costs[n, m] + min(before)
    return D


def best_match(
    query: Frames, trajectory: Frames, steps: str, metric: str, lengths: Lengths | None = None
) -> Alignment | None:
    """The best match of query [n d] in trajectory [m d]; inputs are taken as valid."""
    costs = local_costs(query, trajectory, metric)
    return align(costs, steps) if lengths is None else align_within(costs, steps, lengths)


def search(
    queries: Sequence[Frames],
    stream: Iterable[tuple[int, Frames]],
    k: int,
    steps: str,
    metric: str,
    exclude: Sequence[Collection[int]] | None,
    name: Name,
) -> list[TopK]:
    """Each query's k best of the (id, frames) in stream, every pair evaluated."""
    found: list[list[tuple[float, int, int, int]]] = [[] for _ in queries]
    for index, frames in stream:
        checks.values(frames, name(index), metric)
        for q, query in enumerate(queries):
            if exclude is not None and index in exclude[q]:
                continue
            match = best_match(query, frames, steps, metric)
            if match is not None:
                found[q].append((match.cost, index, match.stop, -match.start))
    return [top(sorted(matches)[:k]) for matches in found]
