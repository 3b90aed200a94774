"""What a policy makes of a frame: cameras, proprioception and instruction side by side."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from strap.policies.settings import Interface, PolicySettings
from strap.policies.vision import MapCamera, ResNetCamera


class ObservationEncoder(nn.Module):
    """Frames to feature vectors; holds the normalisation of what goes in and comes out."""

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
        low = sum(interface.proprioception.values())
        self.size = len(interface.cameras) * settings.features + low
        self.size += interface.language_size if settings.language else 0
        self.register_buffer("state_mean", torch.zeros(low))
        self.register_buffer("state_std", torch.ones(low))
        self.register_buffer("action_middle", torch.zeros(interface.action_size))
        self.register_buffer("action_range", torch.ones(interface.action_size))

    def forward(
        self, images: Mapping[str, Tensor], proprioception: Tensor, language: Tensor
    ) -> Tensor:
        """Images [b h …] by camera, [b h d], [b l] -> [b h size]."""
        state = (proprioception - self.state_mean) / self.state_std
        parts = [
            camera(images[name], language)
            for name, camera in zip(self.interface.cameras, self.cameras, strict=True)
        ]
        parts.append(state.to(parts[0].dtype) if parts else state)
        if self.language:
            spread = language[:, None].expand(-1, proprioception.shape[1], -1)
            parts.append(spread.to(parts[0].dtype))
        return torch.cat(parts, dim=-1)

    def scale_actions(self, actions: Tensor) -> Tensor:
        """As recorded -> as the head predicts them."""
        return (actions - self.action_middle) / self.action_range

    def restore_actions(self, actions: Tensor) -> Tensor:
        """As the head predicts them -> as recorded."""
        return actions * self.action_range + self.action_middle
