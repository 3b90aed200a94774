"""Choose the windows of a training, their probabilities, and the held-out demonstrations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from strap.atomic import read_json
from strap.choices import ChosenMatches
from strap.errors import StrapError, shorten, unknown
from strap.policies.settings import PolicySettings
from strap.training.cache import FrameCache, RetrievedSpan

Recipe = Literal["bc", "ft", "mt", "strap"]
Anchors = Literal["segment", "context"]
RELEASED_CONTEXT = (5, 5)
"""frames that the authors' files keep before and after a retrieved segment"""
MAX_WEIGHT = 1e12
"""largest weight of a match; with larger ones the target would never be drawn"""
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Windows:
    """Training windows, one per row: the frame to act on and the bounds of its clip."""

    anchor: Ints
    """cache row of the last observed frame"""
    first: Ints
    last: Ints
    """cache rows of the clip's first and last frame"""
    instruction: Ints
    weight: Floats
    is_target: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.anchor)

    def where(self, chosen: npt.NDArray[np.bool_]) -> Windows:
        """Return the windows at which `chosen` [window] is True."""
        return Windows(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))

    def probabilities(self, alpha: float | None = None) -> Floats:
        """Return each window's probability, proportional to its weight.

        With `alpha`, the target's windows together have this probability.
        """
        weight, is_target = self.weight, self.is_target
        if alpha is None or is_target.all() or not is_target.any():
            return np.asarray(weight / weight.sum())
        target, rest = weight[is_target].sum(), weight[~is_target].sum()
        if not rest:
            raise StrapError(
                f"every match weighs 0, but alpha is {alpha}: {1 - alpha:g} of each batch would "
                "have nothing to draw from; give a match a weight above 0, or leave alpha out"
            )
        shares = np.where(is_target, alpha, 1 - alpha)
        return np.asarray(shares * (weight / np.where(is_target, target, rest)))


def require_context(cache: FrameCache, recipe: Recipe, policy: PolicySettings) -> None:
    """Raise if a policy needs more frames around a retrieved segment than were kept."""
    if recipe != "strap" or cache.context is None:
        return
    history, chunk = cache.context
    before, after = policy.history - 1, policy.chunk + policy.first_action - 1
    if before > history or after > chunk:
        raise StrapError(
            f"the policy sees {policy.history} frames and predicts {policy.chunk} actions, but the "
            f"run keeps {history} frames before and {chunk} after each match: retrieve again with "
            f"--history {max(before, history)} --chunk {max(after, chunk)}, or train with a "
            "smaller --history and --chunk"
        )


def choose_held_out(cache: FrameCache, count: int, seed: int) -> frozenset[str]:
    """Return the ids of `count` target demonstrations to hold out, drawn with the seed."""
    ids = [clip.id for clip in cache.clips if clip.role == "target"]
    if count < 0 or (count and count >= len(ids)):
        raise StrapError(
            f"--holdout {count} of {len(ids)} demonstrations: at least one must be left to train on"
        )
    drawn = np.random.default_rng([seed, 1]).permutation(len(ids))[:count]
    return frozenset(ids[index] for index in drawn)


def training_windows(
    cache: FrameCache,
    recipe: Recipe,
    *,
    held_out: frozenset[str] = frozenset(),
    match_weights: Sequence[float] | None = None,
    complete: PolicySettings | None = None,
) -> Windows:
    """Return the windows of a recipe; for `ft`, those of its second phase (see `prior_windows`).

    There is one window for every frame of the target. `mt` adds every frame of the prior. `strap`
    adds every frame of every match (a frame of two matches twice), except matches of held-out
    demonstrations.

    Args:
        cache: the data.
        recipe: the recipe.
        held_out: target demonstrations to leave out.
        match_weights: one per match; for the recipe strap.
        complete: settings of a policy. If given, act on the frames for which its whole history and
            all its actions are among the frames kept around a match, instead of the match's frames.
    """
    if recipe not in get_args(Recipe):
        raise unknown("recipe", recipe, get_args(Recipe))
    if match_weights is not None and recipe != "strap":
        raise StrapError(
            f"match weights are given, but the recipe {recipe} does not train on matches: leave "
            "them out, or choose the recipe strap"
        )
    parts = [
        _clip_windows(cache, index, 1.0)
        for index, clip in enumerate(cache.clips)
        if clip.role == "target" and clip.id not in held_out
    ]
    if recipe == "strap":
        parts += _match_windows(cache, held_out, match_weights, complete)
    if recipe == "mt":
        parts.append(prior_windows(cache))
    return join_windows(parts)


