"""Retrieval of whole trajectories whose instructions are most similar to the target's."""

from __future__ import annotations

import numpy as np

from strap.dtw import SearchStatistics
from strap.encoders.language import embed_instructions
from strap.errors import StrapError
from strap.retrieval.catalogue import Problem, Retrieved
from strap.retrieval.selection import select
from strap.types import Matches, Segment


def retrieve_by_language(problem: Problem) -> Retrieved:
    """Retrieve the trajectories whose instructions are nearest, by cosine of their embeddings.

    Queries with the same instruction share its trajectories: the first query gets the nearest
    trajectory, the next query the second, and so on.
    """
    groups: dict[str, list[int]] = {}
    for number, query in enumerate(problem.queries):
        instruction = problem.target.instruction(query.trajectory_id)
        groups.setdefault(instruction, []).append(number)
    places = [(n, key) for n, prior in enumerate(problem.priors) for key in prior.trajectories]
    instructions = [problem.priors[number].instruction(key) for number, key in places]
    _require_instructions([*groups], instructions)
    texts = list(dict.fromkeys([*groups, *instructions]))
    vectors = embed_instructions(texts, problem.options.text_encoder).astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    row_of = {text: number for number, text in enumerate(texts)}
    excluded = problem.excluded()
    found: list[list[tuple[float, int]]] = []  # for each instruction (cost, place), nearest first
    for instruction, members in groups.items():
        excluded_by_any = set.union(*(excluded[number] for number in members))
        costs = 1 - vectors[[row_of[text] for text in instructions]] @ vectors[row_of[instruction]]
        pairs = [
            (max(float(c), 0.0), i) for i, c in enumerate(costs) if places[i] not in excluded_by_any
        ]
        found.append(sorted(pairs))
    kept = select([[c for c, _ in pairs] for pairs in found], [1] * len(found), problem.options)
    rows = []
    for members, pairs, count in zip(groups.values(), found, kept, strict=True):
        for rank, (cost, place) in enumerate(pairs[:count]):
            query = problem.queries[members[rank % len(members)]]
            number, key = places[place]
            whole = Segment(key, 0, problem.priors[number].trajectories[key].length)
            rows.append(problem.match(query, number, whole, cost, 1 + rank // len(members)))
    return Retrieved(Matches(tuple(rows)), SearchStatistics())


def _require_instructions(target: list[str], prior: list[str]) -> None:
    for whose, texts in (("target", target), ("prior", prior)):
        if not all(texts):
            raise StrapError(
                f"method 'language' compares instructions, but a trajectory of the {whose} has "
                "none: choose another method"
            )
