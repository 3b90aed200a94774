"""The compiled loops that let one vector stand for several frames, see `sketches`."""

from __future__ import annotations

import numpy as np

from strap.dtw.jit import njit
from strap.dtw.types import Floats, Ints

TURNS = 16  # towards the centre of the smallest ball


@njit
def _ways(every: int) -> Ints:
    """Ways through a block [g·2^(g−1), g]: which frames from its first on, for g frames."""
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
def _means(frames: Floats, first: int, ways: Ints, out: Floats) -> int:
    """out [w r] = the means of the ways that end before the frames do; returns how many."""
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
    """The point [w r] farthest from a centre [r], and its squared distance."""
    at, most = 0, 0.0
    for w in range(points.shape[0]):
        total = 0.0
        for k in range(centre.shape[0]):
            total += (points[w, k] - centre[k]) ** 2
        if not total <= most:
            at, most = w, total
    return at, most


@njit
def centres(frames: Floats, every: int) -> Floats:
    """[m // g, r] about the centres of the smallest balls around the means of each block's ways.

    From the middle of all a step towards the farthest, again and again, each shorter than the
    one before.
    """
    ways = _ways(every)
    found = np.empty((frames.shape[0] // every, frames.shape[1]))
    means = np.empty((ways.shape[0], frames.shape[1]))
    for k in range(found.shape[0]):
        points, centre = means[: _means(frames, k * every, ways, means)], found[k]
        centre[:] = 0
        for w in range(points.shape[0]):
            centre += points[w] / points.shape[0]
        for turn in range(TURNS):
            centre += (points[_farthest(points, centre)[0]] - centre) / (turn + 3)
    return found


@njit
def radii(frames: Floats, every: int, around: Floats, out: Floats) -> None:
    """out [m // g] = how far the means of a block's ways are from a centre [m // g, r], at most."""
    ways = _ways(every)
    means = np.empty((ways.shape[0], frames.shape[1]))
    for k in range(out.shape[0]):
        points = means[: _means(frames, k * every, ways, means)]
        out[k] = np.sqrt(_farthest(points, around[k])[1])