def prior_windows(cache: FrameCache) -> Windows:
    """Return a window for every frame of the prior."""
    parts = [
        _clip_windows(cache, index, 1.0)
        for index, clip in enumerate(cache.clips)
        if clip.role == "prior"
    ]
    if not parts:
        raise StrapError(
            "the recipes ft and mt need a prior: train on a run, or give --prior DATASET"
        )
    return join_windows(parts)


def held_out_windows(cache: FrameCache, held_out: frozenset[str]) -> Windows:
    """Return a window for every frame of the held-out demonstrations."""
    return join_windows(
        [
            _clip_windows(cache, index, 1.0)
            for index, clip in enumerate(cache.clips)
            if clip.role == "target" and clip.id in held_out
        ]
    )


def _match_windows(
    cache: FrameCache,
    held_out: frozenset[str],
    weights: Sequence[float] | None,
    complete: PolicySettings | None,
) -> list[Windows]:
    if not cache.retrieved:
        raise StrapError(
            "the recipe strap needs retrieved segments: train on a run of `strap retrieve`, or "
            "choose --recipe bc"
        )
    if weights is not None and len(weights) != len(cache.retrieved):
        raise _wrong_count(len(weights), len(cache.retrieved))
    require_weights(() if weights is None else weights)
    parts = []
    for number, found in enumerate(cache.retrieved):
        if found.query in held_out:
            continue
        weight = 1.0 if weights is None else float(weights[number])
        windows = _clip_windows(cache, found.clip, weight)
        start, stop = found.start, found.stop
        if complete is not None:
            start, stop = _complete_frames(cache, found, complete)
        begin = cache.clips[found.clip].start
        parts.append(windows.where(_between(windows, begin, start, stop)))
    return parts


def read_weights(path: str | Path) -> list[float]:
    """Read one weight per match from a JSON list of numbers."""
    values = read_json(Path(path).expanduser())
    if not isinstance(values, list) or not all(type(v) in (int, float) for v in values):
        raise StrapError(
            f"'{path}' holds {json.dumps(values)[:60]}: match weights are a JSON list of numbers"
        )
    require_weights(values)
    if values and not any(values):
        raise _all_zero(f"'{path}' gives every match the weight 0")
    return [float(value) for value in values]


def require_weights(weights: Sequence[float]) -> None:
    """Raise if a match weight is not a number from 0 to MAX_WEIGHT."""
    for number, weight in enumerate(weights):
        if not 0 <= weight <= MAX_WEIGHT:
            raise StrapError(
                f"match weight {number} (counted from 0) is {shorten(str(weight))}: give 0 to "
                f"{MAX_WEIGHT:g}, where a frame of the target weighs 1"
            )


def _complete_frames(
    cache: FrameCache, found: RetrievedSpan, policy: PolicySettings
) -> tuple[int, int]:
    """Return the first and last (exclusive) frame of a match's complete windows for a policy.

    The authors keep F frames before a match (start, stop) and C after it. If the trajectory is
    shorter than that, they repeat its first frame until F − 1 frames precede the match, and its
    last frame until C − 1 follow it. They train on windows with the whole history and all actions.
    Here, repeated frames are never acted on, which only matters if the history is shorter than F:

        kept                                start−F … start−1  start … stop−1  stop … stop+C−1
        acted on, history = F, chunk = C              start−1  start … stop−1  stop
        … at the trajectory's ends                             start … stop−1
    """
    before, after = cache.context or RELEASED_CONTEXT
    clip = cache.clips[found.clip]
    first = found.start - before
    if first < clip.start:
        first += 1
    last = found.stop + after - 1
    if last >= clip.stop:
        last -= 1
    first += max(policy.history - 1, -policy.first_action)
    return first, last - (policy.chunk + policy.first_action - 1) + 1


