"""Exact alignment of candidates: int16 products rule out most cells, the others get exact costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strap.dtw.alignment import align
from strap.dtw.batching import as_floats
from strap.dtw.cpu.int16.gemm import multiply
from strap.dtw.cpu.int16.recurrence import fill_lower_costs
from strap.dtw.cpu.int16.workspace import LOADED_FRAMES, PackedQueries, Workspace, load
from strap.dtw.cpu.int16_bounds import MAX_INT16_DIM, Int16Bounds
from strap.dtw.cpu.query_stack import QueryStack
from strap.dtw.local_costs import compute_local_costs
from strap.dtw.pruned_alignment import ABOVE_THRESHOLD, align_pruned
from strap.dtw.steps import StepSet
from strap.dtw.types import Alignment, Floats, Frames, Ints, Singles
from strap.jit import njit

MIN_INT16_DIM = 24  # with fewer dimensions, exact costs of all cells are faster than bounds


@dataclass(frozen=True)
class CandidateOutcome:
    """The outcome of aligning one query with one trajectory."""

    is_exact: bool
    """False if a lower bound already exceeded the threshold"""
    match: Alignment | None
    """None if no path fits or the match costs more than the threshold"""


class ExactAligner:
    """Queries that are prepared once, then aligned exactly with many trajectories."""

    def __init__(self, queries: Sequence[Floats], steps: StepSet, metric: str) -> None:
        """Prepare queries from `batching.as_doubles`: float64, unit vectors under cosine."""
        self.queries, self.steps, self.metric = queries, steps, metric
        self._is_cosine = metric == "cosine"
        self._int16: Int16Bounds | None = None
        if MIN_INT16_DIM <= queries[0].shape[1] <= MAX_INT16_DIM:
            # "l2", because under cosine the queries are unit vectors already.
            stack = QueryStack.of(queries, "l2")
            if stack.is_ordinary:
                self._int16 = Int16Bounds(stack, steps, metric, group_rows=1)

    def align_candidate(
        self,
        query_indices: Sequence[int],
        trajectory: Frames,
        thresholds: Sequence[float],
        validate: Callable[[], object],
    ) -> list[CandidateOutcome]:
        """Align some queries with one trajectory.

        Args:
            query_indices: the queries' indices [a].
            trajectory: [m d].
            thresholds: of each query [a]: matches that cost more are not needed.
            validate: called if int16 bounds cannot be used, perhaps because of NaN or ∞; must
                raise if a number is invalid.
        """
        chosen, limits = np.asarray(query_indices, np.int64), np.asarray(thresholds, np.float64)
        found = self._align_pruned(chosen, trajectory, limits)
        if found is None:
            validate()
            found = self._align_fully(query_indices, as_floats(trajectory, self.metric))
        outcomes = []
        for (cost, start, stop), threshold in zip(found.tolist(), thresholds, strict=True):
            is_match = cost < np.inf and cost <= threshold
            match = Alignment(cost, int(start), int(stop)) if is_match else None
            outcomes.append(CandidateOutcome(start != ABOVE_THRESHOLD, match))
        return outcomes

    def align(self, query_index: int, trajectory: Frames) -> Alignment | None:
        """Return the best match of a query in a trajectory [m d], which is assumed valid."""
        (outcome,) = self.align_candidate([query_index], trajectory, [np.inf], lambda: None)
        return outcome.match

    def _align_fully(self, query_indices: Sequence[int], values: Frames) -> Floats:
        """Return cost, start and stop [a 3] from the exact costs of all cells."""
        queries = (self.queries[q] for q in query_indices)
        costs = (compute_local_costs(query, values, self._is_cosine) for query in queries)
        return np.array([align(each, self.steps) for each in costs])

    def _align_pruned(self, chosen: Ints, trajectory: Frames, thresholds: Floats) -> Floats | None:
        """Return cost, start and stop [a 3]; None if int16 bounds cannot be used."""
        if self._int16 is None:
            return None
        (frames,), stack = self._int16.make_readable([trajectory]), self._int16.stack
        height = -(-len(frames) // LOADED_FRAMES) * LOADED_FRAMES
        size = len(chosen) * height, self._int16.n_columns
        products = self._int16.buffers.get("all products", np.int32, *size)
        found = np.empty((len(chosen), 3))
        is_valid = _align_pairs(
            self._int16.pack_queries_for(frames),
            stack.frames,
            stack.borders,
            chosen,
            thresholds,
            frames,
            self.steps,
            self._int16.workspace,
            products.reshape(len(chosen), height, -1),
            found,
        )
        return found if is_valid else None


@njit
def _align_pairs(
    packed: PackedQueries,
    queries: Floats,
    borders: Ints,
    query_indices: Ints,
    thresholds: Floats,
    frames: NDArray[Any],
    steps: StepSet,
    workspace: Workspace,
    products: NDArray[np.int32],
    out: Floats,
) -> bool:
    """Write cost, start and stop of each pair into out [a 3]; return False if frames are unusable.

    Frames are unusable if they are NaN, ∞ or too large. All pairs are aligned in one call, because
    threads that return to Python in between would wait for each other.

    Args:
        packed: all queries, each a group by itself.
        queries: their concatenated frames in float64 [R d].
        borders: the offset of each query [q + 1].
        query_indices: the queries to align [a].
        thresholds: of each of these queries [a].
        frames: the trajectory's [m d], from `Int16Bounds.make_readable`.
        products: a buffer [a, m rounded up to a multiple of 64, columns].
    """
    M = frames.shape[0]
    terms = np.empty((3, M), np.float32)
    if not _multiply_all(packed, query_indices, frames, workspace, products, terms):
        return False
    scale = np.float64(packed.scale)
    unit = scale * scale if packed.is_cosine else scale
    for i in range(query_indices.shape[0]):
        q = query_indices[i]
        query = queries[borders[q] : borders[q + 1]]
        lower, factor = np.empty((query.shape[0], M)), (1 - 2.0**-20) / unit
        fill_lower_costs(packed, packed.begins[q], terms, products[i], factor, lower)
        align_pruned(query, frames, lower, thresholds[i], steps, packed.is_cosine, out[i])
    return True


@njit
def _multiply_all(
    packed: PackedQueries,
    query_indices: Ints,
    frames: NDArray[Any],
    workspace: Workspace,
    products: NDArray[np.int32],
    terms: Singles,
) -> bool:
    """Fill in the products of these queries and all frames, and the frames' terms [3 m].

    Return False if frames are unusable, as `_align_pairs` does.
    """
    no_scales = np.empty((0, 3), np.float32)
    for first in range(0, frames.shape[0], LOADED_FRAMES):
        count = load(packed, frames, no_scales, first, workspace)
        if count == 0:
            return False
        terms[:, first : first + count] = workspace.terms[:, :count]
        for i in range(query_indices.shape[0]):
            top, bottom = packed.blocks[query_indices[i]], packed.blocks[query_indices[i] + 1]
            part = products[i, first : first + LOADED_FRAMES]
            multiply(workspace.integers, count, packed.packed, top, bottom, part)
    return True
