"""A cascade of sketches: short ones bound all pairs, longer ones the remaining candidates."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from strap.dtw.batching import split_into_tiles
from strap.dtw.sketches.bounds import prepare_bounds
from strap.dtw.sketches.sketcher import SketchBlock, Sketches
from strap.dtw.steps import StepSet
from strap.dtw.types import Bools, Floats, Frames, Ints

TILE_SKETCHES = 4096  # sketches of the shortest kind that are bounded in one call
MAX_TASK_TRAJECTORIES = 32  # trajectories whose longer sketches are bounded in one call
MIN_TASKS = 16  # if there are as many trajectories: enough tasks to keep all threads busy


@dataclass(frozen=True, eq=False)
class _Span:
    """A block of trajectories, in sketches of all kinds."""

    part: int  # index of the part of the library
    first: int  # column of its first trajectory in the bounds
    kinds: Sequence[SketchBlock]

    def __len__(self) -> int:
        return len(self.kinds[0].ids)


class Cascade:
    """Bounds of all pairs from the shortest sketches, tightened with longer ones in stages."""

    def __init__(
        self,
        sketches: Sequence[Sequence[Sketches]],
        queries: Sequence[Frames],
        steps: StepSet,
        pool: Executor,
    ) -> None:
        """Prepare the queries for the kinds of sketches of each part of a library."""
        self.n_stages = max(len(kinds) for kinds in sketches) - 1
        """the number of kinds after the shortest"""
        self._pool = pool
        self._bounds = [
            prepare_bounds(queries, [one.sketcher for one in kinds], steps, pool)
            for kinds in sketches
        ]
        self._spans: list[_Span] = []
        count = 0
        for part, kinds in enumerate(sketches):
            for blocks in zip(*(one.blocks() for one in kinds), strict=True):
                self._spans.append(_Span(part, count, blocks))
                count += len(blocks[0].ids)
        self._n_applied = np.zeros((len(queries), count), np.int8)
        """[q t] the number of stages that have tightened each pair"""

    def bound_all(self) -> tuple[Ints, Floats]:
        """Return global indices [t] and lower bounds [q t] from the shortest sketches."""
        ids = [np.empty(0, np.int64), *(span.kinds[0].ids for span in self._spans)]
        tasks = [
            (span, np.arange(tile.start, tile.stop))
            for span in self._spans
            for tile in split_into_tiles(span.kinds[0].offsets, TILE_SKETCHES)
        ]
        bounds = np.zeros(self._n_applied.shape)
        self._raise_bounds(0, tasks, np.ones(bounds.shape, np.bool_), bounds)
        return np.concatenate(ids, dtype=np.int64), bounds

    def tighten(self, stage: int, bounds: Floats, candidates: Bools) -> Floats:
        """Return bounds [q t], tightened for the candidates [q t] with the sketches of a stage."""
        wanted = candidates & (self._n_applied <= stage)
        self._n_applied[wanted] = stage + 1
        tasks = []
        for span in self._spans:
            if stage + 1 < len(span.kinds):
                is_wanted = wanted[:, span.first : span.first + len(span)].any(axis=0)
                positions = np.flatnonzero(is_wanted)
                size = min(MAX_TASK_TRAJECTORIES, len(positions) // MIN_TASKS + 1)
                tasks += [(span, positions[i : i + size]) for i in range(0, len(positions), size)]
        tightened = bounds.copy()
        self._raise_bounds(stage + 1, tasks, wanted, tightened)
        return tightened

    def _raise_bounds(
        self, kind: int, tasks: Sequence[tuple[_Span, Ints]], wanted: Bools, bounds: Floats
    ) -> None:
        """Raise the bounds [q t] of wanted pairs [q t] in place, with one kind of sketches.

        A task is a span and the positions [p] of the trajectories to bound in one call.
        """

        def work(task: tuple[_Span, Ints]) -> None:
            span, positions = task
            columns = span.first + positions
            sketch_bounds, block = self._bounds[span.part][kind], span.kinds[kind]
            better = sketch_bounds.bound_pairs(block, positions, wanted[:, columns])
            bounds[:, columns] = np.maximum(bounds[:, columns], better)

        list(self._pool.map(work, tasks))


def shortlist(bounds: Floats, size: int) -> Bools:
    """Return which pairs [query, trajectory] have one of their query's `size` smallest bounds."""
    if size >= bounds.shape[1]:
        return np.isfinite(bounds)
    threshold = np.partition(bounds, size - 1, axis=1)[:, size - 1 : size]
    return np.asarray((bounds <= threshold) & np.isfinite(bounds))
