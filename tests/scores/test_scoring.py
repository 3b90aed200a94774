from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.scores.naive_scores import naive_scores

from strap.errors import StrapError
from strap.scores import LabelledFrames, Labels, Scores, score
from strap.scores.scoring import effective_count
from strap.types import Match, Segment

REACH, GRASP, OPEN, PLACE = ("reach", "bowl"), ("grasp", "bowl"), ("open", "door"), ("place", "cup")
PRIOR = {"a": [REACH] * 4 + [GRASP] * 4, "b": [OPEN] * 8}
TARGET = {"t": [REACH] * 3 + [PLACE] * 2}


def match(
    query: Segment, segment: Segment, instruction: str = "", dataset: str = "p", rank: int = 1
) -> Match:
    return Match(query, segment, 0.0, rank, instruction, dataset)


def test_scores_by_hand() -> None:
    query = Segment("t", 0, 3)
    found = score([match(query, Segment("a", 2, 6))], TARGET, {"p": PRIOR})
    assert found.precision.value == 0.5  # frames 2 and 3 reach for the bowl, 4 and 5 grasp it
    assert found.precision.best == 1.0  # there are four frames that reach
    # At random: trajectory a half of the time, and there 0, 1, 2, 3 or 4 of 4 frames reach.
    assert 0.1 < found.precision.random < 0.4
    assert found.precision.lift == found.precision.value / found.precision.random
    assert (found.recall.value, found.recall.best) == (0.5, 1.0)
    assert found.recall.random == pytest.approx(found.precision.random)  # one match of 4 frames
    # Borders lie at 0, 4 and 8: start and stop are two frames away from them.
    assert (found.border_error.value, found.border_error.best) == (2.0, 0.0)
    assert 0 < found.border_error.random < 2
    assert (found.frames, found.matches, found.trajectories) == (4, 1, 1)


def test_the_prior_limits_precision_and_recall() -> None:
    query = Segment("t", 0, 3)
    found = score([match(query, Segment("b", 0, 8))], TARGET, {"p": PRIOR})
    assert (found.precision.value, found.precision.best) == (0.0, 0.5)  # 4 frames of 8 can reach
    assert (found.recall.value, found.recall.best) == (0.0, 1.0)
    one = score([match(query, Segment("a", 0, 1))], TARGET, {"p": PRIOR})
    assert (one.precision.value, one.precision.best) == (1.0, 1.0)
    assert (one.recall.value, one.recall.best) == (0.25, 0.25)


def test_a_prior_without_wanted_labels() -> None:
    found = score([match(Segment("t", 3, 5), Segment("a", 0, 4))], TARGET, {"p": PRIOR})
    assert (found.precision.value, found.precision.best, found.precision.random) == (0, 0, 0)
    assert (found.recall.value, found.recall.best, found.recall.random) == (0, 0, 0)
    assert found.precision.lift == float("inf")


def test_states_want_the_label_of_their_own_frame_alone() -> None:
    # Frame 2 reaches, the next one places: what follows is not wanted.
    prior = {"c": [REACH] * 5 + [PLACE] * 5}
    found = score([match(Segment("t", 2, 3), Segment("c", 0, 10))], TARGET, {"p": prior})
    assert (found.precision.value, found.precision.best) == (0.5, 0.5)


def test_overlapping_states_of_a_query_count_once() -> None:
    query = Segment("t", 0, 1)
    windows = [match(query, Segment("a", start, start + 4)) for start in (0, 2, 2)]
    found = score(windows, TARGET, {"p": PRIOR})
    assert found.frames == 6
    assert (found.precision.value, found.precision.best) == (4 / 6, 4 / 6)
    # For two queries they are two retrievals, but the prior's frames stay the same.
    twice = [windows[0], match(Segment("t", 1, 2), Segment("a", 0, 4))]
    both = score(twice, TARGET, {"p": PRIOR})
    assert (both.frames, both.precision.value, both.recall.value) == (8, 1.0, 1.0)


