"""Retrieval of the single prior states that are nearest to any target state: D-S, BR and FR.

The cost of a prior frame is its distance to the nearest target frame. The distances of all pairs
are computed block by block in float32, only to shortlist prior frames. The costs of the shortlist
are computed again from differences in float64, so that block sizes and devices cannot change the
result.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from strap.dtw import SearchStatistics
from strap.errors import StrapError
from strap.retrieval.catalogue import Problem, Retrieved
from strap.retrieval.options import MatchOptions
from strap.search.corpus import Corpus
from strap.types import Array, Matches, Segment

if TYPE_CHECKING:
    import torch

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
BLOCK_FRAMES = 16_384
"""prior frames in one block, which is compared with all target frames at once"""


@dataclass(frozen=True, eq=False)
class PriorFrames:
    """Every prior frame that may be retrieved, with bounds on its squared distance."""

    trajectory: Ints  # [f] number in the corpus
    frame: Ints  # [f]
    squared: Floats  # [f] approximate squared distance to the nearest target frame
    error: Floats  # [f] bound on the error of `squared`


@dataclass(frozen=True, eq=False)
class States:
    """Prior frames with their exact costs, cheapest first."""

    trajectory: Ints  # [n]
    frame: Ints  # [n]
    target: Ints  # [n] row of the nearest target frame
    cost: Floats  # [n]


def retrieve_states(problem: Problem) -> Retrieved:
    """Retrieve the prior frames nearest to any target frame, each padded to a short segment.

    Frame t becomes frames t−padding … t+padding−1, clipped to its trajectory, so that a policy with
    a history can be trained on it. Its query is a segment of one frame: the nearest target frame.
    """
    target, priors = problem.stores()
    corpus = Corpus(priors)
    rows = [(q.trajectory_id, t) for q in problem.queries for t in range(q.start, q.stop)]
    vectors = np.concatenate([target[q.trajectory_id][q.start : q.stop] for q in problem.queries])
    comparison = _Comparison(
        vectors, corpus, problem.options.metric, _excluded_targets(problem, corpus)
    )
    frames = comparison.approximate(problem)
    states = choose_states(comparison, frames, problem.options)
    ranks: Counter[int] = Counter()
    found = []
    for trajectory, frame, row, cost in zip(
        states.trajectory, states.frame, states.target, states.cost, strict=True
    ):
        prior, key = corpus.names[int(trajectory)]
        length = problem.priors[prior].trajectories[key].length
        segment = pad_state(key, int(frame), length, problem.options.padding)
        name, t = rows[int(row)]
        ranks[int(row)] += 1
        query = Segment(name, t, t + 1)
        found.append(problem.match(query, prior, segment, float(cost), ranks[int(row)]))
    pairs = len(frames.frame) * len(rows)
    return Retrieved(Matches(tuple(found)), SearchStatistics(pairs=pairs, evaluated=len(found)))


def pad_state(trajectory_id: str, frame: int, length: int, padding: int) -> Segment:
    """Return the segment of `padding` frames before a state and `padding` frames from it on.

    >>> str(pad_state("demo_0", 3, 100, 5)), str(pad_state("demo_0", 50, 100, 5))
    ('demo_0[0:8]', 'demo_0[45:55]')
    """
    return Segment(trajectory_id, max(0, frame - padding), min(length, frame + padding))


def choose_states(comparison: _Comparison, frames: PriorFrames, options: MatchOptions) -> States:
    """Return the prior frames to keep under the options, with exact costs, cheapest first."""
    count = len(frames.frame)
    if not count:
        raise StrapError("there is no prior trajectory to compare with: all are also in the target")
    low, high = frames.squared - frames.error, frames.squared + frames.error
    if options.threshold is not None:
        # Only these frames can be the cheapest or the most expensive, by their bounds.
        ends = comparison.exact(frames, np.flatnonzero((low <= high.min()) | (high >= low.max())))
        limit = ends.cost[-1] - options.threshold * (ends.cost[-1] - ends.cost[0])
        states = comparison.exact(frames, np.flatnonzero(low <= comparison.squared(limit)))
        keep = int(np.searchsorted(states.cost, limit, side="right"))
    else:
        wanted = int(options.top_k or 0) or max(1, round(float(options.fraction or 0) * count))
        keep = min(wanted, count)
        # At least `keep` frames cost no more than the cutoff, so none surely above it is kept.
        cutoff = np.partition(high, keep - 1)[keep - 1]
        states = comparison.exact(frames, np.flatnonzero(low <= cutoff))
    if options.max_cost is not None:
        keep = min(keep, int(np.searchsorted(states.cost, options.max_cost, side="right")))
    return States(*(getattr(states, name)[:keep] for name in States.__dataclass_fields__))


def _excluded_targets(problem: Problem, corpus: Corpus) -> dict[int, Bools]:
    """Return prior trajectory -> the target frames that must not match it, as flags [q]."""
    sizes = [len(query) for query in problem.queries]
    excluded: dict[int, list[Bools]] = {}
    for index, names in enumerate(problem.excluded()):
        for name in names:
            number = corpus.numbers[name]
            if number not in excluded:
                excluded[number] = [np.zeros(size, np.bool_) for size in sizes]
            excluded[number][index][:] = True
    return {number: np.concatenate(flags) for number, flags in excluded.items()}


class _Comparison:
    """The comparison of all target frames with the prior frames of a corpus."""

    def __init__(
        self, target: Array, corpus: Corpus, metric: str, excluded: dict[int, Bools]
    ) -> None:
        self.metric, self.corpus, self.excluded = metric, corpus, excluded
        self.target = self._prepare(target)  # float64 [q d]
        self.norms = np.einsum("qd,qd->q", self.target, self.target)

    def _prepare(self, frames: Array) -> Floats:
        """Return the frames in float64; for cosine, scaled to length 1/√2.

        The squared distance of two vectors of length 1/√2 is 1 − cos, the cosine metric's cost.
        """
        values = np.asarray(frames, np.float64)
        if self.metric == "l2":
            return values
        lengths = np.linalg.norm(values, axis=1, keepdims=True)
        return np.asarray(values / np.maximum(lengths, 1e-300) / math.sqrt(2))

    def squared(self, cost: float) -> float:
        """Return the squared distance of prepared frames that corresponds to a cost."""
        return cost**2 if self.metric == "l2" else cost

    def approximate(self, problem: Problem) -> PriorFrames:
        """Return the approximate cost of every prior frame that may be retrieved."""
        import torch

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        target = torch.from_numpy(self.target.astype(np.float32)).to(device)
        norms = torch.from_numpy(self.norms).to(device)
        parts = [self._bound(*block, target, norms) for block in self._blocks(problem)]
        if not parts:
            empty = np.zeros(0)
            return PriorFrames(empty.astype(np.int64), empty.astype(np.int64), empty, empty)
        return PriorFrames(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def _blocks(self, problem: Problem) -> Iterator[tuple[Ints, Ints, Array]]:
        """Yield (trajectory, frame, vectors) of the prior frames that some target frame may match.

        A block has frames of many trajectories that every target frame may match, or of a single
        trajectory that some target frames must not match.
        """
        for block in self.corpus.blocks(problem.progress):
            lengths = np.diff(block.offsets)
            numbers = np.repeat(block.ids, lengths)
            frame = np.arange(len(numbers)) - np.repeat(block.offsets[:-1], lengths)
            has_exclusions = np.isin(numbers, list(self.excluded))
            free = np.flatnonzero(~has_exclusions)
            for start in range(0, len(free), BLOCK_FRAMES):
                rows = free[start : start + BLOCK_FRAMES]
                yield numbers[rows], frame[rows], block.frames[rows]
            for number in np.unique(numbers[has_exclusions]):
                rows = np.flatnonzero(numbers == number)
                if not self.excluded[int(number)].all():
                    yield numbers[rows], frame[rows], block.frames[rows]

    def _bound(
        self,
        numbers: Ints,
        frame: Ints,
        vectors: Array,
        target: torch.Tensor,
        norms: torch.Tensor,
    ) -> tuple[Ints, Ints, Floats, Floats]:
        """Return the block's approximate squared distances and bounds on their errors."""
        import torch

        values = self._prepare(vectors)
        prior_norms = np.einsum("fd,fd->f", values, values)
        product = torch.from_numpy(values.astype(np.float32)).to(target.device) @ target.T
        squared = norms[None] - 2 * product.double()
        if (is_excluded := self.excluded.get(int(numbers[0]))) is not None:
            squared[:, torch.from_numpy(is_excluded).to(target.device)] = math.inf
        least = squared.min(dim=1).values.cpu().numpy() + prior_norms
        # Each of the d products and sums, and the rounding of both factors, has an error of at
        # most 2^-24 of a term; the absolute terms sum to at most |a||b| <= (a² + b²) / 2.
        share = (values.shape[1] + 8) * 2.0**-23
        return numbers, frame, least, share * (prior_norms + float(self.norms.max())) + 1e-30

    def exact(self, frames: PriorFrames, chosen: Ints) -> States:
        """Return the chosen prior frames with their exact costs, cheapest first."""
        cost, nearest = np.empty(len(chosen)), np.empty(len(chosen), np.int64)
        trajectory, frame = frames.trajectory[chosen], frames.frame[chosen]
        for number in np.unique(trajectory):
            rows = np.flatnonzero(trajectory == number)
            values = self._prepare(self.corpus.fetch(int(number))[frame[rows]])
            is_excluded = self.excluded.get(int(number))
            for row, value in zip(rows, values, strict=True):
                cost[row], nearest[row] = self._find_nearest(value, is_excluded)
        order = np.lexsort((frame, trajectory, cost))
        return States(trajectory[order], frame[order], nearest[order], cost[order])

    def _find_nearest(self, value: Floats, is_excluded: Bools | None) -> tuple[float, int]:
        """Return the exact cost of a prior frame, and the target frame nearest to it."""
        squared = self.norms - 2 * (self.target @ value)
        if is_excluded is not None:
            squared = np.where(is_excluded, np.inf, squared)
        slack = 1e-12 * (float(self.norms.max()) + float(value @ value)) * len(value)
        near = np.flatnonzero(squared <= squared.min() + slack)
        distances = ((self.target[near] - value) ** 2).sum(axis=1)
        best = int(np.argmin(distances))
        cost = float(distances[best])
        return (math.sqrt(cost) if self.metric == "l2" else cost), int(near[best])
