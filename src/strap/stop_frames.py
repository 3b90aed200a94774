"""Stops of a robot: its movement from frame to frame, the threshold, and the cuts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from strap.errors import StrapError
from strap.position_columns import Kind, moving_columns, positions
from strap.types import Trajectory

Floats = npt.NDArray[np.float64]
Norm = Literal["l1", "l2"]
Unit = Literal["step", "second"]

QUARTILE_SHARE = 0.45
"""The threshold that `auto` tries first, as a share of the upper quartile of movement. On LIBERO's
demonstrations it is 4.9 to 5.3 mm per step; the released code uses 5 mm."""
SENSIBLE_LENGTHS = (1, 3)
"""Sensible mean length of a segment, as multiples of the least length: in the paper 20 to 60."""
NEARLY_ALL = 0.9
"""Share of frames that are stops from which on the threshold counts as too high."""
SHOWN_PERCENTILES = (5, 25, 50, 75, 95)
"""Percentiles of the movement that messages show."""
MAX_RADIANS = 2 * math.pi
"""Joint values beyond this are assumed to be in degrees."""
MAX_METRES = 10.0
"""End-effector positions beyond this are assumed to be in millimetres."""


@dataclass(frozen=True)
class Movements:
    """How much each demonstration moves from one frame to the next."""

    columns: str
    """the columns that are measured, in the form of `--position`"""
    kind: Kind
    unit: str
    """unit of a movement: `m per step`"""
    values: Mapping[str, Floats]
    """trajectory id -> movement from frame i to i + 1, [length - 1]"""

    @property
    def pooled(self) -> Floats:
        """The movements of all demonstrations, one after the other."""
        return np.concatenate(list(self.values.values()))

    def quantiles(self) -> str:
        """Return the quantiles as text: `5 % 0.001, 25 % 0.006, … m per step`."""
        found = np.percentile(self.pooled, SHOWN_PERCENTILES)
        shown = (f"{q} % {value:.3g}" for q, value in zip(SHOWN_PERCENTILES, found, strict=True))
        return f"{', '.join(shown)} {self.unit}"


@dataclass(frozen=True)
class Threshold:
    """A movement below which a robot counts as resting, and the reason for its value."""

    epsilon: float
    reason: str
    is_sensible: bool
    """whether the segments have a sensible mean length"""
    mean_length: float
    """mean number of frames of the segments"""


def measure_movements(
    trajectories: Iterable[Trajectory], *, position: str | None, norm: Norm, unit: Unit
) -> Movements | None:
    """Measure the movement of the same columns in each trajectory; None without trajectories.

    Args:
        trajectories: demonstrations of one dataset.
        position: the columns; by default the end effector's position, else the joints.
        norm: the norm of a movement over the columns.
        unit: movement per step, or per second.
    """
    values: dict[str, Floats] = {}
    columns, kind, largest_position = "", None, 0.0
    for trajectory in trajectories:
        if kind is None:
            columns, kind = moving_columns(trajectory, position)
        path = positions(trajectory, columns)
        largest_position = max(largest_position, float(np.abs(path).max(initial=0.0)))
        moved = np.linalg.norm(np.diff(path, axis=0), ord=1 if norm == "l1" else 2, axis=1)
        values[trajectory.id] = moved * _frame_rate(trajectory) if unit == "second" else moved
    if kind is None:
        return None
    return Movements(columns, kind, f"{_unit_of(kind, largest_position)} per {unit}", values)


def _frame_rate(trajectory: Trajectory) -> float:
    if not trajectory.fps:
        raise StrapError(
            f"trajectory '{trajectory.id}' has no frame rate, so epsilon cannot be per second; "
            "give epsilon per step"
        )
    return trajectory.fps


def _unit_of(kind: Kind, largest_position: float) -> str:
    """Return the likely unit of values of this size; datasets seldom name it."""
    if kind == "end effector":
        return "m" if largest_position <= MAX_METRES else "mm"
    if kind == "joints":
        return "rad" if largest_position <= MAX_RADIANS else "degrees"
    return "units"


def first_frames(moved: Floats, epsilon: float, min_length: int) -> list[int]:
    """Return the first frame of each segment of a demonstration with these movements."""
    return merge_forward(np.flatnonzero(moved < epsilon) + 1, len(moved) + 1, min_length)


def merge_forward(cuts: npt.NDArray[np.int64], length: int, min_length: int) -> list[int]:
    """Return the first frames of the merged chunks.

    A chunk shorter than `min_length` is merged with the next one; a short last chunk is merged with
    the one before:

        cuts    |--|-|-----|------|--|      min_length 6
        merged  |----------|---------|
    """
    starts = [0]
    while (at := int(np.searchsorted(cuts, starts[-1] + min_length))) < len(cuts):
        starts.append(int(cuts[at]))
    if len(starts) > 1 and length - starts[-1] < min_length:
        starts.pop()
    return starts


def choose_threshold(movements: Movements, min_length: int) -> Threshold:
    """Choose a threshold from the movements.

    It is `QUARTILE_SHARE` of the upper quartile of all movements that are not 0. If that does not
    give segments of sensible length, it is the nearest percentile of movement that does.
    """
    pooled = movements.pooled
    if not pooled.any():
        raise _never_moves(movements)
    first = _rounded(QUARTILE_SHARE * float(np.percentile(pooled[pooled > 0], 75)))
    share = f"{QUARTILE_SHARE:.0%}".replace("%", " %")
    rule = f"{share} of the upper quartile of movement"
    least, most = _sensible_lengths(min_length)
    percentiles = np.percentile(pooled, np.arange(1, 100 * NEARLY_ALL))
    others = {_rounded(value) for value in percentiles if value > 0}
    for epsilon in (first, *sorted(others, key=lambda value: abs(math.log(value / first)))):
        if _is_sensible(movements, epsilon, min_length):
            if epsilon != first:
                rule = f"nearest to {rule} ({first:g}) with segments of {least} to {most} frames"
            return Threshold(epsilon, rule, True, _mean_length(movements, epsilon, min_length))
    reason = f"{rule}; none gives segments of {least} to {most} frames"
    return Threshold(first, reason, False, _mean_length(movements, first, min_length))


def _rounded(value: float) -> float:
    """Return the value with the three digits that are shown, so that users can reproduce it."""
    return float(f"{value:.3g}")


def _sensible_lengths(min_length: int) -> tuple[int, int]:
    """Return the least and the greatest mean number of frames that segments should have."""
    least, most = SENSIBLE_LENGTHS
    return least * min_length, most * min_length


def _is_sensible(movements: Movements, epsilon: float, min_length: int) -> bool:
    least, most = _sensible_lengths(min_length)
    is_rare = float((movements.pooled < epsilon).mean()) < NEARLY_ALL
    return is_rare and least <= _mean_length(movements, epsilon, min_length) <= most


def _mean_length(movements: Movements, epsilon: float, min_length: int) -> float:
    values = movements.values.values()
    frames = sum(len(moved) + 1 for moved in values)
    return frames / sum(len(first_frames(moved, epsilon, min_length)) for moved in values)


def explain_stops(movements: Movements, epsilon: float, min_length: int) -> str:
    """Return why the stops below `epsilon` are implausible, and a better option; else "".

    Stops are implausible if fewer than half of the demonstrations that are long enough are cut, or
    if nearly every frame is a stop. Raise if nothing ever moves.
    """
    pooled = movements.pooled
    if not pooled.any():
        raise _never_moves(movements)
    stops = float((pooled < epsilon).mean())
    where = f"{movements.columns} moves less than {epsilon:g} {movements.unit}"
    long = [moved for moved in movements.values.values() if len(moved) + 1 >= 2 * min_length]
    n_cut = sum(len(first_frames(moved, epsilon, min_length)) > 1 for moved in long)
    if stops >= NEARLY_ALL:
        odd = f"{where} in {100 * stops:.0f} % of all frames: nearly every frame is a stop"
    elif 2 * n_cut < len(long):
        seldom = "nowhere" if not stops else f"in {100 * stops:.2g} % of all frames only"
        verb = "is" if n_cut < 2 else "are"
        odd = f"{where} {seldom}: {n_cut or 'none'} of {len(long)} demonstrations {verb} cut"
    else:
        return ""
    found = f"{odd}. Movement: {movements.quantiles()}. {_advice(movements, epsilon, min_length)}"
    return found.rstrip()


def _advice(movements: Movements, epsilon: float, min_length: int) -> str:
    """Return a better option than `epsilon`; "" if that is what `auto` chooses already."""
    better = choose_threshold(movements, min_length)
    if better.is_sensible and better.epsilon == epsilon:
        return ""
    if better.is_sensible:
        return (
            f"--epsilon {better.epsilon:g} (or auto) would give segments of "
            f"{better.mean_length:.0f} frames on average"
        )
    least, most = _sensible_lengths(min_length)
    return (
        f"No threshold gives segments of {least} to {most} frames: name other columns with "
        "--position, or cut by --segmentation window"
    )


def _never_moves(movements: Movements) -> StrapError:
    count = len(movements.values)
    return StrapError(
        f"'{movements.columns}' never changes in {count} demonstrations, so it cannot tell where "
        "they rest: name the columns that move with --position NAME or 'NAME[0:3]', or cut by "
        "--segmentation window or full"
    )


def explain_length(longest: int, min_length: int) -> str:
    """Return a note if no demonstration is long enough to be cut in two; else ""."""
    if longest >= 2 * min_length:
        return ""
    return (
        f"the longest demonstration has {longest} frames, too few for two segments of at least "
        f"{min_length}: each demonstration is one segment; to cut them give --min-length "
        f"{max(1, longest // 2)} or less"
    )
