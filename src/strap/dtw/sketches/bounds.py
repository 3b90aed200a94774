"""Lower bounds of costs from sketches; for metric "l2" only."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from itertools import pairwise

import numpy as np

from strap.cpus import count_cpus
from strap.dtw.batching import as_doubles
from strap.dtw.cpu.int16_bounds import Int16Bounds
from strap.dtw.cpu.query_stack import QueryStack
from strap.dtw.cpu.rounding import subtract_rounding
from strap.dtw.sketches.sketcher import SketchBlock, Sketcher
from strap.dtw.steps import StepSet, count_path_cells
from strap.dtw.types import Bools, Floats, Frames, Ints


class SketchBounds:
    """Queries prepared for lower bounds from sketches of one kind."""

    def __init__(
        self, sketcher: Sketcher, sketched: Sequence[tuple[Floats, Floats]], steps: StepSet
    ) -> None:
        """Prepare the queries' sketches and their errors, which come from `Sketcher.finish`."""
        self.sketcher, self.n_queries, self._steps = sketcher, len(sketched), steps
        self._is_too_short = np.array([[len(rows) < sketcher.every] for rows, _ in sketched])
        means = [_group_means(rows, sketcher.every) for rows, _ in sketched]
        self._stack = stack = QueryStack.of(means, "l2", is_centered=False)
        self._errors = np.array([[errors.max()] for _, errors in sketched])
        self._int16 = Int16Bounds(stack, steps, "l2", 1) if stack.is_ordinary else None

    def bound_pairs(self, block: SketchBlock, positions: Ints, wanted: Bools) -> Floats:
        """Return lower bounds [q t] of the wanted pairs, ∞ if no path fits; 0 for the others.

        Args:
            block: the sketches.
            positions: the trajectories' positions in the block [t].
            wanted: the pairs whose bounds are wanted [q t].
        """
        if self._int16 is None:
            return np.zeros(wanted.shape)
        bounds = self._int16.bound_sketches(block, positions, wanted)
        lengths = (block.offsets[positions + 1] - block.offsets[positions]).astype(np.float64)
        n_cells = count_path_cells(self._steps, self._stack.n_rows, lengths)
        lower = subtract_rounding(bounds, n_cells, self._stack.scale)
        errors = n_cells * self._errors * (1 + 1e-9)
        factor = self.sketcher.every * (1 - 1e-9) / self.sketcher.stretch
        return np.where(self._is_too_short, 0, np.maximum((lower - errors) * factor, 0))


def prepare_bounds(
    queries: Sequence[Frames], sketchers: Sequence[Sketcher], steps: StepSet, pool: Executor
) -> list[SketchBounds]:
    """Return bounds for each sketcher; sketchers that share directions share a projection."""
    frames = np.concatenate([as_doubles(query) for query in queries])
    borders = np.cumsum([0, *map(len, queries)])
    parts = np.array_split(frames, count_cpus())  # few products of many rows: small ones are slow
    sketched: dict[int, list[tuple[Floats, Floats]]] = {}
    longest: Sketcher | None = None
    for i in sorted(range(len(sketchers)), key=lambda i: -sketchers[i].size):
        sketcher = sketchers[i]
        if longest is None or not sketcher.shares_directions(longest):
            longest, projected = sketcher, list(pool.map(sketcher.project, parts))
        finished = zip(*pool.map(sketcher.finish, *zip(*projected, strict=True)), strict=True)
        rows, errors = (np.concatenate(part) for part in finished)
        sketched[i] = [(rows[a:b], errors[a:b]) for a, b in pairwise(borders)]
    each = range(len(sketchers))
    return list(pool.map(lambda i: SketchBounds(sketchers[i], sketched[i], steps), each))


def _group_means(sketches: Floats, every: int) -> Floats:
    """Return the means [n // g, r] of every g sketches; the mean of all if there are fewer."""
    count = len(sketches) // every
    groups = sketches[: count * every].reshape(count, every, -1) if count else sketches[None]
    return np.asarray(groups.mean(axis=1), np.float64)
