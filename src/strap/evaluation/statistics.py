"""What a few dozen rollouts say: intervals and paired comparisons."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from scipy.stats import binomtest

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


def sign_flips(differences: Sequence[Fraction]) -> float:
    """Return p of the mean difference of tasks: each might as well have had the other sign.

    Two-sided and exact. It takes tasks, not rollouts, as what is drawn by chance, so it tells
    whether a method may help on another task.

    >>> sign_flips([Fraction(1, 10), Fraction(2, 10), Fraction(3, 10)])
    0.25
    """
    ways = {Fraction(0): 1}  # sum -> in how many ways it comes about
    for difference in differences:
        before, ways = ways, defaultdict(int)
        for total, count in before.items():
            ways[total + difference] += count
            ways[total - difference] += count
    found = abs(sum(differences, Fraction(0)))
    as_large = sum(count for total, count in ways.items() if abs(total) >= found)
    return float(Fraction(as_large, 2 ** len(differences)))
