"""The compiled loops of the int8 filter; see `randomised` for what they prove."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from strap.dtw.jit import njit
from strap.dtw.kernels import LARGEST_SQUARE, accumulate, center_row, least, longest_of, root
from strap.dtw.products import TILE, multiply
from strap.dtw.types import Floats, Frames, Ints, Singles

SHRINK = 1 - 128 * 2.0**-24
BIAS = 2.0**-13


@njit
def _largest(values: Singles) -> np.float32:
    """The largest magnitude of values [d], found among their bits: those are ordered alike."""
    bits = values.view(np.int32)
    largest = np.zeros(1, np.int32)
    most = np.int32(0)
    for k in range(bits.shape[0]):
        most = max(most, np.int32(bits[k] & np.int32(0x7FFFFFFF)))
    largest[0] = most
    return np.float32(largest.view(np.float32)[0])


@njit
def _round_halves(
    left: Singles,
    right: Singles,
    scale: np.float32,
    seed: np.uint32,
    left_out: NDArray[np.int8],
    right_out: NDArray[np.int8],
) -> int:
    """⌊value/step + r⌋ of two runs [h], in whole numbers of 2⁻¹⁶: scale is 2¹⁶/step.

        value/step   ┌───────────────┬────────────────┐
                 + r │               │ 16 random bits │   the shift right by 16 is the floor
                     └───────────────┴────────────────┘

    The random bits are the halves of a hash of seed + k: as good as random, the same in every
    run, and no two numbers share one. Returns the sum of squared errors, in units of 2⁻⁸ step,
    each rounded down to a whole number.
    """
    total = np.int32(0)
    for k in range(left.shape[0]):
        h = np.uint32(seed + np.uint32(k))
        h = np.uint32((h ^ (h >> np.uint32(16))) * np.uint32(0x7FEB352D))
        h = np.uint32((h ^ (h >> np.uint32(15))) * np.uint32(0x846CA68B))
        h = np.uint32(h ^ (h >> np.uint32(16)))
        x, y = np.int32(left[k] * scale), np.int32(right[k] * scale)
        p = np.int32(np.int32(x + np.int32(h & np.uint32(0xFFFF))) >> np.int32(16))
        q = np.int32(np.int32(y + np.int32(h >> np.uint32(16))) >> np.int32(16))
        left_out[k], right_out[k] = np.int8(p), np.int8(q)
        e = np.int32(np.int32(np.int32(p << np.int32(16)) - x) >> np.int32(8))
        f = np.int32(np.int32(np.int32(q << np.int32(16)) - y) >> np.int32(8))
        total = np.int32(total + np.int32(np.int32(e * e) + np.int32(f * f)))
    return int(total)


@njit
def round_at_random(
    frames: Frames,
    mean: Frames,
    scale: float,
    seed: np.uint32,
    out: NDArray[np.int8],
    sides: Floats,
) -> None:
    """Frames [m d], moved and scaled, to whole numbers out [m depth], see `randomised`.

    sides [3 m]: squared norm, step and squared error of each frame. depth is even.
    """
    d, half = frames.shape[1], out.shape[1] // 2
    row = np.zeros(2 * half, np.float32)
    for i in range(frames.shape[0]):
        sides[0, i] = center_row(frames[i], mean, scale, row[:d])
        sides[1, i], sides[2, i] = 0.0, 0.0
        out[i] = 0
        if not (0.0 < sides[0, i] <= LARGEST_SQUARE):
            continue
        step = _largest(row) / np.float32(126)
        if step < np.float32(1e-30):  # beside queries of about 1: within the slack as it is
            continue
        key = np.uint32(seed + np.uint32(i * half))
        scale_up = np.float32(65536) / step
        total = _round_halves(row[:half], row[half:], scale_up, key, out[i, :half], out[i, half:])
        # Each error was rounded down by less than 2⁻⁸ step.
        error = (np.sqrt(np.float64(total)) + np.sqrt(np.float64(d))) * step / 256
        sides[1, i], sides[2, i] = step, 1.0001 * error * error


@njit
def frame_sides(
    sides: Floats,
    step: float,
    error: float,
    norm: float,
    c: float,
    root_dim: float,
    rates: Floats,
    out: Singles,
) -> None:
    """What a cell needs of its trajectory frame, for each query: out [q 4 m].

    beta, the frame's step, the square below which a cell falls back on the certain error, and
    that error. sides [3 m] from `round_at_random`; step, error and norm are the largest of the
    query frames; rates [q] are λ/c, or λ under cosine.
    """
    for m in range(sides.shape[1]):
        square, own, length = sides[0, m], sides[1, m], np.sqrt(sides[0, m])
        v = (step * step * square + own * own * norm * norm) / 4
        widest = root_dim * (step * length + norm * own)
        twice = 2.0002 * (error * length + norm * np.sqrt(sides[2, m]))
        for q in range(rates.shape[0]):
            x = rates[q] * v + BIAS * widest
            beta = SHRINK * square - x
            enough = c * c >= 2.0002 * widest + x
            out[q, 0, m] = beta - abs(beta) * 2.0**-23  # rounds down
            out[q, 1, m] = own
            out[q, 2, m] = (c * c + twice) * (1 + 2.0**-22) if enough else np.inf
            out[q, 3, m] = twice


@njit
def _squares(
    alpha: np.float32,
    step: np.float32,
    beta: Singles,
    unit: Singles,
    near: Singles,
    error: Singles,
    product: NDArray[np.int32],
    out: Singles,
) -> None:
    for m in range(out.shape[0]):
        square = (alpha + beta[m]) - (step * unit[m]) * np.float32(product[m])
        low = square - error[m]
        out[m] = low if square < near[m] else square


@njit
def low_costs(
    rows: NDArray[np.int8],
    alpha: Singles,
    step: Singles,
    values: NDArray[np.int8],
    sides: Singles,
    offsets: Ints,
    code: int,
    half: bool,
    out: Singles,
) -> None:
    """out [t] = least D(N, m) over lower-bound cells, for one query and t trajectories.

    rows [≥N depth] and values [F + TILE depth] are whole numbers; alpha [n] and step [n] belong
    to query frames, sides [4 F] to trajectory frames. The product of one pair stays in the cache.
    """
    N, longest = alpha.shape[0], longest_of(offsets)
    D = np.empty((3, longest + 2), np.float32)
    row = np.empty(longest, np.float32)
    products = np.empty((rows.shape[0], longest + TILE), np.int32)
    beta, unit, near, error = sides[0], sides[1], sides[2], sides[3]
    for i in range(out.shape[0]):
        first = offsets[i]
        M = offsets[i + 1] - first
        D[:] = np.inf
        multiply(rows, values[first:], M, N, code != 0, products)
        for n in range(N):
            lo, hi = (n, M - N + n + 1) if code == 0 else (0, M)
            if lo >= hi:
                break
            here = slice(first + lo, first + hi)
            _squares(
                alpha[n],
                step[n],
                beta[here],
                unit[here],
                near[here],
                error[here],
                products[n, lo:hi],
                row[: hi - lo],
            )
            root(half, row[: hi - lo])
            accumulate(n, code, lo, hi, row[: hi - lo], D)
        out[i] = least(D, N, M, code)
