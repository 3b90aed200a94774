"""How well a score foretells success."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from strap.errors import StrapError


@dataclass(frozen=True)
class RankCorrelation:
    """Spearman's correlation of a score with success."""

    coefficient: float
    """1: the better the score the more successes; 0: it says nothing; -1: the other way round"""
    p_value: float
    """two-sided, of no relation"""
    count: int
    """pairs compared"""


def rank_correlation(scores: Sequence[float], successes: Sequence[float]) -> RankCorrelation:
    """Return how well a score ranks cells (task x method) by their success.

    Args:
        scores: one for each cell.
        successes: of the same cells, as counts or rates.

    >>> round(rank_correlation([0.2, 0.5, 0.6, 0.9], [3, 8, 7, 15]).coefficient, 3)
    0.8
    """
    from scipy.stats import spearmanr  # takes a second to import; most who score need none

    if len(scores) != len(successes):
        raise StrapError(
            f"{len(scores)} scores and {len(successes)} successes: give one of each for every cell"
        )
    if len(scores) < 3:
        raise StrapError(f"{len(scores)} cells: a rank correlation needs at least 3")
    values = np.array([scores, successes], np.float64)
    if not np.isfinite(values).all():
        raise StrapError("a score or success is no finite number: leave that cell out")
    if (values == values[:, :1]).all(axis=1).any():
        raise StrapError("all scores, or all successes, are the same: there is nothing to rank")
    found = spearmanr(values[0], values[1])
    return RankCorrelation(float(found.statistic), float(found.pvalue), len(scores))
