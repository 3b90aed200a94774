"""Lower bounds from sketches of several lengths: short ones for all pairs, longer ones for some."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor

import numpy as np
from numpy.typing import NDArray

from strap.dtw.pieces import tiles
from strap.dtw.sketches import Sketches, SketchFilter
from strap.dtw.types import Block, Floats, Frames, Ints, Singles

TILE_FRAMES = 4096  # whose shortest sketches are bounded in one call
TOGETHER = 8  # trajectories whose longer sketches are bounded in one call, at most
TASKS = 16  # at least, where there are as many trajectories: threads should end together


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
        self._sketched, self._pool = sketched, pool
        self._filters = [
            SketchFilter.ladder(queries, [own.sketcher for own in kinds], steps, pool)
            for kinds in sketched
        ]
        ids, owners = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        lows = [np.empty((len(queries), 0))]
        for number, (first, *_) in enumerate(sketched):
            for block, scales in first.blocks():
                lows.append(self._shortest(self._filters[number][0], block, scales))
                ids.append(block.ids)
                owners.append(np.full(len(block.ids), number))
        self.indices: Ints = np.concatenate(ids, dtype=np.int64)
        """[t] global indices"""
        self.lows: Floats = np.concatenate(lows, axis=1)
        """[q t]"""
        self._owners = np.concatenate(owners)
        self._height = np.zeros(self.lows.shape, np.int8)

    def work(self, level: int) -> float:
        """Multiplications for a cell of frames by the sketches of a level, at most."""
        return max(
            kinds[level + 1].sketcher.size / kinds[level + 1].sketcher.every ** 2
            for kinds in self._sketched
            if level + 1 < len(kinds)
        )

    def rise(self, level: int, some: NDArray[np.bool_]) -> None:
        """Raise the lows of some pairs [q t] by the sketches of a level, where there are such."""
        some = some & (self._height <= level)
        self._height[some] = level + 1

        def work(task: tuple[int, Ints]) -> None:
            number, columns = task
            own, bound = self._sketched[number][level + 1], self._filters[number][level + 1]
            rows, scales = zip(*(own.fetch(int(i)) for i in self.indices[columns]), strict=True)
            ends = np.cumsum([0, *map(len, rows)])
            together = np.concatenate(rows), np.concatenate(scales)
            better = bound.bounds(*together, ends, some[:, columns])
            self.lows[:, columns] = np.maximum(self.lows[:, columns], better)

        tasks = []
        for number, kinds in enumerate(self._sketched):
            if level + 1 < len(kinds):
                columns = np.flatnonzero(some.any(axis=0) & (self._owners == number))
                size = min(TOGETHER, len(columns) // TASKS + 1)
                tasks += [(number, columns[i : i + size]) for i in range(0, len(columns), size)]
        list(self._pool.map(work, tasks))

    def _shortest(self, bound: SketchFilter, block: Block, scales: Singles) -> Floats:
        """Lower bounds [q t] of a whole block."""
        offsets = block.offsets
        every = np.ones((bound.count, len(block.ids)), np.bool_)

        def work(tile: range) -> Floats:
            part, own = slice(tile.start, tile.stop), offsets[tile.start : tile.stop + 1]
            here = slice(own[0], own[-1])
            return bound.bounds(block.frames[here], scales[here], own - own[0], every[:, part])

        return np.concatenate(list(self._pool.map(work, tiles(offsets, TILE_FRAMES))), axis=1)


def least(lows: Floats, count: int) -> NDArray[np.bool_]:
    """Which lows [q t] are among the `count` least of their row."""
    if count >= lows.shape[1]:
        return np.isfinite(lows)
    reach = np.partition(lows, count - 1, axis=1)[:, count - 1 : count]
    return np.asarray((lows <= reach) & np.isfinite(lows))
