"""Encode a frame as one vector: camera features, proprioception and instruction concatenated."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from strap.policies.settings import Interface, PolicySettings
from strap.policies.vision import MapCamera, ResNetCamera


class ObservationEncoder(nn.Module):
    """Encodes frames as feature vectors; holds the normalisation of proprioception and actions."""

    state_mean: Tensor
    state_std: Tensor
    action_middle: Tensor
    action_range: Tensor

    def __init__(self, interface: Interface, settings: PolicySettings) -> None:
        super().__init__()
        self.interface = interface
        self.language = settings.language
        camera = MapCamera if settings.vision == "frozen" else ResNetCamera
        self.cameras = nn.ModuleList(camera(interface, settings) for _ in interface.cameras)
        state_size = sum(interface.proprioception.values())
        self.size = len(interface.cameras) * settings.features + state_size
        self.size += interface.language_size if settings.language else 0
        self.register_buffer("state_mean", torch.zeros(state_size))
        self.register_buffer("state_std", torch.ones(state_size))
        self.register_buffer("action_middle", torch.zeros(interface.action_size))
        self.register_buffer("action_range", torch.ones(interface.action_size))

    def forward(
        self, images: Mapping[str, Tensor], proprioception: Tensor, language: Tensor
    ) -> Tensor:
        """Encode images [b h …], proprioception [b h d] and language [b l] as [b h size]."""
        state = (proprioception - self.state_mean) / self.state_std
        parts = [
            camera(images[name], language)
            for name, camera in zip(self.interface.cameras, self.cameras, strict=True)
        ]
        parts.append(state.to(parts[0].dtype) if parts else state)
        if self.language:
            repeated = language[:, None].expand(-1, proprioception.shape[1], -1)  # for each frame
            parts.append(repeated.to(parts[0].dtype))
        return torch.cat(parts, dim=-1)

    def scale_actions(self, actions: Tensor) -> Tensor:
        """Convert recorded actions to the range that the head predicts."""
        return (actions - self.action_middle) / self.action_range

    def restore_actions(self, actions: Tensor) -> Tensor:
        """Convert predicted actions to the range of the recorded ones."""
        return actions * self.action_range + self.action_middle
