"""Compiled functions for the balls of `sketcher`: around the means of g matched frames.

A way through a block is one choice of the g trajectory frames that g consecutive query frames can
be matched with under steps `strap`: the first is in the block, each next one is one or two frames
later. A ball contains the means of all ways.
"""

from __future__ import annotations

import numpy as np

from strap.dtw.types import Floats, Ints
from strap.jit import njit

STEPS_TO_CENTRE = 16  # iterations of `find_centres`


@njit
def _list_ways(every: int) -> Ints:
    """Return the ways [g·2^(g−1), g] through a block, as offsets from its first frame."""
    patterns = 2 ** (every - 1)
    ways = np.empty((every * patterns, every), np.int64)
    for first in range(every):
        for pattern in range(patterns):
            place = first
            for i in range(every):
                ways[first * patterns + pattern, i] = place
                place += 1 + (pattern >> i & 1)
    return ways


@njit
def _fill_means(frames: Floats, first: int, ways: Ints, out: Floats) -> int:
    """Fill `out` [w r] with the means of the ways that fit in the frames; return their number."""
    count = 0
    for w in range(ways.shape[0]):
        if first + ways[w, -1] < frames.shape[0]:
            row = out[count]
            row[:] = 0
            for i in range(ways.shape[1]):
                row += frames[first + ways[w, i]]
            row /= ways.shape[1]
            count += 1
    return count


@njit
def _farthest(points: Floats, centre: Floats) -> tuple[int, float]:
    """Return the index of the point [w r] farthest from a centre [r], and its squared distance."""
    at, most = 0, 0.0
    for w in range(points.shape[0]):
        total = 0.0
        for k in range(centre.shape[0]):
            total += (points[w, k] - centre[k]) ** 2
        if not total <= most:
            at, most = w, total
    return at, most


@njit
def find_centres(frames: Floats, every: int) -> Floats:
    """Return approximate centres [m // g, r] of the smallest balls around each block's means.

    Starting at the centroid, it takes steps towards the farthest mean, each shorter than the last.
    """
    ways = _list_ways(every)
    found = np.empty((frames.shape[0] // every, frames.shape[1]))
    means = np.empty((ways.shape[0], frames.shape[1]))
    for k in range(found.shape[0]):
        points, centre = means[: _fill_means(frames, k * every, ways, means)], found[k]
        centre[:] = 0
        for w in range(points.shape[0]):
            centre += points[w] / points.shape[0]
        for step in range(STEPS_TO_CENTRE):
            centre += (points[_farthest(points, centre)[0]] - centre) / (step + 3)
    return found


@njit
def fill_radii(frames: Floats, every: int, centres: Floats, out: Floats) -> None:
    """Fill `out` [m // g] with the largest distance of each block's means from its centre."""
    ways = _list_ways(every)
    means = np.empty((ways.shape[0], frames.shape[1]))
    for k in range(out.shape[0]):
        points = means[: _fill_means(frames, k * every, ways, means)]
        out[k] = np.sqrt(_farthest(points, centres[k])[1])
