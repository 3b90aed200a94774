"""Lower bounds of all pairs of a batch: tile by tile, each tile in one call of one thread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from typing import Protocol

import numpy as np

from strap.dtw.batching import TrajectoryBatch, cut_batches, split_into_tiles
from strap.dtw.cpu.float32_bounds import Float32Bounds
from strap.dtw.cpu.int16_bounds import MAX_INT16_DIM, Int16Bounds
from strap.dtw.cpu.policy import CpuPolicy
from strap.dtw.cpu.query_stack import QueryStack
from strap.dtw.cpu.rounding import subtract_rounding
from strap.dtw.steps import StepSet, count_path_cells, step_set
from strap.dtw.types import Bools, Floats, Frames, Ints, Name, SearchOptions, Singles
from strap.dtw.validation import check_numbers


class TileBounds(Protocol):
    """Prepared queries that give lower bounds of their costs in a tile's trajectories."""

    stack: QueryStack
    steps: StepSet
    metric: str
    tile_frames: int

    def bound_tile(self, frames: Sequence[Frames]) -> tuple[Singles, Bools]:
        """Return bounds [q t] before rounding is subtracted, and whether they are valid [t]."""


def choose_bounds(
    queries: Sequence[Frames], options: SearchOptions, n_frames: int, policy: CpuPolicy
) -> TileBounds:
    """Return the kind of bounds that takes the least time for batches of so many frames."""
    stack = QueryStack.of(queries, options.metric)
    n_rows, dim = stack.frames.shape
    is_int16 = dim <= MAX_INT16_DIM and policy.bounds_by_int16(n_rows, n_frames, dim)
    kind = Int16Bounds if is_int16 else Float32Bounds
    return kind(stack, step_set(options.steps), options.metric, policy.group_rows)


def bound_stream(
    stream: Iterable[tuple[int, Frames]],
    queries: Sequence[Frames],
    options: SearchOptions,
    policy: CpuPolicy,
    name: Name,
    pool: Executor,
) -> tuple[Ints, Floats]:
    """Return the indices [t] of a stream and lower bounds [q t]. Raises on invalid frames."""
    ids: list[int] = []
    bounds = [np.empty((len(queries), 0))]
    tile_bounds: TileBounds | None = None
    for batch in cut_batches(stream, policy.batch_frames):
        if tile_bounds is None:
            n_frames = int(batch.offsets[-1])
            tile_bounds = choose_bounds(queries, options, n_frames, policy)
        tile_frames = policy.tile_frames or tile_bounds.tile_frames
        ids += batch.ids
        bounds.append(bound_batch(tile_bounds, batch, tile_frames, name, pool))
    return np.array(ids, np.int64), np.concatenate(bounds, axis=1)


def bound_batch(
    tile_bounds: TileBounds, batch: TrajectoryBatch, tile_frames: int, name: Name, pool: Executor
) -> Floats:
    """Return lower bounds [q t] of the costs; ∞ where no path fits. Raises on invalid frames."""
    offsets = batch.offsets

    def bound(tile: range) -> tuple[Singles, Bools]:
        return tile_bounds.bound_tile(batch.frames[tile.start : tile.stop])

    found = list(pool.map(bound, split_into_tiles(offsets, tile_frames)))
    bounds = np.concatenate([bounds for bounds, _ in found], axis=1)
    is_valid = np.concatenate([valid for _, valid in found])
    for i in np.flatnonzero(~is_valid):  # NaN, infinite or very large: only now look at them all
        check_numbers(batch.frames[i], name(batch.ids[i]), tile_bounds.metric)
    stack, metric = tile_bounds.stack, tile_bounds.metric
    lengths = np.diff(offsets).astype(np.float64)
    n_cells = count_path_cells(tile_bounds.steps, stack.n_rows, lengths)
    scale = stack.scale**2 if metric == "cosine" else stack.scale
    return subtract_rounding(bounds, n_cells, scale, is_valid)
