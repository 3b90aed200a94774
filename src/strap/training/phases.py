"""Plan the phases of a training: which windows are drawn from which step on."""

from __future__ import annotations

import numpy as np

from strap.training.cache import FrameCache
from strap.training.settings import TrainingSettings
from strap.training.windows import Floats, Windows, join_windows, prior_windows

Phases = list[tuple[int, Floats]]
"""(first step, probability of each window) of every phase"""


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
