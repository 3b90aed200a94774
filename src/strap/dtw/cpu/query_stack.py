"""The concatenated frames of all queries, and the mean and scale used before rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from strap.dtw.batching import as_floats
from strap.dtw.types import Floats, Frames, Ints


@dataclass(frozen=True, eq=False)
class QueryStack:
    """The frames of all queries, and the mean and scale by which any frame is normalised.

    The mean is that of the query frames. Embeddings have a large common part, and rounding errors
    grow with the norm, so subtracting it makes bounds tighter. The mean is a float32 number. The
    scale is a power of two, so that scaling does not round.
    """

    frames: Floats  # [R d]
    borders: Ints  # [q + 1] where each query begins
    mean: Floats  # [d]
    scale: float

    @classmethod
    def of(cls, queries: Sequence[Frames], metric: str, *, is_centered: bool = True) -> QueryStack:
        """Stack the queries; without centering, the mean is 0."""
        frames = np.concatenate([as_floats(query, metric) for query in queries], dtype=np.float64)
        with np.errstate(over="ignore"):
            mean = frames.mean(axis=0).astype(np.float32).astype(np.float64)
        if not is_centered or not np.isfinite(mean).all():
            mean = np.zeros_like(mean)
        # The largest |frames − mean|, computed from the extremes because rounding is monotonic.
        largest = float(max((frames.max(axis=0) - mean).max(), (mean - frames.min(axis=0)).max()))
        scale = math.ldexp(1.0, -math.frexp(largest)[1]) if largest > 0 else 1.0
        borders = np.cumsum([0, *(len(query) for query in queries)])
        return cls(frames, borders, mean, scale)

    @property
    def n_queries(self) -> int:
        """The number of queries."""
        return len(self.borders) - 1

    @property
    def n_rows(self) -> Floats:
        """The number of frames of each query [q 1]."""
        return np.diff(self.borders)[:, None].astype(np.float64)

    @property
    def is_ordinary(self) -> bool:
        """Whether the scale is moderate enough to scale float32 frames in float32."""
        return 2.0**-64 < self.scale < 2.0**64

    def centering(self, frames: Frames) -> tuple[Frames, Frames, Any]:
        """Return all three in float32 for float32 frames and an ordinary scale, else in float64."""
        if frames.dtype == np.float32 and self.is_ordinary:
            return frames, self.mean.astype(np.float32), np.float32(self.scale)
        return frames.astype(np.float64, copy=False), self.mean, np.float64(self.scale)
