"""The variational autoencoder of both representations, which differ in their picture encoder.

A picture is the input of a frame: an image for `br`, an optical flow for `fr`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strap.policies.vision import MEAN, STD, WIDTHS, ResNet18, SpatialSoftmax
from strap.representations.settings import GRID, Kind, RepresentationSettings

DECODER_WIDTHS = (256, 128, 64, 32, 16)
"""channels before each doubling of the picture"""
MAX_LOG_VARIANCE = 10.0


class PictureEncoder(nn.Module):
    """ResNet-18 with a summary of its feature map: keypoints of an image, few channels of a flow.

    A keypoint is only a position. The speed at that position would be lost, so for flows the map
    itself is kept.
    """

    _mean: Tensor
    _std: Tensor

    def __init__(self, kind: Kind, settings: RepresentationSettings) -> None:
        super().__init__()
        self.resnet = ResNet18()
        places = (settings.image_size // GRID) ** 2
        if kind == "br":
            self.summary: nn.Module = SpatialSoftmax(WIDTHS[-1], settings.keypoints)
            self.linear = nn.Linear(2 * settings.keypoints, settings.features)
            mean, std = torch.tensor(MEAN), torch.tensor(STD)
        else:
            self.resnet.conv1 = nn.Conv2d(2, WIDTHS[0], 7, 2, 3, bias=False)
            kept = nn.Conv2d(WIDTHS[-1], settings.keypoints, 1)
            self.summary = nn.Sequential(kept, nn.Flatten())
            self.linear = nn.Linear(places * settings.keypoints, settings.features)
            mean, std = torch.zeros(2), torch.ones(2)
        self.register_buffer("_mean", mean.view(-1, 1, 1), persistent=False)
        self.register_buffer("_std", std.view(-1, 1, 1), persistent=False)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the features [n f] of pictures [n c s s]."""
        summary = self.summary(self.resnet((pictures - self._mean) / self._std))
        features: Tensor = self.linear(summary)
        return F.relu(features)


class PictureDecoder(nn.Module):
    """A decoder from a code to a picture, which doubles the side of a small map five times."""

    def __init__(self, settings: RepresentationSettings, channels: int) -> None:
        super().__init__()
        self.grid = settings.image_size // GRID
        self.linear = nn.Linear(settings.latent, DECODER_WIDTHS[0] * self.grid**2)
        layers: list[nn.Module] = []
        for width, following in pairwise((*DECODER_WIDTHS, channels)):
            layers += [nn.ReLU(), nn.ConvTranspose2d(width, following, 4, 2, 1)]
        self.doublings = nn.Sequential(*layers)

    def forward(self, code: Tensor) -> Tensor:
        """Return the pictures [n c s s] of codes [n l]."""
        coarse = self.linear(code).view(len(code), DECODER_WIDTHS[0], self.grid, self.grid)
        picture: Tensor = self.doublings(coarse)
        return picture


class RepresentationVAE(nn.Module):
    """The variational autoencoder: it encodes pictures (and actions) as codes, and decodes them."""

    action_mean: Tensor
    action_std: Tensor
    latent_spread: Tensor

    def __init__(self, kind: Kind, settings: RepresentationSettings, action_size: int) -> None:
        super().__init__()
        self.kind, self.settings, self.action_size = kind, settings, action_size
        self.encoder = PictureEncoder(kind, settings)
        inputs = settings.features + action_size
        self.posterior = _perceptron(inputs, settings.hidden, 2 * settings.latent)
        self.picture_decoder = PictureDecoder(settings, 3 if kind == "br" else 2)
        if action_size:
            self.action_decoder = _perceptron(settings.latent, settings.hidden[::-1], action_size)
        self.register_buffer("action_mean", torch.zeros(action_size))
        self.register_buffer("action_std", torch.ones(action_size))
        self.register_buffer("latent_spread", torch.ones(()))

    def encode(self, pictures: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log-variance [n l] of the codes for pictures [n c s s], actions [n a]."""
        scaled = (actions - self.action_mean) / self.action_std
        joined = torch.cat([self.encoder(pictures), scaled], dim=1)
        mean, log_variance = self.posterior(joined).float().chunk(2, dim=1)
        return mean, log_variance.clamp(-MAX_LOG_VARIANCE, MAX_LOG_VARIANCE)

    def losses(self, pictures: Tensor, actions: Tensor, noise: Tensor) -> Tensor:
        """Return [picture error, action error, KL divergence], each a mean over the batch.

        Args:
            pictures: [n c s s], from `to_channels`.
            actions: [n a].
            noise: standard normal [n l], with which the codes are sampled.
        """
        mean, log_variance = self.encode(pictures, actions)
        code = mean + noise * (0.5 * log_variance).exp()
        divergence = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum(1).mean()
        picture = F.mse_loss(self.picture_decoder(code).float(), pictures)
        action = torch.zeros_like(picture)
        if self.action_size:
            scaled = (actions - self.action_mean) / self.action_std
            action = F.mse_loss(self.action_decoder(code).float(), scaled)
        return torch.stack([picture, action, divergence])

    def keys(self, pictures: Tensor, actions: Tensor) -> Tensor:
        """Return the vectors [n d] to compare frames by: the posterior mean, for `br` ‖ the action.

        The two parts of a `br` key are divided by their spread in the training data: the code by
        one number, each action dimension by its own number and √(action size). So both parts have a
        total variance of 1, and weigh the same in a distance or a cosine.
        """
        mean, _ = self.encode(pictures, actions)
        if not self.action_size:
            return mean
        spread = self.action_std * self.action_size**0.5
        return torch.cat([mean / self.latent_spread, actions / spread], dim=1)


def to_channels(pictures: Tensor) -> Tensor:
    """Return images uint8 [n s s 3], scaled to 0…1, or flows float16 [n s s 2] as [n c s s]."""
    values = pictures.permute(0, 3, 1, 2).float()
    return values / 255 if pictures.dtype == torch.uint8 else values


def _perceptron(inputs: int, hidden: Sequence[int], outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width, following in pairwise((inputs, *hidden)):
        layers += [nn.Linear(width, following), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden[-1], outputs))
