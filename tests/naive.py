"""Subsequence DTW by brute force: every warping path is written out and added up.

Shares nothing with `strap.dtw`; only for tiny inputs.
"""

from __future__ import annotations

import math

MOVES = {
    "strap": [(1, 1), (1, 2)],
    "fmp": [(1, 1), (1, 2), (2, 1)],
    "classic": [(1, 0), (0, 1), (1, 1)],
}


def local_cost(a, b, metric: str) -> float:
    """Cost of two frames, given as sequences of numbers."""
    if metric == "l2":
        return math.dist(a, b)
    norm_a, norm_b = (math.sqrt(sum(x * x for x in frame)) for frame in (a, b))
    differences = [x / norm_a - y / norm_b for x, y in zip(a, b, strict=True)]
    return 0.5 * sum(difference * difference for difference in differences)


def paths(N: int, M: int, steps: str, *, along: bool = False):
    """Every path as a list of cells, from any cell of row 0 to any cell of row N − 1.

    Running `along` row 0 only costs: the cheapest path does so where it must become longer.
    """

    def extend(path):
        n, m = path[-1]
        if n == N - 1:
            yield path
        for dn, dm in MOVES[steps]:
            # In row 0 a path begins, it does not run along it: D(1, m) = C(1, m).
            along_first_row = n == 0 and dn == 0
            if n + dn < N and m + dm < M and (along or not along_first_row):
                yield from extend([*path, (n + dn, m + dm)])

    for m in range(M):
        yield from extend([(0, m)])


def all_matches(query, trajectory, steps: str, metric: str, *, along: bool = False):
    """(cost, stop, −start) of every path."""
    C = [[local_cost(a, b, metric) for b in trajectory] for a in query]
    for path in paths(len(query), len(trajectory), steps, along=along):
        cost = 0.0
        for n, m in path:
            cost += C[n][m]
        yield cost, path[-1][1] + 1, -path[0][1]


def best_match(query, trajectory, steps: str, metric: str):
    """(cost, start, stop) of the cheapest path, or None.

    Ties: the smaller stop, then the larger start.
    """
    best = min(all_matches(query, trajectory, steps, metric), default=None)
    return None if best is None else (best[0], -best[2], best[1])


def cheapest_borders(query, trajectory, steps: str, metric: str):
    """(start, stop) of every path that costs as little as any, but for the last bits."""
    found = list(all_matches(query, trajectory, steps, metric))
    limit = min(found)[0] * (1 + 1e-14) + 1e-15
    return {(-start, stop) for cost, stop, start in found if cost <= limit}


def best_path(costs, steps: str):
    """The cheapest path from the first cell of C (a list of rows) to the last one, or None.

    Ties: from the end back, a move (1, 1), else the one that goes back fewer columns, then rows.
    """
    N, M = len(costs), len(costs[0])
    between = [
        path
        for path in paths(N, M, steps, along=True)
        if path[0] == (0, 0) and path[-1] == (N - 1, M - 1)
    ]

    def preference(path):
        cost, moves = 0.0, []
        for n, m in path:
            cost += costs[n][m]
        for (n, m), (i, j) in zip(path[:0:-1], path[-2::-1], strict=True):
            moves.append(((n - i, m - j) != (1, 1), m - j, n - i))
        return cost, moves

    return min(between, key=preference, default=None)
