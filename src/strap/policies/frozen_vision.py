"""Frozen vision: feature maps from the middle of a small ImageNet network, a few numbers per cell.

A cell joins the features of the map at 1/16 of the image's size with those of the four cells that
it covers in the map at 1/8. They are projected on their principal directions. Positions of objects
stay known to half a cell.
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
"""numbers kept per cell"""
CELL = 16
"""side of a cell in pixels"""
FINE, COARSE = 4, 10
"""the blocks of EfficientNet-Lite0 whose outputs are used: 40 and 112 channels"""
SAMPLE = 512
"""frames from which the principal directions are computed"""

Float16s = npt.NDArray[np.float16]


@dataclass(frozen=True, eq=False)
class Projection:
    """The principal directions of the maps' cells, scaled to a standard deviation of 1."""

    mean: Tensor
    """[c]"""
    directions: Tensor
    """[c k]"""

    def __call__(self, maps: Tensor) -> Tensor:
        """Project maps [n p c] to [n p k]."""
        return (maps - self.mean) @ self.directions


class FrozenVision:
    """Computes feature maps of uint8 images."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        model = read_network()
        model._blocks = model._blocks[: COARSE + 1]
        self.device = torch.device(device)
        fold_norms(model.requires_grad_(False))
        self.model = model.to(self.device)

    @torch.inference_mode()
    def maps(self, images: Array | Tensor) -> Tensor:
        """Return maps [n (s/16)² 272], float32 on the device, of upright uint8 images [n s s 3]."""
        pixels = torch.as_tensor(
            np.ascontiguousarray(images) if isinstance(images, np.ndarray) else images
        ).to(self.device)
        if pixels.shape[1] % CELL or pixels.shape[2] % CELL:
            raise StrapError(
                f"frozen vision takes images whose sides are multiples of {CELL}, not "
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

    def project(self, images: Array, projection: Projection, batch: int = 64) -> Float16s:
        """Return projected maps, float16 [n p k], of uint8 images [n s s 3]."""
        local = Projection(projection.mean.to(self.device), projection.directions.to(self.device))
        parts = [
            local(self.maps(images[start : start + batch])).half().cpu().numpy()
            for start in range(0, len(images), batch)
        ]
        return np.concatenate(parts)


def find_projection(maps: Tensor, channels: int = CHANNELS) -> Projection:
    """Return the principal directions of maps [n p c]: eigenvectors of their correlation."""
    rows = maps.flatten(0, 1).double()
    # Channels differ in scale by orders of magnitude: give each the same variance.
    mean, spread = rows.mean(0), rows.std(0).clamp(min=1e-6)
    normal = (rows - mean) / spread
    values, vectors = torch.linalg.eigh(normal.T @ normal / len(normal))
    values, vectors = values.flip(0)[:channels], vectors.flip(1)[:, :channels]
    # An eigenvector's sign is arbitrary: fix it, so that two machines agree.
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    vectors = vectors * largest.sign()
    directions = vectors / values.clamp(min=1e-6).sqrt() / spread[:, None]
    return Projection(mean.float(), directions.float())
