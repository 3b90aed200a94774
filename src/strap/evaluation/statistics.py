"""What a few dozen rollouts say: intervals and paired comparisons."""

from __future__ import annotations

import math
from dataclasses import dataclass

Z95 = 1.959963984540054


def wilson(successes: int, trials: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's interval for a rate; (0, 1) where there were no trials.

    >>> low, high = wilson(10, 20)
    >>> round(low, 3), round(high, 3)
    (0.299, 0.701)
    """
    if trials == 0:
        return 0.0, 1.0
    rate, spread = successes / trials, z * z / trials
    middle = (rate + spread / 2) / (1 + spread)
    half = z * math.sqrt(rate * (1 - rate) / trials + spread / (4 * trials)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True)
class Comparison:
    """Two policies on the same initial states."""

    both: int
    first_only: int
    second_only: int
    neither: int
    p_value: float
    """McNemar's exact test: how likely so one-sided a split of the differing states is by chance"""


def mcnemar(first: dict[int, bool], second: dict[int, bool]) -> Comparison:
    """Compare successes by initial state; states that only one was run on are left out."""
    shared = sorted(first.keys() & second.keys())
    pairs = [(first[state], second[state]) for state in shared]
    one, two = pairs.count((True, False)), pairs.count((False, True))
    differing = one + two
    tail = sum(math.comb(differing, k) for k in range(min(one, two) + 1)) / 2**differing
    return Comparison(
        pairs.count((True, True)), one, two, pairs.count((False, False)), min(1.0, 2 * tail)
    )