def test_queries_without_a_match_count_for_the_recall() -> None:
    target = {"t": [REACH] * 3 + [OPEN] * 2}
    rows = [match(Segment("t", 0, 3), Segment("a", 0, 4))]
    assert score(rows, target, {"p": PRIOR}).recall.value == 1.0
    queries = [Segment("t", 0, 3), Segment("t", 3, 5)]
    found = score(rows, target, {"p": PRIOR}, queries=queries)
    assert (found.recall.value, found.recall.best) == (4 / 12, 4 / 12)


def test_diversity() -> None:
    query = Segment("t", 0, 3)
    places = [("p", "a", "one"), ("p", "b", "two"), ("q", "a", "two"), ("q", "a", "")]
    rows = [match(query, Segment(key, 0, 4), task, name) for name, key, task in places]
    found = score(rows, TARGET, {"p": PRIOR, "q": PRIOR})
    assert found.tasks == {"two": 2, "one": 1, "(no instruction)": 1}
    assert found.trajectories == 3
    assert found.effective_tasks == pytest.approx(2**1.5)
    assert found.to_json()["precision"]["best"] == found.precision.best


def test_effective_count() -> None:
    assert effective_count([7]) == 1
    assert effective_count([5, 5, 5]) == pytest.approx(3)
    assert 1 < effective_count([98, 1, 1]) < 1.2


def test_what_cannot_be_scored() -> None:
    query, found = Segment("t", 0, 3), Segment("a", 2, 6)
    for rows, problem in (
        ([], "no match to score"),
        ([match(Segment("u", 0, 3), found)], "'u' has no skill labels"),
        ([match(Segment("t", 0, 6), found)], r"t\[0:6\] goes past the 5 frames"),
        ([match(query, Segment("a", 2, 9))], r"a\[2:9\] goes past the 8 frames"),
        ([match(query, Segment("z", 2, 6))], "trajectory 'z' of 'p' has no skill labels"),
        ([match(query, found, dataset="r")], r"is from 'r', but there are skill labels only of p:"),
    ):
        with pytest.raises(StrapError, match=problem):
            score(rows, TARGET, {"p": PRIOR})


@st.composite
def retrievals(draw: st.DrawFn) -> tuple[list[Match], Labels, dict[str, Labels], list[Segment]]:
    label = st.tuples(st.sampled_from("rgc"), st.sampled_from("xy"))
    trajectory = st.lists(label, min_size=1, max_size=7)
    target = {f"t{i}": draw(trajectory) for i in range(draw(st.integers(1, 2)))}
    prior = {
        name: {f"p{i}": draw(trajectory) for i in range(draw(st.integers(1, 2)))} for name in "AB"
    }

    def cut(labels: Labels) -> Segment:
        key = draw(st.sampled_from(sorted(labels)))
        start = draw(st.integers(0, len(labels[key]) - 1))
        return Segment(key, start, draw(st.integers(start + 1, len(labels[key]))))

    queries = list(dict.fromkeys(cut(target) for _ in range(draw(st.integers(1, 3)))))
    rows = []
    for rank in range(draw(st.integers(1, 5))):
        name = draw(st.sampled_from("AB"))
        rows.append(match(draw(st.sampled_from(queries)), cut(prior[name]), "", name, rank + 1))
    return rows, target, prior, queries


@given(retrievals())
def test_scores_agree_with_the_naive_ones(
    problem: tuple[list[Match], Labels, dict[str, Labels], list[Segment]],
) -> None:
    rows, target, prior, queries = problem
    found = score(rows, target, prior, queries=queries)
    naive = naive_scores(rows, target, prior, queries)
    assert found.precision.value == pytest.approx(naive.precision)
    assert found.precision.best == pytest.approx(naive.best_precision)
    assert found.recall.value == pytest.approx(naive.recall)
    assert found.recall.best == pytest.approx(naive.best_recall)
    assert found.border_error.value == pytest.approx(naive.border_error)
    assert_bounded(found)
    assert score(rows, target, LabelledFrames.of(prior), queries=queries) == found


def assert_bounded(found: Scores) -> None:
    for one in (found.precision, found.recall):
        assert 0 <= one.value <= one.best <= 1
        assert 0 <= one.random <= 1
