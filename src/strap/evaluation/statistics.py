"""What a few dozen rollouts say: intervals and paired comparisons."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from scipy.stats import binomtest, permutation_test

Start = TypeVar("Start", bound=Hashable)
"""where a rollout begins: an initial state's number, or that with the task and the seed"""


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval for a rate; (0, 1) where there were no trials.

    >>> low, high = wilson(10, 20)
    >>> round(low, 3), round(high, 3)
    (0.299, 0.701)
    """
    if trials == 0:
        return 0.0, 1.0
    interval = binomtest(successes, trials).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


@dataclass(frozen=True)
class Comparison:
    """Two policies on the same initial states."""

    both: int
    first_only: int
    second_only: int
    neither: int
    p_value: float
    """McNemar's exact test: how likely so one-sided a split of the differing states is by chance"""


def mcnemar(first: Mapping[Start, bool], second: Mapping[Start, bool]) -> Comparison:
    """Compare successes by initial state; states that only one was run on are left out."""
    pairs = [(first[start], second[start]) for start in first.keys() & second.keys()]
    one, two = pairs.count((True, False)), pairs.count((False, True))
    p_value = float(binomtest(one, one + two).pvalue) if one + two else 1.0
    both, neither = pairs.count((True, True)), pairs.count((False, False))
    return Comparison(both, one, two, neither, p_value)


def sign_flips(differences: Sequence[float]) -> float:
    """Return p of the mean difference of tasks: each might as well have had the other sign.

    Two-sided; exact for up to 13 tasks. It takes tasks, not rollouts, as what is drawn by chance,
    so it tells whether a method may help on another task.

    >>> sign_flips([0.1, 0.2, 0.3])
    0.25
    """
    found = permutation_test(
        (np.array(differences),), np.mean, permutation_type="samples", n_resamples=2**13, rng=0
    )
    return float(found.pvalue)
