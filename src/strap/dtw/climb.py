"""Lower bounds from sketches of several lengths: short ones for all pairs, longer ones for some."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strap.dtw.pieces import tiles
from strap.dtw.sketches import Sketches, SketchFilter
from strap.dtw.types import Block, Floats, Frames, Ints, Singles, Sketched

TILE_FRAMES = 4096  # whose shortest sketches are bounded in one call
TOGETHER = 32  # trajectories whose longer sketches are bounded in one call, at most
TASKS = 16  # at least, where there are as many trajectories: threads should end together


@dataclass(frozen=True, eq=False)
class _Run:
    """Trajectories that lie end to end, in sketches of all kinds."""

    store: int
    first: int
    """which column of the lows is its first trajectory's"""
    kinds: Sequence[tuple[Block, Singles]]

    def __len__(self) -> int:
        return len(self.kinds[0][0].ids)


class Climb:
    """Bounds of all pairs from the shortest sketches, raised by longer ones where that is asked."""

    def __init__(
        self,
        sketched: Sequence[Sequence[Sketches]],
        queries: Sequence[Frames],
        steps: str,
        pool: Executor,
    ) -> None:
        """`sketched` are of one or more kinds for each store, all of which suit the steps."""
        self.levels = max(len(kinds) for kinds in sketched) - 1
        """of longer sketches"""
        self._pool = pool
        self._filters = [
            SketchFilter.ladder(queries, [own.sketcher for own in kinds], steps, pool)
            for kinds in sketched
        ]
        self._runs: list[_Run] = []
        ids, lows, count = [np.empty(0, np.int64)], [np.empty((len(queries), 0))], 0
        for number, kinds in enumerate(sketched):
            for same in zip(*(own.blocks() for own in kinds), strict=True):
                run = _Run(number, count, same)
                self._runs.append(run)
                lows.append(self._shortest(run))
                ids.append(same[0][0].ids)
                count += len(run)
        self.indices: Ints = np.concatenate(ids, dtype=np.int64)
        """[t] global indices"""
        self.lows: Floats = np.concatenate(lows, axis=1)
        """[q t]"""
        self._height = np.zeros(self.lows.shape, np.int8)

    def rise(self, level: int, some: NDArray[np.bool_]) -> None:
        """Raise the lows of some pairs [q t] by the sketches of a level, where there are such."""
        some = some & (self._height <= level)
        self._height[some] = level + 1

        def work(task: tuple[_Run, Ints]) -> None:
            run, places = task
            columns = run.first + places
            block, scales = run.kinds[level + 1]
            begins, ends = block.offsets[places], block.offsets[places + 1]
            better = self._filters[run.store][level + 1].bounds(
                Sketched(block.frames, scales, begins, ends), some[:, columns]
            )
            self.lows[:, columns] = np.maximum(self.lows[:, columns], better)

        tasks = []
        for run in self._runs:
            if level + 1 < len(run.kinds):
                own = some[:, run.first : run.first + len(run)]
                places = np.flatnonzero(own.any(axis=0))
                size = min(TOGETHER, len(places) // TASKS + 1)
                tasks += [(run, places[i : i + size]) for i in range(0, len(places), size)]
        list(self._pool.map(work, tasks))

    def _shortest(self, run: _Run) -> Floats:
        """Lower bounds [q t] of a whole run."""
        bound, (block, scales) = self._filters[run.store][0], run.kinds[0]
        offsets = block.offsets

        def work(tile: range) -> Floats:
            begins, ends = offsets[tile.start : tile.stop], offsets[tile.start + 1 : tile.stop + 1]
            every = np.ones((bound.count, len(tile)), np.bool_)
            return bound.bounds(Sketched(block.frames, scales, begins, ends), every)

        return np.concatenate(list(self._pool.map(work, tiles(offsets, TILE_FRAMES))), axis=1)


def least(lows: Floats, count: int) -> NDArray[np.bool_]:
    """Which lows [q t] are among the `count` least of their row."""
    if count >= lows.shape[1]:
        return np.isfinite(lows)
    reach = np.partition(lows, count - 1, axis=1)[:, count - 1 : count]
    return np.asarray((lows <= reach) & np.isfinite(lows))
