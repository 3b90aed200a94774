"""Checks of users' input; each message names the value, the rule and the next step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strap.dtw.metrics import METRICS
from strap.dtw.steps import STEPS
from strap.dtw.types import (
    Alignment,
    Block,
    Constraints,
    Excluded,
    Floats,
    Frames,
    Lengths,
    SearchOptions,
)
from strap.errors import StrapError, unknown

MAX_NUMBER = 1e150  # squares of larger numbers overflow
COST_TOLERANCE = 1e-9  # relative: far more than another order of summation can change a cost


def check_names(steps: str, metric: str) -> None:
    """Check the names of the step set and the metric."""
    if steps not in STEPS:
        raise unknown("steps", steps, STEPS)
    if metric not in METRICS:
        raise unknown("metric", metric, METRICS)


def check_options(options: SearchOptions, n_queries: int) -> None:
    """Check the options of a search."""
    check_names(options.steps, options.metric)
    k = options.k
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise StrapError(f"k is {k!r}: it must be a whole number of at least 1")
    _check_constraints(options.constraints, n_queries)


def check_shape(frames: Frames, what: str, dim: int | None = None) -> Frames:
    """Return frames as an array; check that it is real, [m d], with m, d ≥ 1 and d == dim."""
    frames = np.asanyarray(frames)
    if frames.ndim != 2:
        raise StrapError(
            f"{what} has shape {frames.shape}: it must be 2-D, [frames dimensions]; "
            "give a series of single numbers as x[:, None], a single frame as x[None]"
        )
    if frames.dtype.kind not in "fiu":
        raise StrapError(
            f"{what} has dtype {frames.dtype}: give real numbers (float16, float32, float64)"
        )
    if len(frames) == 0:
        raise StrapError(f"{what} is empty: it must have at least one frame; leave it out")
    if frames.shape[1] == 0:
        raise StrapError(f"{what} has frames of 0 dimensions: at least one is needed")
    if dim is not None and frames.shape[1] != dim:
        raise StrapError(
            f"{what} has {frames.shape[1]} dimensions but the first query has {dim}: "
            "embed both with the same encoder"
        )
    return frames


def check_block(block: Block, dim: int) -> None:
    """Check that a block's offsets divide its frames into trajectories of at least one frame."""
    offsets, ids = block.offsets, block.ids
    if len(offsets) != len(ids) + 1:
        raise StrapError(f"a block has {len(ids)} ids and {len(offsets)} offsets: give ids + 1")
    if len(ids) == 0:
        return
    check_shape(block.frames, "a block", dim)
    if offsets[0] != 0 or offsets[-1] != len(block.frames) or np.any(np.diff(offsets) < 1):
        raise StrapError(
            f"a block's offsets {offsets[:3]}…{offsets[-1:]} must rise from 0 to its "
            f"{len(block.frames)} frames, at least one frame for each trajectory"
        )


def _largest_magnitude(frames: Frames) -> float:
    """Return the largest absolute value; NaN or ∞ if any of the numbers is."""
    if frames.dtype == np.float16:
        # The bits of positive floats sort like the floats, and integers compare much faster.
        bits = np.ascontiguousarray(frames).view(np.int16)
        above, below = bits.max(initial=0), bits.view(np.uint16).max(initial=0) & 0x7FFF
        return float(np.uint16(max(above, below)).view(np.float16))
    return float(np.abs(frames).max(initial=0))


def check_numbers(frames: Frames, what: str, metric: str) -> None:
    """Check that every number is finite, and that no frame is zero under cosine."""
    if frames.dtype.kind == "f" and not _largest_magnitude(frames) <= MAX_NUMBER:
        # Only float64 can hold a finite number whose square overflows.
        good = np.abs(frames) <= MAX_NUMBER if frames.dtype == np.float64 else np.isfinite(frames)
        if not good.all():
            frame, column = np.argwhere(~good)[0]
            raise StrapError(
                f"{what}, frame {frame}, dimension {column} is {frames[frame, column]}: "
                f"numbers must be finite (and below {MAX_NUMBER:g}); embed it again or leave it out"
            )
    if metric == "cosine":
        zero = ~frames.any(axis=1)
        if zero.any():
            raise StrapError(
                f"{what}, frame {int(np.argmax(zero))} has norm 0, where cosine is not defined: "
                'use metric="l2" or leave the frame out'
            )


def check_queries(queries: Sequence[Frames], metric: str, dim: int | None = None) -> list[Frames]:
    """Return the queries as arrays; check their shapes, equal dimensions and numbers."""
    checked: list[Frames] = []
    for q, query in enumerate(queries):
        checked.append(check_shape(query, f"query {q}", dim))
        check_numbers(checked[q], f"query {q}", metric)
        dim = checked[0].shape[1]
    return checked


def name_trajectory(index: int) -> str:
    """Return the default name of a trajectory in error messages."""
    return f"trajectory {index}"


def check_excluded(exclude: Excluded, n_queries: int) -> None:
    """Check that `exclude` has one collection of trajectory indices for each query."""
    if exclude is not None and len(exclude) != n_queries:
        raise StrapError(
            f"exclude has {len(exclude)} entries for {n_queries} queries: give one collection of "
            "trajectory indices for each query (empty where there is none)"
        )


def _check_constraints(constraints: Constraints, n_queries: int) -> None:
    """Check `per_trajectory` and the length limits of each query."""
    per_trajectory, lengths = constraints.per_trajectory, constraints.lengths
    if isinstance(per_trajectory, bool) or per_trajectory < 1:
        raise StrapError(f"per_trajectory is {per_trajectory!r}: it must be at least 1")
    if lengths is None:
        return
    if len(lengths) != n_queries:
        raise StrapError(
            f"lengths has {len(lengths)} entries for {n_queries} queries: give (least, most) "
            "frames for each query"
        )
    for q, limits in enumerate(lengths):
        check_lengths(limits, f"query {q}")


def check_lengths(lengths: Lengths, what: str) -> None:
    """Check the minimum and the maximum length of a match."""
    least, most = lengths
    if not 1 <= least <= most:
        raise StrapError(
            f"{what}: matches of {least} to {most} frames are asked for; the least must be at "
            "least 1 and no more than the greatest"
        )


def check_borders(alignment: Alignment, n_frames: int) -> None:
    """Check that an alignment is inside a trajectory of `n_frames` frames."""
    if not 0 <= alignment.start < alignment.stop <= n_frames:
        raise StrapError(
            f"the alignment covers frames {alignment.start}:{alignment.stop} of a trajectory of "
            f"{n_frames}: it needs 0 <= start < stop <= {n_frames}; give the trajectory in which "
            "it was found, whole"
        )


def check_path(costs: Floats, alignment: Alignment, n_query: int, options: SearchOptions) -> None:
    """Check that a path exists and that its local costs [p] add up to the alignment's cost."""
    if len(costs) == 0:
        raise StrapError(
            f"no path of steps '{options.steps}' leads through {n_query} query frames and the "
            f"{alignment.stop - alignment.start} frames {alignment.start}:{alignment.stop} of the "
            "alignment: give the query and the steps with which it was found"
        )
    found = float(np.cumsum(costs)[-1])  # adds one by one, as the recurrence does; np.sum does not
    if not abs(found - alignment.cost) <= COST_TOLERANCE * found:
        raise StrapError(
            f"the alignment costs {alignment.cost}, but the cheapest path between its ends costs "
            f"{found} (steps '{options.steps}', metric '{options.metric}'): give the frames, steps "
            "and metric with which it was found"
        )
