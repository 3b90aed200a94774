from __future__ import annotations

import pytest

from strap.errors import StrapError
from strap.scores import rank_correlation


def test_rank_correlation() -> None:
    # Ranks 1 2 3 4 against 1 3 2 4: 1 - 6 * (1 + 1) / (4 * 15).
    found = rank_correlation([0.2, 0.5, 0.6, 0.9], [3, 8, 7, 15])
    assert found.coefficient == pytest.approx(0.8)
    assert found.count == 4
    assert 0 < found.p_value < 1
    assert rank_correlation([1, 2, 3], [30, 20, 10]).coefficient == pytest.approx(-1)


def test_ties_share_their_rank() -> None:
    # Ranks 1 2.5 2.5 4 against 1 2 3 4: Pearson's correlation of the ranks.
    assert rank_correlation([0, 1, 1, 2], [1, 2, 3, 4]).coefficient == pytest.approx(0.9**0.5)


@pytest.mark.parametrize(
    ("scores", "successes", "problem"),
    [
        ([1, 2, 3], [1, 2], "3 scores and 2 successes"),
        ([1, 2], [1, 2], "2 cells: a rank correlation needs at least 3"),
        ([1, 2, float("nan")], [1, 2, 3], "is NaN or infinite"),
        ([1, 2, 3], [5, 5, 5], "nothing to rank"),
    ],
)
def test_what_cannot_be_ranked(scores: list[float], successes: list[float], problem: str) -> None:
    with pytest.raises(StrapError, match=problem):
        rank_correlation(scores, successes)
