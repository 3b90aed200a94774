"""The Gaussian-mixture head: parameters, likelihood, sampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Mixture(NamedTuple):
    """A mixture of k diagonal Gaussians for each action."""

    logits: Tensor
    """[… k]"""
    means: Tensor
    """[… k a]"""
    stds: Tensor
    """[… k a]"""

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log-likelihood of actions: [… a] -> […]."""
        z = (actions.unsqueeze(-2) - self.means) / self.stds
        per_mode = -0.5 * (z * z).sum(-1) - self.stds.log().sum(-1)
        constant = 0.5 * self.means.shape[-1] * math.log(2 * math.pi)
        weights = F.log_softmax(self.logits, dim=-1)
        return torch.logsumexp(weights + per_mode, dim=-1) - constant

    def sample(self, std: float, generators: Sequence[torch.Generator] | None = None) -> Tensor:
        """Draw actions [b c a] with every deviation set to `std`; one mode per clip and step.

        With generators, row i only uses generator i, so a stream's actions do not depend on the
        other streams in the batch.
        """
        probabilities = self.logits.float().softmax(-1).cpu()
        row_generators: Sequence[torch.Generator | None] = generators or [None] * len(probabilities)
        rows = []
        for row, generator in zip(probabilities, row_generators, strict=True):
            modes = torch.multinomial(row, 1, generator=generator)
            noise = torch.randn((len(row), self.means.shape[-1]), generator=generator)
            rows.append((modes, noise))
        modes = torch.stack([mode for mode, _ in rows]).to(self.means.device)
        noise = torch.stack([noise for _, noise in rows]).to(self.means.device)
        index = modes.unsqueeze(-1).expand(*modes.shape, self.means.shape[-1])
        return self.means.gather(-2, index).squeeze(-2) + std * noise

    def most_likely(self) -> Tensor:
        """Return the mean of the mode with the largest weight [… a]."""
        index = self.logits.argmax(-1)[..., None, None]
        index = index.expand(*index.shape[:-1], self.means.shape[-1])
        return self.means.gather(-2, index).squeeze(-2)


class MixtureHead(nn.Module):
    """Predicts a mixture from tokens [… w]: tanh means, softplus deviations above `min_std`."""

    def __init__(self, width: int, actions: int, modes: int, min_std: float) -> None:
        super().__init__()
        self.actions, self.modes, self.min_std = actions, modes, min_std
        self.mean = nn.Linear(width, modes * actions)
        self.scale = nn.Linear(width, modes * actions)
        self.logits = nn.Linear(width, modes)

    def forward(self, tokens: Tensor) -> Mixture:
        """Return the mixture over actions, in float32, of tokens [… w]."""
        shape = (*tokens.shape[:-1], self.modes, self.actions)
        means = torch.tanh(self.mean(tokens).float()).view(shape)
        stds = F.softplus(self.scale(tokens).float()).view(shape) + self.min_std
        return Mixture(self.logits(tokens).float(), means, stds)
