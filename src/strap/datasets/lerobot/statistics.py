"""LeRobot's statistics of episodes, and their aggregation over a dataset.

Numbers have min, max, mean, std, count and five quantiles per dimension. Images have the same per
channel in [0, 1], of shape (3, 1, 1). They are computed exactly from a histogram of grey levels of
at most `SAMPLES` evenly spaced frames, subsampled to about 150 pixels a side.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from strap.types import Array

Stats = dict[str, Array]
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
STATISTICS = ("min", "max", "mean", "std", "count", *QUANTILES)
SAMPLES = 100
SAMPLED_SIDE = 150


def number_stats(values: Array) -> Stats:
    """Return statistics over the frames of an array [t …]; [t] is treated as [t 1].

    NaN and infinite numbers are ignored, because JSON has none; without finite numbers all are 0.
    """
    rows = values.astype(np.float64).reshape(len(values), *(values.shape[1:] or (1,)))
    if not np.isfinite(rows).all():
        return _finite_stats(rows)
    quantiles = np.quantile(rows, list(QUANTILES.values()), axis=0)
    return {
        "min": rows.min(axis=0),
        "max": rows.max(axis=0),
        "mean": rows.mean(axis=0),
        "std": rows.std(axis=0),
        "count": np.array([len(rows)]),
        **dict(zip(QUANTILES, quantiles, strict=True)),
    }


def _finite_stats(rows: Array) -> Stats:
    """Return the statistics of each dimension over its finite numbers; `count` counts all rows."""
    columns = [column[np.isfinite(column)] for column in rows.reshape(len(rows), -1).T]
    parts = [number_stats(column if len(column) else np.zeros(1)) for column in columns]
    stats = {
        name: np.array([part[name][0] for part in parts]).reshape(rows.shape[1:])
        for name in STATISTICS
    }
    return stats | {"count": np.array([len(rows)])}


class ImageStats:
    """Grey-level histograms of the sampled frames of one episode and camera."""

    def __init__(self, length: int) -> None:
        self._every = -(-length // SAMPLES)
        self._seen = 0
        self._frames = 0
        self._counts = np.zeros((3, 256), np.int64)

    def add(self, frames: Array) -> None:
        """Add the next frames, uint8 [n h w 3]."""
        first = -self._seen % self._every
        thin = max(1, max(frames.shape[1:3]) // SAMPLED_SIDE)
        for frame in frames[first :: self._every, ::thin, ::thin]:
            for channel in range(3):
                self._counts[channel] += np.bincount(frame[..., channel].ravel(), minlength=256)
            self._frames += 1
        self._seen += len(frames)

    def result(self) -> Stats:
        """Return the statistics, [3 1 1] each, in [0, 1]; `count` counts the sampled frames."""
        grey = np.arange(256) / 255
        share = self._counts / self._counts.sum(axis=1, keepdims=True)
        below = share.cumsum(axis=1)
        mean = share @ grey
        values = {
            "min": grey[(self._counts > 0).argmax(axis=1)],
            "max": grey[255 - (self._counts[:, ::-1] > 0).argmax(axis=1)],
            "mean": mean,
            "std": np.sqrt(np.maximum(share @ grey**2 - mean**2, 0)),
            **{name: grey[(below >= q - 1e-12).argmax(axis=1)] for name, q in QUANTILES.items()},
        }
        stats = {name: value.reshape(3, 1, 1) for name, value in values.items()}
        return stats | {"count": np.array([self._frames])}


def aggregate(parts: Iterable[Mapping[str, Mapping[str, Any]]]) -> dict[str, Stats]:
    """Return the statistics of a whole dataset from the statistics of its episodes.

    They are exact except for the quantiles, which are means weighted by frames, as in LeRobot.
    """
    total: dict[str, Stats] = {}
    for part in parts:
        for feature, stats in part.items():
            new = {name: np.asarray(stats[name]) for name in STATISTICS}
            total[feature] = _merged(total[feature], new) if feature in total else new
    return total


def _merged(a: Stats, b: Stats) -> Stats:
    count = a["count"] + b["count"]
    share = b["count"][0] / count[0]
    delta = b["mean"] - a["mean"]
    variance = (1 - share) * a["std"] ** 2 + share * b["std"] ** 2
    return {
        "min": np.minimum(a["min"], b["min"]),
        "max": np.maximum(a["max"], b["max"]),
        "mean": a["mean"] + share * delta,
        "std": np.sqrt(variance + share * (1 - share) * delta**2),
        "count": count,
        **{name: a[name] + share * (b[name] - a[name]) for name in QUANTILES},
    }
