"""The diffusion policy: it removes noise from a sequence of actions step by step (DDPM)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from strap.errors import StrapError
from strap.policies.batch import Batch
from strap.policies.observation import ObservationEncoder
from strap.policies.settings import Interface, PolicySettings
from strap.policies.unet import TimeUNet


class DiffusionPolicy(nn.Module):
    """Predicts noise (ε) under a squared-cosine schedule, given the observed frames."""

    _alpha_bar: Tensor
    """[steps], the share of the clean actions' variance after each diffusion step"""

    def __init__(self, interface: Interface, settings: PolicySettings) -> None:
        super().__init__()
        factor = 2 ** (len(settings.channels) - 1)
        if settings.chunk % factor:
            raise StrapError(
                f"chunk {settings.chunk} must be a multiple of {factor}: the U-Net halves time "
                f"{len(settings.channels) - 1} times"
            )
        self.interface, self.settings = interface, settings
        self.observation = ObservationEncoder(interface, settings)
        condition = settings.history * self.observation.size
        self.unet = TimeUNet(
            interface.action_size, condition, settings.channels, settings.kernel, settings.groups
        )
        alpha_bar = cosine_schedule(settings.diffusion_steps)
        self.register_buffer("_alpha_bar", alpha_bar, persistent=False)

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean squared error of the predicted noise over the valid actions."""
        features = self.observation(batch.images, batch.proprioception, batch.language)
        clean = self.observation.scale_actions(batch.actions)
        step = torch.randint(self.settings.diffusion_steps, (len(clean),), device=clean.device)
        noise = torch.randn_like(clean)
        alpha_bar = self._alpha_bar[step][:, None, None]
        noisy = alpha_bar.sqrt() * clean + (1 - alpha_bar).sqrt() * noise
        guess = self.unet(noisy, step, features.flatten(1)).float()
        valid = batch.valid.to(guess.dtype)
        error = ((guess - noise) ** 2).mean(-1)
        mean: Tensor = (error * valid).sum() / valid.sum().clamp(min=1)
        return mean

    forward = loss

    def predict(
        self, features: Tensor, generators: Sequence[torch.Generator] | None = None
    ) -> Tensor:
        """Return actions [b c a] for features [b h f], by the whole reverse process."""
        condition = features.flatten(1)
        shape = (self.settings.chunk, self.interface.action_size)
        x = _noise(len(features), shape, generators).to(features)
        for number in reversed(range(self.settings.diffusion_steps)):
            step = torch.full((len(x),), number, device=x.device)
            guess = self.unet(x, step, condition)
            x = self._previous(x, guess, number, generators)
        return self.observation.restore_actions(x)

    def _previous(
        self,
        x: Tensor,
        guess: Tensor,
        number: int,
        generators: Sequence[torch.Generator] | None,
    ) -> Tensor:
        """Take one reverse step: sample the posterior given the clean actions `guess` implies."""
        now = self._alpha_bar[number]
        before = self._alpha_bar[number - 1] if number else torch.ones_like(now)
        clean = ((x - (1 - now).sqrt() * guess) / now.sqrt()).clamp(-1, 1)
        alpha = now / before
        mean = before.sqrt() * (1 - alpha) / (1 - now) * clean
        mean = mean + alpha.sqrt() * (1 - before) / (1 - now) * x
        if number == 0:
            return mean
        variance = (1 - before) / (1 - now) * (1 - alpha)
        noise = _noise(len(x), tuple(x.shape[1:]), generators).to(x)
        return mean + variance.sqrt() * noise


def cosine_schedule(steps: int) -> Tensor:
    """Return ᾱ, the share of the clean signal's variance that is left after each step [steps]."""

    def level(t: float) -> float:
        return math.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2

    alpha_bar, product = [], 1.0
    for index in range(steps):
        beta = min(1 - level((index + 1) / steps) / level(index / steps), 0.999)
        product *= 1 - beta
        alpha_bar.append(product)
    return torch.tensor(alpha_bar)


def _noise(
    count: int, shape: tuple[int, ...], generators: Sequence[torch.Generator] | None
) -> Tensor:
    if generators is None:
        return torch.randn(count, *shape)
    return torch.stack([torch.randn(shape, generator=one) for one in generators])
