"""Plan the phases of a training: which windows are drawn from which step on."""

from __future__ import annotations

import warnings

import numpy as np

from strap.training.cache import FrameCache
from strap.training.settings import TrainingSettings
from strap.training.windows import Floats, Recipe, Windows, join_windows, prior_windows

Phases = list[tuple[int, Floats]]
"""(first step, probability of each window) of every phase"""
FEW_DRAWS = 10
"""policies with fewer draws of each target frame solved 17 of 140 rollouts, and BC 56
(docs/results.md, "How long to train")"""
REMEDIES: dict[Recipe, str] = {
    "ft": "fewer --pretrain-steps",
    "mt": "--finetune-steps N or --alpha 0.5",
    "strap": "--finetune-steps N, --alpha 0.5, or fewer matches (--top-k)",
}
"""recipe -> options that give the target more draws"""


def plan_phases(
    cache: FrameCache, windows: Windows, settings: TrainingSettings
) -> tuple[Phases, Windows]:
    """Return the phases, and the windows to which their probabilities refer.

    `ft` draws from the prior, then from the target. With `finetune_steps`, `mt` and `strap` draw
    from the target alone at the end.

    Args:
        cache: the data.
        windows: the windows of the recipe (`training_windows`).
        settings: the recipe and the lengths of the phases.
    """
    probabilities = windows.probabilities(settings.alpha)
    if settings.recipe == "ft":
        prior = prior_windows(cache)
        first = np.concatenate([prior.probabilities(), np.zeros(len(windows))])
        second = np.concatenate([np.zeros(len(prior)), probabilities])
        return [(0, first), (settings.first_phase, second)], join_windows([prior, windows])
    if settings.finetune_steps:
        target = np.where(windows.is_target, windows.weight, 0.0)
        return [(0, probabilities), (settings.first_phase, target / target.sum())], windows
    return [(0, probabilities)], windows


def count_target_draws(phases: Phases, windows: Windows, settings: TrainingSettings) -> float:
    """Return how many times each window of the target is drawn, on average over the training."""
    ends = [first for first, _ in phases[1:]] + [settings.steps]
    drawn = sum(
        (end - first) * probabilities[windows.is_target].sum()
        for (first, probabilities), end in zip(phases, ends, strict=True)
    )
    return float(settings.batch * drawn / windows.is_target.sum())


def warn_of_few_target_draws(phases: Phases, windows: Windows, settings: TrainingSettings) -> None:
    """Warn if the other data leave too few draws for the target."""
    draws = count_target_draws(phases, windows, settings)
    without_others = settings.batch * settings.steps / windows.is_target.sum()
    if settings.recipe == "bc" or draws >= FEW_DRAWS or without_others < FEW_DRAWS:
        return
    warnings.warn(
        f"each frame of the target is drawn {draws:.1f} times on average in {settings.steps:,} "
        f"steps; without the other data it would be drawn {without_others:.0f} times. Policies "
        f"with fewer than {FEW_DRAWS} draws solved a third of the rollouts that policies trained "
        "on the target alone solved (docs/results.md): train with more --steps, or use "
        f"{REMEDIES[settings.recipe]}",
        stacklevel=2,
    )
