"""All query frames end to end, and how frames are centered before they are rounded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from strap.dtw.batching import as_floats
from strap.dtw.types import Floats, Frames, Ints, Singles


@dataclass(frozen=True, eq=False)
class QueryStack:
    """The queries' frames, and the mean and the scale that frames are centered by.

    The mean is that of the query frames: embeddings share a large common part, and rounding
    errors grow with what is left of the norms; it is a float32. The scale is a power of two, so
    it rounds nothing.
    """

    frames: Floats  # [R d]
    borders: Ints  # [q + 1] where each query begins
    mean: Floats  # [d]
    scale: float

    @classmethod
    def of(cls, queries: Sequence[Frames], metric: str, *, is_centered: bool = True) -> QueryStack:
        """Stack the queries; the mean is 0 where frames are not to be centered."""
        frames = np.concatenate([as_floats(query, metric) for query in queries], dtype=np.float64)
        with np.errstate(over="ignore"):
            mean = frames.mean(axis=0).astype(np.float32).astype(np.float64)
        if not is_centered or not np.isfinite(mean).all():
            mean = np.zeros_like(mean)
        # As the largest |frames − mean|: the differences' rounding keeps their order.
        largest = float(max((frames.max(axis=0) - mean).max(), (mean - frames.min(axis=0)).max()))
        scale = math.ldexp(1.0, -math.frexp(largest)[1]) if largest > 0 else 1.0
        borders = np.cumsum([0, *(len(query) for query in queries)])
        return cls(frames, borders, mean, scale)

    @property
    def n_queries(self) -> int:
        """How many queries there are."""
        return len(self.borders) - 1

    @property
    def n_rows(self) -> Floats:
        """Frames of each query [q 1]."""
        return np.diff(self.borders)[:, None].astype(np.float64)

    @property
    def is_ordinary(self) -> bool:
        """Whether the scale is one that float32 frames can be centered with."""
        return 2.0**-64 < self.scale < 2.0**64

    @cached_property
    def single_mean(self) -> Singles:
        """The mean [d], which is a float32 already."""
        return self.mean.astype(np.float32)

    def centering(self, frames: Frames) -> tuple[Frames, Frames, Any]:
        """Return frames, mean and scale, all in float32 where that is exact, else in float64.

        It is exact for float32 frames and ordinary scales.
        """
        if frames.dtype == np.float32 and self.is_ordinary:
            return frames, self.single_mean, np.float32(self.scale)
        return frames.astype(np.float64, copy=False), self.mean, np.float64(self.scale)
