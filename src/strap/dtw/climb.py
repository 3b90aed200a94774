"""Lower bounds from sketches of several lengths: short ones for all pairs, longer ones for some."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor

import numpy as np
from numpy.typing import NDArray

from strap.dtw.pieces import tiles
from strap.dtw.sketches import Sketched, SketchFilter
from strap.dtw.types import Block, Floats, Frames, Ints

TILE_FRAMES = 4096  # whose shortest sketches are bounded in one call
TOGETHER = 8  # trajectories whose longer sketches are bounded in one call


class Climb:
    """Bounds of all pairs from the shortest sketches, raised by longer ones where that is asked."""

    def __init__(
        self, sketched: Sequence[Sketched], queries: Sequence[Frames], steps: str, pool: Executor
    ) -> None:
        self.levels = max(len(own.finer) for own in sketched)
        """of longer sketches"""
        self._sketched, self._pool = sketched, pool
        self._filters = [
            SketchFilter.ladder(
                queries, [own.sketcher, *(f.sketcher for f in own.finer)], steps, pool
            )
            for own in sketched
        ]
        ids, owners = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        lows = [np.empty((len(queries), 0))]
        for number, own in enumerate(sketched):
            for block in own.blocks:
                errors = np.array([own.error(index) for index in block.ids.tolist()])
                lows.append(self._shortest(self._filters[number][0], block, errors))
                ids.append(block.ids)
                owners.append(np.full(len(block.ids), number))
        self.indices: Ints = np.concatenate(ids, dtype=np.int64)
        """[t] global indices"""
        self.lows: Floats = np.concatenate(lows, axis=1)
        """[q t]"""
        self._owners = np.concatenate(owners)
        self._height = np.zeros(self.lows.shape, np.int8)

    def size(self, level: int) -> int:
        """Numbers in the longest sketches of a level."""
        return max(
            own.finer[level].sketcher.size for own in self._sketched if level < len(own.finer)
        )

    def rise(self, level: int, some: NDArray[np.bool_]) -> None:
        """Raise the lows of some pairs [q t] by the sketches of a level, where there are such."""
        some = some & (self._height <= level)
        self._height[some] = level + 1

        def work(task: tuple[int, Ints]) -> None:
            number, columns = task
            finer, bound = self._sketched[number].finer[level], self._filters[number][level + 1]
            rows, errors = zip(*(finer.fetch(int(i)) for i in self.indices[columns]), strict=True)
            ends = np.cumsum([0, *map(len, rows)])
            better = bound.bounds(np.concatenate(rows), ends, np.array(errors), some[:, columns])
            self.lows[:, columns] = np.maximum(self.lows[:, columns], better)

        tasks = []
        for number, own in enumerate(self._sketched):
            if level < len(own.finer):
                columns = np.flatnonzero(some.any(axis=0) & (self._owners == number))
                cuts = range(0, len(columns), TOGETHER)
                tasks += [(number, columns[i : i + TOGETHER]) for i in cuts]
        list(self._pool.map(work, tasks))

    def _shortest(self, bound: SketchFilter, block: Block, errors: Floats) -> Floats:
        """Lower bounds [q t] of a whole block."""
        offsets = block.offsets
        every = np.ones((bound.count, len(block.ids)), np.bool_)

        def work(tile: range) -> Floats:
            part, own = slice(tile.start, tile.stop), offsets[tile.start : tile.stop + 1]
            rows = block.frames[own[0] : own[-1]]
            return bound.bounds(rows, own - own[0], errors[part], every[:, part])

        return np.concatenate(list(self._pool.map(work, tiles(offsets, TILE_FRAMES))), axis=1)


def least(lows: Floats, count: int) -> NDArray[np.bool_]:
    """Which lows [q t] are among the `count` least of their row."""
    if count >= lows.shape[1]:
        return np.isfinite(lows)
    reach = np.partition(lows, count - 1, axis=1)[:, count - 1 : count]
    return np.asarray((lows <= reach) & np.isfinite(lows))
