"""A U-Net over time that predicts the noise in a sequence of actions, for the diffusion policy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TimeBlock(nn.Module):
    """Two convolutions over time; the condition scales and shifts the output of the first one."""

    def __init__(self, inputs: int, outputs: int, condition: int, kernel: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(inputs, outputs, kernel, padding=kernel // 2)
        self.norm1 = nn.GroupNorm(groups, outputs)
        self.film = nn.Linear(condition, 2 * outputs)
        self.conv2 = nn.Conv1d(outputs, outputs, kernel, padding=kernel // 2)
        self.norm2 = nn.GroupNorm(groups, outputs)
        self.shortcut = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Map [b i t] to [b o t], given a condition [b c]."""
        y = F.mish(self.norm1(self.conv1(x)))
        scale, shift = self.film(F.mish(condition)).unsqueeze(-1).chunk(2, dim=1)
        y = y * (1 + scale) + shift
        y = F.mish(self.norm2(self.conv2(y)))
        total: Tensor = y + self.shortcut(x)
        return total


class TimeUNet(nn.Module):
    """Halves the length at each level, doubles it again, and joins levels of equal length."""

    def __init__(
        self, actions: int, condition: int, channels: Sequence[int], kernel: int, groups: int
    ) -> None:
        super().__init__()
        self.step_size = channels[0]
        self.step = nn.Sequential(
            nn.Linear(self.step_size, 4 * self.step_size),
            nn.Mish(),
            nn.Linear(4 * self.step_size, self.step_size),
        )
        condition_size = condition + self.step_size
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        self.smaller, self.larger = nn.ModuleList(), nn.ModuleList()
        inputs = actions
        for level, width in enumerate(channels):
            last = level == len(channels) - 1
            self.down.append(_pair(inputs, width, condition_size, kernel, groups))
            self.smaller.append(nn.Identity() if last else nn.Conv1d(width, width, 3, 2, 1))
            inputs = width
        self.middle = _pair(inputs, inputs, condition_size, kernel, groups)
        for level in reversed(range(1, len(channels))):
            width = channels[level - 1]
            self.up.append(_pair(2 * channels[level], width, condition_size, kernel, groups))
            self.larger.append(nn.ConvTranspose1d(width, width, 4, 2, 1))
        width = channels[0]
        self.last = nn.Sequential(
            nn.Conv1d(width, width, kernel, padding=kernel // 2),
            nn.GroupNorm(groups, width),
            nn.Mish(),
            nn.Conv1d(width, actions, 1),
        )

    def forward(self, actions: Tensor, step: Tensor, condition: Tensor) -> Tensor:
        """Predict the noise [b t a] in actions [b t a] at a diffusion step [b], given [b c]."""
        condition = torch.cat([condition, self.step(_embed_step(step, self.step_size))], dim=-1)
        x, levels = actions.transpose(1, 2), []
        for pair, smaller in zip(self.down, self.smaller, strict=True):
            x = _apply_pair(pair, x, condition)
            levels.append(x)
            x = smaller(x)
        x = _apply_pair(self.middle, x, condition)
        for pair, larger in zip(self.up, self.larger, strict=True):
            x = larger(_apply_pair(pair, torch.cat([x, levels.pop()], dim=1), condition))
        noise: Tensor = self.last(x).transpose(1, 2)
        return noise


def _pair(inputs: int, outputs: int, condition: int, kernel: int, groups: int) -> nn.ModuleList:
    return nn.ModuleList(
        [
            TimeBlock(inputs, outputs, condition, kernel, groups),
            TimeBlock(outputs, outputs, condition, kernel, groups),
        ]
    )


def _apply_pair(pair: nn.Module, x: Tensor, condition: Tensor) -> Tensor:
    for block in pair.children():
        x = block(x, condition)
    return x


def _embed_step(step: Tensor, size: int) -> Tensor:
    """Return sines and cosines of a step number: [b] -> [b size]."""
    half = size // 2
    rates = torch.exp(torch.arange(half, device=step.device) * (-math.log(10_000) / (half - 1)))
    angles = step.float()[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1)
