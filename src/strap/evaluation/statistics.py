"""Statistics of rollouts: confidence intervals and paired comparisons."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from scipy.stats import binomtest

Start = TypeVar("Start", bound=Hashable)
"""the start of a rollout: the number of its initial state, perhaps with task and seed"""


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a success rate; (0, 1) without trials.

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
    """Counts of the successes of two policies on the same initial states."""

    both: int
    first_only: int
    second_only: int
    neither: int
    p_value: float
    """McNemar's exact test: the chance of an at least as uneven split of the differing states"""


def mcnemar(first: Mapping[Start, bool], second: Mapping[Start, bool]) -> Comparison:
    """Compare successes by initial state; ignore states on which only one policy was run."""
    pairs = [(first[start], second[start]) for start in first.keys() & second.keys()]
    one, two = pairs.count((True, False)), pairs.count((False, True))
    p_value = float(binomtest(one, one + two).pvalue) if one + two else 1.0
    both, neither = pairs.count((True, True)), pairs.count((False, False))
    return Comparison(both, one, two, neither, p_value)


def sign_flips(differences: Sequence[Fraction]) -> float:
    """Return the p-value of an exact two-sided sign-flip test of the tasks' mean difference.

    Under the null hypothesis, every task's difference could as well have the opposite sign. Tasks,
    not rollouts, are the random sample: the test is about whether a method helps on other tasks.

    >>> sign_flips([Fraction(1, 10), Fraction(2, 10), Fraction(3, 10)])
    0.25
    """
    counts = {Fraction(0): 1}  # sum -> number of sign choices that give it
    for difference in differences:
        previous, counts = counts, defaultdict(int)
        for total, count in previous.items():
            counts[total + difference] += count
            counts[total - difference] += count
    observed = abs(sum(differences, Fraction(0)))
    as_large = sum(count for total, count in counts.items() if abs(total) >= observed)
    return float(Fraction(as_large, 2 ** len(differences)))
