"""Metrics: the local cost of two frames, defined in float64.

A new metric also needs a compiled form in `local_costs.py`, and bounds in each backend.
"""

from __future__ import annotations

import numpy as np

from strap.dtw.types import Floats, Frames

METRICS = ("l2", "cosine")


def unit_vectors(frames: Frames) -> Floats:
    """Return frames [m d] divided by their norms, in float64; no norm may be 0."""
    values = np.asarray(frames, np.float64)
    # First divide by a power of two, which is exact, so that squares neither over- nor underflow.
    _, exponent = np.frexp(np.abs(values).max(axis=1, keepdims=True))
    values = np.ldexp(values, -exponent)
    return np.asarray(values / np.sqrt((values * values).sum(axis=1, keepdims=True)))


def local_costs(query: Frames, trajectory: Frames, metric: str) -> Floats:
    """Return C [n m]: l2 is |a − b|, cosine is ½·|a/|a| − b/|b||², which equals 1 − cos(a, b).

    Squared differences are summed in order of dimension. So identical frames cost exactly 0, and
    every backend that sums in this order gets the same bits.
    """
    a = unit_vectors(query) if metric == "cosine" else np.asarray(query, np.float64)
    b = unit_vectors(trajectory) if metric == "cosine" else np.asarray(trajectory, np.float64)
    squares = np.zeros((len(a), len(b)))
    for k in range(a.shape[1]):
        difference = a[:, k, None] - b[None, :, k]
        squares += difference * difference
    return 0.5 * squares if metric == "cosine" else np.sqrt(squares)
