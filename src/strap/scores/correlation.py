"""Rank correlation: how well a score predicts success."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from strap.errors import StrapError


@dataclass(frozen=True)
class RankCorrelation:
    """Spearman's correlation of a score with success."""

    coefficient: float
    """1: a better score always means more successes; 0: no relation; -1: the reverse"""
    p_value: float
    """two-sided, for the hypothesis of no relation"""
    count: int
    """number of cells"""


def rank_correlation(scores: Sequence[float], successes: Sequence[float]) -> RankCorrelation:
    """Return how well a score ranks cells (task × method) by their success.

    Args:
        scores: the score of each cell.
        successes: the success of each cell, as a count or rate.

    >>> round(rank_correlation([0.2, 0.5, 0.6, 0.9], [3, 8, 7, 15]).coefficient, 3)
    0.8
    """
    from scipy.stats import spearmanr  # imported here: it takes a second, and few commands need it

    if len(scores) != len(successes):
        raise StrapError(
            f"{len(scores)} scores and {len(successes)} successes: give one of each for every cell"
        )
    if len(scores) < 3:
        raise StrapError(f"{len(scores)} cells: a rank correlation needs at least 3")
    values = np.array([scores, successes], np.float64)
    if not np.isfinite(values).all():
        raise StrapError("a score or success is NaN or infinite: leave that cell out")
    if (values == values[:, :1]).all(axis=1).any():
        raise StrapError("all scores, or all successes, are the same: there is nothing to rank")
    found = spearmanr(values[0], values[1])
    return RankCorrelation(float(found.statistic), float(found.pvalue), len(scores))
