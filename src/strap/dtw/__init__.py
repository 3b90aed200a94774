"""Exact subsequence DTW on plain arrays.

    api, validation      the public functions, and the checks of their arguments; types: their data
    steps, metrics       the step sets, and the local costs of two frames: both are defined here
    reference            the definition in plain NumPy, which every backend must equal
    alignment            the compiled recurrence; local_costs: the compiled metrics
    constraints          several matches per trajectory, limits on their length
    cpu/, gpu/           the backends; candidates.py of each decides when a candidate is dropped
    sketches/cascade     lower bounds that rule out trajectories without reading their frames

>>> import numpy as np, strap.dtw
>>> trajectory = np.arange(10.0)[:, None]                      # frames [10 1]
>>> strap.dtw.best_match(trajectory[3:6], trajectory)
Alignment(cost=0.0, start=3, stop=6)
"""

from typing import TYPE_CHECKING, Any

from strap.dtw.api import (
    align_with,
    best_match,
    path,
    resolve_backend,
    search,
    search_blocks,
    search_library,
    stream_blocks,
)
from strap.dtw.constraints import search_constrained
from strap.dtw.metrics import METRICS
from strap.dtw.steps import STEPS
from strap.dtw.types import (
    Alignment,
    Backend,
    Block,
    Constraints,
    Library,
    SearchOptions,
    SearchResult,
    SearchStatistics,
    TopK,
    WarpingPath,
)

if TYPE_CHECKING:
    from strap.dtw.gpu.resident import Resident
    from strap.dtw.streaming import Stream

__all__ = [
    "METRICS",
    "STEPS",
    "Alignment",
    "Backend",
    "Block",
    "Constraints",
    "Library",
    "Resident",
    "SearchOptions",
    "SearchResult",
    "SearchStatistics",
    "Stream",
    "TopK",
    "WarpingPath",
    "align_with",
    "best_match",
    "path",
    "resolve_backend",
    "search",
    "search_blocks",
    "search_constrained",
    "search_library",
    "stream_blocks",
]


def __getattr__(name: str) -> Any:
    """Load `Resident`, which needs torch, or `Stream`, which needs numba, when it is first used."""
    if name == "Resident":
        from strap.dtw.gpu.resident import Resident

        return Resident
    if name == "Stream":
        from strap.dtw.streaming import Stream

        return Stream
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
