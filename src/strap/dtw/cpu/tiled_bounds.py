"""Lower bounds of all pairs of a batch. The batch is cut into tiles, one task of a thread each."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import TypeAlias

import numpy as np

from strap.dtw.batching import TrajectoryBatch, split_into_tiles
from strap.dtw.cpu.float32_bounds import Float32Bounds
from strap.dtw.cpu.int16_bounds import MAX_INT16_DIM, Int16Bounds
from strap.dtw.cpu.query_stack import QueryStack
from strap.dtw.cpu.rounding import subtract_rounding
from strap.dtw.cpu.tuning import CpuTuning
from strap.dtw.steps import count_path_cells, step_set
from strap.dtw.types import Bools, Floats, Frames, Name, SearchOptions, Singles
from strap.dtw.validation import check_numbers

TileBounds: TypeAlias = Float32Bounds | Int16Bounds
"""Prepared queries, whose `bound_tile` returns their lower bounds in a tile's trajectories."""


def choose_bounds(
    queries: Sequence[Frames], options: SearchOptions, n_frames: int, tuning: CpuTuning
) -> TileBounds:
    """Prepare the queries for the kind of bounds that is faster for batches of `n_frames`."""
    stack = QueryStack.of(queries, options.metric)
    n_rows, dim = stack.frames.shape
    is_int16 = dim <= MAX_INT16_DIM and tuning.bounds_by_int16(n_rows, n_frames, dim)
    kind = Int16Bounds if is_int16 else Float32Bounds
    return kind(stack, step_set(options.steps), options.metric, tuning.group_rows)


def bound_batch(
    tile_bounds: TileBounds, batch: TrajectoryBatch, tile_frames: int, name: Name, pool: Executor
) -> Floats:
    """Return lower bounds [q t] of the costs, ∞ if no path fits; raise on invalid frames."""
    offsets = batch.offsets

    def bound(tile: range) -> tuple[Singles, Bools]:
        return tile_bounds.bound_tile(batch.frames[tile.start : tile.stop])

    found = list(pool.map(bound, split_into_tiles(offsets, tile_frames)))
    bounds = np.concatenate([bounds for bounds, _ in found], axis=1)
    is_valid = np.concatenate([valid for _, valid in found])
    for i in np.flatnonzero(~is_valid):  # NaN or ∞, which raise; or valid, but very large
        check_numbers(batch.frames[i], name(batch.ids[i]), tile_bounds.metric)
    stack, metric = tile_bounds.stack, tile_bounds.metric
    lengths = np.diff(offsets).astype(np.float64)
    n_cells = count_path_cells(tile_bounds.steps, stack.n_rows, lengths)
    scale = stack.scale**2 if metric == "cosine" else stack.scale
    bounds[:, ~is_valid] = 0
    return subtract_rounding(bounds, n_cells, scale)
