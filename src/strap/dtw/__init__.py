"""Exact subsequence DTW: arrays in, arrays out; knows nothing of robots.

>>> import numpy as np, strap.dtw
>>> trajectory = np.arange(10.0)[:, None]                      # frames [10 1]
>>> strap.dtw.best_match(trajectory[3:6], trajectory)
Alignment(cost=0.0, start=3, stop=6)
"""

from strap.dtw.api import best_match, resolve_backend, search, search_blocks
from strap.dtw.types import METRICS, STEPS, Alignment, Backend, Block, TopK

__all__ = [
    "METRICS",
    "STEPS",
    "Alignment",
    "Backend",
    "Block",
    "TopK",
    "best_match",
    "resolve_backend",
    "search",
    "search_blocks",
]
