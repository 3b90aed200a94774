"""Choice of the weights of fused features on the target's demonstrations alone: `--fuse auto`.

Every segment of a demonstration is searched for in each other demonstration of the task. Its best
match there should be its counterpart: weights are good if match and counterpart overlap much. No
label is read, and from the prior only the spread of each feature is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import numpy.typing as npt

from strap.datasets import Dataset
from strap.dtw.alignment import align
from strap.dtw.steps import step_set
from strap.encoders.language import TEXT_ENCODER
from strap.errors import StrapError
from strap.features.fusion import WeightedFeature, encoder_spread, spread_ratio
from strap.retrieval.correspondence import pair_segments
from strap.store import EmbeddingStore
from strap.types import Array, Segment

Floats = npt.NDArray[np.float64]
JUDGED = ("gripper", "position")
"""features whose weights are chosen on the demonstrations"""
WEIGHTS = (0.0, 0.25, 0.5, 1.0)
"""the candidate weights of each of them"""
WEIGHTED_LANGUAGE = WeightedFeature("language", 0.5)
"""The instruction with a fixed weight: demonstrations of one task share their instruction, so its
weight cannot be chosen on them."""


@dataclass(frozen=True)
class FusionChoice:
    """The chosen features, and why they were chosen."""

    features: tuple[WeightedFeature, ...]
    ratios: Mapping[str, float]
    """feature name -> spread of the encoder's features / spread of the feature, over the prior"""
    reason: str


def choose_fusion(
    stores: Sequence[EmbeddingStore],
    datasets: Sequence[Dataset],
    queries: Sequence[Segment],
    steps: str,
    *,
    text_encoder: str = TEXT_ENCODER,
) -> FusionChoice:
    """Choose the features to fuse with the encoder's, and their weights, on the demonstrations.

    Args:
        stores: the encoder's features of the target and of each prior.
        datasets: the target and the priors, in the same order.
        queries: the segments of the target.
        steps: the moves that a warping path may make.
        text_encoder: the encoder of instructions.
    """
    language = replace(WEIGHTED_LANGUAGE, text_encoder=text_encoder)
    pairs = _pair_by_instruction(queries, datasets[0])
    if not pairs:
        raise StrapError(
            "--fuse auto searches each demonstration in the others of its task, but no two of the "
            "target's demonstrations have the same instruction: name the features, as in --fuse "
            "gripper=0.5 language=0.5"
        )
    ratios, missing = _measure_ratios(stores, datasets, language)
    judged = [name for name in JUDGED if name in ratios]
    keys = list(dict.fromkeys(query.trajectory_id for query in queries))
    values = [{key: np.asarray(stores[0][key], np.float64) for key in keys}]
    values += [
        {key: WeightedFeature(name, 1.0).read(datasets[0][key]) * ratios[name] for key in keys}
        for name in judged
    ]
    grid = list(product(WEIGHTS, repeat=len(judged)))
    overlaps = segment_overlaps(pairs, values, grid, steps)
    best = choose_weights(grid, overlaps, [query.trajectory_id for query, _ in pairs])
    chosen = [
        WeightedFeature(name, weight) for name, weight in zip(judged, grid[best], strict=True)
    ]
    features = [feature for feature in chosen if feature.weight]
    reasons = [_explain(features, overlaps[best], overlaps[0])] if judged else []
    if language.name in ratios:
        features.append(language)
        reasons.append(f"{language}, which demonstrations of one task cannot judge")
    return FusionChoice(tuple(features), ratios, "; ".join([*reasons, *missing]))


def _pair_by_instruction(
    queries: Sequence[Segment], target: Dataset
) -> list[tuple[Segment, Segment]]:
    """Return each segment with its counterparts in other demonstrations of its instruction."""
    tasks: dict[str, list[Segment]] = {}
    for query in queries:
        tasks.setdefault(target[query.trajectory_id].instruction, []).append(query)
    return [pair for segments in tasks.values() for pair in pair_segments(segments)]


