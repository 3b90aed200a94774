"""Images to model input, in batches of tensors: the arithmetic of the models' own processors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Resample = Literal["bilinear", "bicubic"]
CONVNEXT_LARGE = 384


@dataclass(frozen=True)
class Preprocessing:
    """Resize, crop the centre, normalise."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    """of values between 0 and 1"""
    shortest_edge: int | None = None
    """resize so that the shorter side has this length"""
    size: tuple[int, int] | None = None
    """or to this height and width"""
    crop: tuple[int, int] | None = None
    """then keep this height and width of the middle"""
    resample: Resample = "bicubic"
    squash: tuple[int, int] | None = None
    """before anything else, resize to this height and width without antialiasing (as the authors'
    code does)"""

    def __call__(self, images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return images uint8 [n h w 3] as [n 3 h' w'] of `dtype`, channels last in memory."""
        pixels = images.permute(0, 3, 1, 2).float()
        if self.squash:
            pixels = _resize(pixels, self.squash, "bilinear", antialias=False)
        target = self.target(pixels.shape[2], pixels.shape[3])
        pixels = _resize(pixels, target, self.resample, antialias=True)
        if self.crop:
            pixels = _centre(pixels, self.crop)
        mean = torch.tensor(self.mean, device=images.device).view(1, 3, 1, 1)
        std = torch.tensor(self.std, device=images.device).view(1, 3, 1, 1)
        normal = (pixels / 255 - mean) / std
        return normal.to(dtype).contiguous(memory_format=torch.channels_last)

    def target(self, height: int, width: int) -> tuple[int, int]:
        """Return the size an image of that height and width is resized to."""
        if self.size:
            return self.size
        if self.shortest_edge is None:
            return height, width
        edge = self.shortest_edge
        if height <= width:
            return edge, int(edge * width / height)
        return int(edge * height / width), edge


def _resize(pixels: Tensor, size: tuple[int, int], mode: str, *, antialias: bool) -> Tensor:
    if tuple(pixels.shape[2:]) == size:
        return pixels
    resized = F.interpolate(pixels, size, mode=mode, antialias=antialias, align_corners=False)
    return resized.round().clamp(0, 255)  # the processors pass through 8-bit images


def _centre(pixels: Tensor, crop: tuple[int, int]) -> Tensor:
    (height, width), (tall, wide) = pixels.shape[2:], crop
    top, left = (height - tall) // 2, (width - wide) // 2
    if top < 0 or left < 0:  # smaller than the crop: black around it
        top, left = min(top, 0), min(left, 0)
        pad = (-left, wide - width + left, -top, tall - height + top)
        pixels = F.pad(pixels, [max(p, 0) for p in pad])
        top, left = (pixels.shape[2] - tall) // 2, (pixels.shape[3] - wide) // 2
    return pixels[:, :, top : top + tall, left : left + wide]


def from_processor(processor: Any) -> Preprocessing:
    """Return what a transformers image processor does, read off its settings."""
    size = dict(processor.size or {}) if getattr(processor, "do_resize", True) else {}
    cut = dict(processor.crop_size or {}) if getattr(processor, "do_center_crop", False) else {}
    both = (int(size["height"]), int(size["width"])) if "height" in size else None
    edge = int(size["shortest_edge"]) if "shortest_edge" in size else None
    crop = (int(cut["height"]), int(cut["width"])) if cut else None
    share = getattr(processor, "crop_pct", None)
    if share and edge:  # ResNet, ConvNeXt: small ones are resized larger and cut, large ones not
        both, crop = (None, (edge, edge)) if edge < CONVNEXT_LARGE else ((edge, edge), None)
        edge = int(edge / share) if both is None else None
    normalise = getattr(processor, "do_normalize", True)
    return Preprocessing(
        mean=_triple(processor.image_mean if normalise else 0.0),
        std=_triple(processor.image_std if normalise else 1.0),
        shortest_edge=edge,
        size=both,
        crop=crop,
        resample="bilinear" if int(getattr(processor, "resample", 3)) == 2 else "bicubic",
    )


def _triple(value: Any) -> tuple[float, float, float]:
    if isinstance(value, int | float):
        return (float(value),) * 3
    red, green, blue = value
    return float(red), float(green), float(blue)
