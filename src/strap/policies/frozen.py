"""Frozen vision: a small ImageNet network's middle feature maps, few numbers per place.

The map at a sixteenth of the picture's size, with the finer one at an eighth laid beside it (four
places to one), projected on their main directions: where things are is kept, to half a cell.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from strap.encoders.efficientnet import fold_norms, read_network, relu6
from strap.errors import StrapError
from strap.types import Array

CHANNELS = 32
"""Numbers kept per place."""
CELL = 16
"""Pixels a side of a place."""
FINE, COARSE = 4, 10
"""The blocks of EfficientNet-Lite0 whose outputs are taken: 40 and 112 channels."""
SAMPLE = 512
"""Frames from which the main directions are found."""

Halves = npt.NDArray[np.float16]


@dataclass(frozen=True, eq=False)
class Projection:
    """The main directions of the maps' places, scaled to deviation 1."""

    mean: Tensor
    """[c]"""
    directions: Tensor
    """[c k]"""

    def __call__(self, maps: Tensor) -> Tensor:
        """[n p c] -> [n p k]"""
        return (maps - self.mean) @ self.directions


class FrozenVision:
    """uint8 images to feature maps."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        model = read_network()
        model._blocks = model._blocks[: COARSE + 1]
        self.device = torch.device(device)
        fold_norms(model.requires_grad_(False))
        self.model = model.to(self.device)

    @torch.inference_mode()
    def maps(self, images: Array | Tensor) -> Tensor:
        """uint8 [n s s 3], upright -> [n (s/16)² 272], float32 on the device."""
        pixels = torch.as_tensor(
            np.ascontiguousarray(images) if isinstance(images, np.ndarray) else images
        ).to(self.device)
        if pixels.shape[1] % CELL or pixels.shape[2] % CELL:
            raise StrapError(
                f"frozen vision takes images whose sides {CELL} divides, not "
                f"{pixels.shape[1]}×{pixels.shape[2]}: choose another --image-size"
            )
        x = (pixels.permute(0, 3, 1, 2).float() - 127) / 128
        x = relu6(self.model._bn0(self.model._conv_stem(x)))
        fine = x
        for number, block in enumerate(self.model._blocks):
            x = block(x)
            if number == FINE:
                fine = x
        both = torch.cat([x, F.pixel_unshuffle(fine, 2)], dim=1)
        return both.flatten(2).transpose(1, 2).contiguous()

    def project(self, images: Array, projection: Projection, batch: int = 64) -> Halves:
        """uint8 [n s s 3] -> float16 [n p k]."""
        own = Projection(projection.mean.to(self.device), projection.directions.to(self.device))
        parts = [
            own(self.maps(images[start : start + batch])).half().cpu().numpy()
            for start in range(0, len(images), batch)
        ]
        return np.concatenate(parts)


def find_projection(maps: Tensor, channels: int = CHANNELS) -> Projection:
    """The main directions of maps [n p c], by the eigenvectors of their covariance."""
    rows = maps.flatten(0, 1).double()
    # Channels differ in size by orders; each counts alike.
    mean, spread = rows.mean(0), rows.std(0).clamp(min=1e-6)
    normal = (rows - mean) / spread
    values, vectors = torch.linalg.eigh(normal.T @ normal / len(normal))
    values, vectors = values.flip(0)[:channels], vectors.flip(1)[:, :channels]
    # An eigenvector's sign is arbitrary; fixed, so that two machines agree.
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    vectors = vectors * largest.sign()
    directions = vectors / values.clamp(min=1e-6).sqrt() / spread[:, None]
    return Projection(mean.float(), directions.float())
