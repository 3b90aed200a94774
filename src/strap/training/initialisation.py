"""What a fresh policy begins with: the data's normalisation, ImageNet weights."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import cast

import numpy as np
import torch

from strap.errors import StrapError
from strap.policies.observation import ObservationEncoder
from strap.policies.settings import PolicySettings
from strap.training.cache import FrameCache
from strap.training.windows import Windows

MAX_ACTION = 1.001
"""the largest action that a tanh can come near to"""


def normalise(
    observation: ObservationEncoder, cache: FrameCache, windows: Windows, settings: PolicySettings
) -> None:
    """Set the policy's normalisation from the frames it will train on."""
    rows = np.unique(windows.anchor)
    if settings.normalize != "none" and cache.states.shape[1]:
        states = np.asarray(cache.states[rows], np.float64)
        observation.state_mean.copy_(torch.from_numpy(states.mean(0)))
        observation.state_std.copy_(torch.from_numpy(states.std(0).clip(min=1e-3)))
    actions = np.asarray(cache.actions[rows], np.float64)
    if settings.normalize != "all":
        if np.abs(actions).max() > MAX_ACTION:
            warnings.warn(
                f"actions reach {np.abs(actions).max():.3g}, but a policy without action "
                "normalisation predicts −1 … 1: pass --normalize all",
                stacklevel=2,
            )
    else:
        low, high = actions.min(0), actions.max(0)
        observation.action_middle.copy_(torch.from_numpy((low + high) / 2))
        observation.action_range.copy_(torch.from_numpy(((high - low) / 2).clip(min=1e-3)))


def load_imagenet_weights(observation: ObservationEncoder, file: Path) -> None:
    """Begin every camera's ResNet with the weights of a file."""
    from strap.policies.vision import ResNet18, load_imagenet

    for camera in observation.cameras:
        resnet = getattr(camera, "resnet", None)
        if resnet is None:
            raise StrapError("ImageNet weights are for --vision resnet; frozen vision has its own")
        load_imagenet(cast(ResNet18, resnet), file)
