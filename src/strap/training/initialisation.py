"""Initialise a policy: the data's normalisation, ImageNet weights, or a checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from strap.errors import StrapError
from strap.policies.checkpoints import (
    fingerprint_weights,
    load_checkpoint,
    load_config,
    read_tensors,
)
from strap.policies.frozen_vision import Projection
from strap.policies.observation import ObservationEncoder
from strap.policies.settings import PolicySettings
from strap.training.cache import FrameCache
from strap.training.windows import Windows

MAX_ACTION = 1.001
"""largest action that a tanh can predict, with a margin for rounding"""
CHANGEABLE = {
    *("execute", "blend", "acting", "acting_std", "min_std"),
    *("dropout", "attention_dropout", "normalize", "initial", "horizon"),
}
"""settings that may differ from those of the initial checkpoint"""


def normalise(
    observation: ObservationEncoder, cache: FrameCache, windows: Windows, settings: PolicySettings
) -> None:
    """Compute the policy's normalisation from the frames it will train on."""
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


def load_imagenet_weights(observation: ObservationEncoder, source: str | Path) -> None:
    """Load ImageNet weights from a file, a folder or the hub into every camera's ResNet."""
    from strap.policies.vision import ResNet18, load_imagenet

    file = locate_imagenet(source)
    for camera in observation.cameras:
        resnet = getattr(camera, "resnet", None)
        if resnet is None:
            raise StrapError("ImageNet weights are for --vision resnet; frozen vision has its own")
        load_imagenet(cast(ResNet18, resnet), file)


def locate_imagenet(source: str | Path) -> Path:
    """Return the path of the ResNet-18 weights for a file, a folder or a hub id.

    A hub model is read from the local cache, or downloaded.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return path
    from transformers.utils.hub import cached_file

    try:
        found = cached_file(str(path) if path.is_dir() else str(source), "model.safetensors")
    except (OSError, ValueError) as error:
        raise StrapError(
            f"the initial ResNet-18 weights, '{source}', are not on this machine and could not be "
            "downloaded: give a file of torchvision, timm or transformers with --imagenet, or "
            "train from scratch with --preset fixed"
        ) from error
    return Path(str(found))


def describe_origin(path: str | Path) -> dict[str, Any]:
    """Describe an initial checkpoint, for the description of the checkpoint trained from it."""
    folder = Path(path).expanduser()
    config = load_config(folder)
    return {
        "path": folder.resolve().as_posix(),
        "fingerprint": fingerprint_weights(folder),
        "step": config.get("step"),
    }


def load_initial_weights(
    policy: nn.Module,
    path: str | Path,
    cache: FrameCache,
    settings: PolicySettings,
    projection: Projection | None,
) -> None:
    """Load a checkpoint's weights and normalisation into a policy with the same inputs and outputs.

    Args:
        policy: the policy to initialise.
        path: the checkpoint.
        cache: the training data; cameras, sizes and language must be those of the checkpoint.
        settings: the policy's settings; those of its network must be those of the checkpoint.
        projection: for frozen vision: the projection of the cache's feature maps.
    """
    folder = Path(path).expanduser()
    config = load_config(folder)
    if wrong := _difference(cache, settings, config):
        raise StrapError(
            f"cannot start from '{folder}': this training has {wrong} as in that checkpoint; train "
            "with that checkpoint's inputs and settings, or without --init"
        )
    initial = load_checkpoint(folder, policy=policy)
    if projection is not None and not _same_projection(projection, initial.projection):
        raise StrapError(
            f"cannot start from '{folder}': its feature maps were projected differently from those "
            "of this cache; train both with --frames and the same cache of `strap cache`"
        )


def _difference(
    cache: FrameCache, settings: PolicySettings, config: Mapping[str, Any]
) -> str | None:
    """Return the first difference, such as `width 64, not 256`; None if the checkpoint fits."""
    if wrong := cache.interface.difference(config["interface"]):
        return wrong
    if cache.language_encoder != config.get("language"):
        return f"text encoder {cache.language_encoder}, not {config.get('language')}"
    for entry in fields(PolicySettings):
        here, there = getattr(settings, entry.name), getattr(config["settings"], entry.name)
        if entry.name not in CHANGEABLE and here != there:
            return f"{entry.name.replace('_', ' ')} {here}, not {there}"
    return None


def _same_projection(ours: Projection, theirs: Projection | None) -> bool:
    return (
        theirs is not None
        and torch.equal(ours.mean, theirs.mean)
        and torch.equal(ours.directions, theirs.directions)
    )


def read_projection(cache: FrameCache) -> Projection | None:
    """Return the projection of a cache's feature maps, or None if it has none."""
    file = cache.path / "tensors.safetensors"
    if not file.is_file():
        return None
    tensors = read_tensors(file)
    return Projection(tensors["mean"], tensors["directions"])