def weigh_by_cost(retrieved: Sequence[RetrievedSpan]) -> list[float]:
    """Return a weight in (0, 1] for every match; the cheapest match of each query has weight 1.

    Let c be a match's cost per frame of its query, and c_min the smallest c among the matches of
    this query. The match's weight is exp(−(c − c_min) / s). The spread of a query is the median of
    c − c_min over all its matches except the cheapest; s is the median spread over all queries. So
    a typical match weighs e⁻¹ times its query's best, and queries that are hard to match keep their
    share. If s is 0 (no query has two matches of different costs), every weight is 1.
    """
    excess = np.zeros(len(retrieved))
    spreads = []
    queries: dict[tuple[str, int, int], list[int]] = {}
    for number, found in enumerate(retrieved):
        query = (found.query, found.query_start, found.query_stop)
        queries.setdefault(query, []).append(number)
    for (_, start, stop), numbers in queries.items():
        costs = np.array([retrieved[number].cost for number in numbers]) / max(stop - start, 1)
        excess[numbers] = costs - costs.min()
        if len(numbers) > 1:
            spreads.append(float(np.median(np.sort(excess[numbers])[1:])))
    spread = float(np.median(spreads)) if spreads else 0.0
    weights = np.exp(-excess / spread) if spread > 0 else np.ones(len(retrieved))
    return [float(weight) for weight in weights]


def weigh_by_choices(
    weights: Sequence[float] | Literal["cost"] | None,
    chosen: ChosenMatches,
    retrieved: Sequence[RetrievedSpan],
) -> Sequence[float] | Literal["cost"] | None:
    """Return the weights of the remaining matches, each multiplied by its weight in the choices.

    Args:
        weights: one per match, in the order of matches.parquet; or `cost`; or None for equal ones.
        chosen: which matches of a run remain, and their weights.
        retrieved: the remaining matches.
    """
    if weights is not None and weights != "cost":
        if len(weights) != chosen.total:
            raise _wrong_count(len(weights), chosen.total)
        weights = [float(weights[row]) for row in chosen.rows]
        if weights and not any(weights):
            raise _all_zero(f"each of the {len(weights)} matches to train on has the weight 0")
    if not chosen.n_reweighed:
        return weights
    if weights == "cost":
        weights = weigh_by_cost(retrieved)
    factors = chosen.weights
    return [w * factor for w, factor in zip(weights or [1.0] * len(factors), factors, strict=True)]


def _wrong_count(given: int, n_matches: int) -> StrapError:
    return StrapError(
        f"{given} match weights for {n_matches} matches: give one for each, in the order of "
        "matches.parquet"
    )


def _all_zero(what: str) -> StrapError:
    return StrapError(
        f"{what}, so nothing retrieved would be trained on: give a match a weight above 0, or "
        "choose --recipe bc"
    )


def _between(windows: Windows, begin: int, start: int, stop: int) -> npt.NDArray[np.bool_]:
    frame = windows.anchor - windows.first + begin
    return np.asarray((frame >= start) & (frame < stop))


def _clip_windows(cache: FrameCache, index: int, weight: float) -> Windows:
    clip = cache.clips[index]
    rows = np.arange(clip.row, clip.row + clip.length)
    return Windows(
        anchor=rows,
        first=np.full_like(rows, rows[0]),
        last=np.full_like(rows, rows[-1]),
        instruction=np.full_like(rows, clip.instruction),
        weight=np.full(len(rows), weight),
        is_target=np.full(len(rows), clip.role == "target"),
    )


def join_windows(parts: Sequence[Windows]) -> Windows:
    """Return the windows of all parts, in their order."""
    if not parts:
        raise StrapError("no demonstration is left to train on")
    fields = Windows.__dataclass_fields__
    return Windows(*(np.concatenate([getattr(part, name) for part in parts]) for name in fields))
