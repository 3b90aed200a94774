"""Exact evaluation of candidates: a quick bound of the pair, then an alignment of what is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strap.dtw.alignment import align
from strap.dtw.batching import as_floats
from strap.dtw.cpu.float32_recurrence import Real
from strap.dtw.cpu.int16.gemm import multiply
from strap.dtw.cpu.int16.recurrence import accumulate_frames, fill_lower_costs
from strap.dtw.cpu.int16.workspace import FRAMES, PackedQueries, Workspace, load
from strap.dtw.cpu.int16_bounds import LARGEST_DIM, Int16Queries
from strap.dtw.cpu.policy import CpuPolicy
from strap.dtw.cpu.query_stack import QueryStack
from strap.dtw.cpu.rounding import U
from strap.dtw.local_costs import compute_local_costs
from strap.dtw.memory import Buffers
from strap.dtw.pruned_alignment import ABOVE_THRESHOLD, NO_PATH, align_pruned
from strap.dtw.steps import StepSet
from strap.dtw.types import Alignment, Floats, Frames, Ints
from strap.jit import njit

SMALL_DIM = 24  # below, every cell's exact cost is cheaper than its bound


@dataclass(frozen=True)
class Evaluation:
    """What came of one query at one trajectory."""

    is_exact: bool
    """False where a bound was enough to tell that the match costs more than the threshold"""
    match: Alignment | None
    """None where no path fits, or where the match costs more than the threshold"""


class Evaluator:
    """Queries, prepared once and aligned exactly with many trajectories."""

    def __init__(
        self, queries: Sequence[Floats], steps: StepSet, metric: str, policy: CpuPolicy
    ) -> None:
        """Queries are float64, and unit vectors for cosine: `batching.as_doubles` makes them so."""
        self.queries, self.steps, self.metric, self.policy = queries, steps, metric, policy
        self._is_cosine = metric == "cosine"
        self._buffers = Buffers()
        self._int16: Int16Queries | None = None
        if SMALL_DIM <= queries[0].shape[1] <= LARGEST_DIM:
            # Queries have been divided by their norms already.
            stack = QueryStack.of(queries, "l2")
            if stack.is_ordinary:
                each = [range(q, q + 1) for q in range(len(queries))]
                self._int16 = Int16Queries(stack, metric, each, policy)

    def evaluate(
        self,
        numbers: Sequence[int],
        trajectory: Frames,
        thresholds: Sequence[float],
        validate: Callable[[], object],
    ) -> list[Evaluation]:
        """Return what comes of the queries of these numbers at a trajectory [m d].

        Each has a threshold: what costs more need not be aligned. `validate` is called where the
        trajectory's numbers are not ordinary ones.
        """
        chosen, limits = np.asarray(numbers, np.int64), np.asarray(thresholds, np.float64)
        found = self._by_bounds(chosen, trajectory, limits)
        if found is None:
            validate()
            found = self._without_bounds(numbers, as_floats(trajectory, self.metric))
        return [
            Evaluation(start != ABOVE_THRESHOLD, _match(cost, int(start), int(stop), threshold))
            for (cost, start, stop), threshold in zip(found.tolist(), thresholds, strict=True)
        ]

    def align(self, number: int, trajectory: Frames) -> Alignment | None:
        """Return the best match of a query in a trajectory [m d], which is taken as valid."""
        (evaluation,) = self.evaluate([number], trajectory, [np.inf], lambda: None)
        return evaluation.match

    def _without_bounds(self, numbers: Sequence[int], values: Frames) -> Floats:
        """Return cost, start and stop [a 3] from the exact costs of all cells."""
        costs = (compute_local_costs(self.queries[q], values, self._is_cosine) for q in numbers)
        return np.array([align(each, self.steps) for each in costs])

    def _by_bounds(self, numbers: Ints, trajectory: Frames, thresholds: Floats) -> Floats | None:
        """Return cost, start and stop [a 3]; None where integers can't tell."""
        if self._int16 is None:
            return None
        stack, packed = self._int16.stack, self._int16.packed
        frames = self._int16.in_one_piece(trajectory)
        is_double = frames.dtype == np.float64
        height = -(-len(frames) // FRAMES) * FRAMES
        products = self._buffers.get(
            "products", np.int32, len(numbers) * height, self._int16.columns
        )
        found = np.empty((len(numbers), 3))
        is_valid = _evaluate_pairs(
            packed,
            stack.frames,
            stack.borders,
            frames.view(np.uint16) if frames.dtype == np.float16 else frames,
            packed.mean if is_double else packed.single_mean,
            packed.scale if is_double else np.float32(packed.scale),
            numbers,
            thresholds,
            self.steps,
            self._int16.workspace,
            products,
            found,
        )
        return found if is_valid else None


def _match(cost: float, start: int, stop: int, threshold: float) -> Alignment | None:
    return Alignment(cost, start, stop) if cost < np.inf and cost <= threshold else None


@njit
def _evaluate_pairs(
    packed: PackedQueries,
    queries: Floats,
    borders: Ints,
    frames: NDArray[Any],
    mean: Frames,
    scale: Real,
    numbers: Ints,
    thresholds: Floats,
    steps: StepSet,
    workspace: Workspace,
    products: NDArray[np.int32],
    out: Floats,
) -> bool:
    """Write cost, start and stop of each pair into out [a 3]: a bound first, then exact.

    Each query is a group of its own. Frames are as they lie in memory. `products` holds those of
    every query with all frames, filled up to whole 64. Returns False where frames are too large, or
    no numbers. It is one call: threads that come back to Python in between wait for each other.
    """
    M = frames.shape[0]
    unit = packed.scale * packed.scale if packed.is_cosine else packed.scale
    height = products.shape[0] // numbers.shape[0]
    beta, scales, error_bounds = np.empty((3, M), np.float32)
    no_scales = np.empty((0, 3), np.float32)
    state = np.full((3, packed.terms.shape[1]), np.float32(np.inf))
    for first in range(0, M, FRAMES):
        count = load(packed, frames, no_scales, mean, scale, first, workspace)
        if count == 0:
            return False
        beta[first : first + count] = workspace.beta[:count]
        scales[first : first + count] = workspace.scales[:count]
        error_bounds[first : first + count] = workspace.error_bounds[:count]
        for i in range(numbers.shape[0]):
            place = i * height + first
            part = products[place : place + FRAMES]
            q = numbers[i]
            top, bottom = packed.blocks[q], packed.blocks[q + 1]
            multiply(workspace.integers, count, packed.packed, top, bottom, part)
            if steps.is_strap:
                accumulate_frames(packed, q, count, workspace, part, state)
    for i in range(numbers.shape[0]):
        q = numbers[i]
        N = borders[q + 1] - borders[q]
        if steps.is_strap:
            least = state[2, packed.ends[q] - 1] * (1 - (N + 8) * U) / unit
            if least > thresholds[i]:
                out[i, 0], out[i, 1], out[i, 2] = np.inf, ABOVE_THRESHOLD, 0
                if least == np.inf:
                    out[i, 1] = NO_PATH
                continue
        lower, part = np.empty((N, M)), products[i * height : i * height + M]
        shrink = (1 - 2.0**-20) / unit
        fill_lower_costs(packed, packed.begins[q], beta, scales, error_bounds, part, shrink, lower)
        align_pruned(
            queries[borders[q] : borders[q + 1]],
            frames,
            lower,
            thresholds[i],
            steps,
            packed.is_cosine,
            out[i],
        )
    return True