def _explain(features: Sequence[WeightedFeature], chosen: Floats, plain: Floats) -> str:
    """Return why features were chosen, given the overlaps with them and without."""
    alone = f"mean overlap {plain.mean():.3f} of segments found in the other demonstrations"
    if not features:
        return f"no {' or '.join(JUDGED)}: they raise the {alone} by less than its standard error"
    named = " ".join(map(str, features))
    return f"{named}, which raise the {alone} to {chosen.mean():.3f}"


def _measure_ratios(
    stores: Sequence[EmbeddingStore], datasets: Sequence[Dataset], language: WeightedFeature
) -> tuple[dict[str, float], list[str]]:
    """Return the spread ratio of every feature that can be fused, and why the others cannot."""
    spread, ratios, missing = encoder_spread(stores, datasets), {}, []
    for feature in (*(WeightedFeature(name, 1.0) for name in JUDGED), language):
        try:
            ratio = spread_ratio(feature, datasets, spread)
            for trajectory in datasets[0]:
                feature.read(trajectory)
            ratios[feature.name] = ratio
        except StrapError as error:
            missing.append(f"no {feature.name}: {error}")
    return ratios, missing


def choose_weights(
    grid: Sequence[tuple[float, ...]], overlaps: Floats, left_out: Sequence[str]
) -> int:
    """Return the index of the smallest weights that are as good as the best.

    Weights are as good as the best if their mean overlap is lower by at most the standard error of
    that difference over the demonstrations.

    Args:
        grid: the candidate weights.
        overlaps: as `segment_overlaps` returns them, [weights, pair].
        left_out: the demonstration that each pair's segment is from.
    """
    names = np.array(left_out)
    means = np.stack([overlaps[:, names == name].mean(axis=1) for name in sorted({*left_out})])
    best = int(np.argmax(means.mean(axis=0)))
    loss = means[:, best, None] - means  # [demonstration, weights]
    error = loss.std(axis=0, ddof=1) / np.sqrt(len(loss))
    is_good = loss.mean(axis=0) <= error
    good = [row for row in range(len(grid)) if is_good[row]]
    return min(good, key=lambda row: (sum(grid[row]), grid[row]))


def segment_overlaps(
    pairs: Sequence[tuple[Segment, Segment]],
    features: Sequence[Mapping[str, Array]],
    grid: Sequence[tuple[float, ...]],
    steps: str,
) -> Floats:
    """Return how well each segment's match overlaps its counterpart: [weights, pair].

    The overlap is frames in both / frames in either, of the cheapest match and the counterpart. If
    the segment does not fit into the other demonstration, the overlap is 0.

    Args:
        pairs: segments of the demonstrations, each with its counterpart in another one.
        features: the encoder's features, then each other feature: trajectory id -> scaled values
            [t d].
        grid: the candidate weights, one for each feature but the encoder's.
        steps: the moves that a warping path may make.
    """
    from scipy.spatial.distance import cdist  # imported here so that other commands start faster

    squared: dict[tuple[str, str], list[Floats]] = {}
    overlaps = np.zeros((len(grid), len(pairs)))
    for column, (query, counterpart) in enumerate(pairs):
        names = (query.trajectory_id, counterpart.trajectory_id)
        if names not in squared:
            squared[names] = [cdist(*(f[name] for name in names), "sqeuclidean") for f in features]
        vision, *others = (distances[query.start : query.stop] for distances in squared[names])
        for row, weights in enumerate(grid):
            total = vision + sum(w**2 * d for w, d in zip(weights, others, strict=True))
            cost, start, stop = align(np.sqrt(total), step_set(steps))
            if np.isfinite(cost):
                overlaps[row, column] = _overlap(start, stop, counterpart)
    return overlaps


def _overlap(start: int, stop: int, segment: Segment) -> float:
    common = max(0, min(stop, segment.stop) - max(start, segment.start))
    return common / (stop - start + len(segment) - common)
