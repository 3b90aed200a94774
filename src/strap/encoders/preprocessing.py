"""Preprocessing of image batches, with the same arithmetic as the models' own processors."""

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
    """The steps from images to a model's input: resize, crop the centre, normalise."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    """mean and standard deviation of pixel values from 0 to 1"""
    shortest_edge: int | None = None
    """resize so that the shorter side has this length"""
    size: tuple[int, int] | None = None
    """resize to this height and width instead"""
    crop: tuple[int, int] | None = None
    """after resizing, keep this height and width of the centre"""
    resample: Resample = "bicubic"
    squash: tuple[int, int] | None = None
    """before everything else, resize to this height and width without antialiasing (as the
    authors' code does)"""

    def __call__(self, images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return images uint8 [n h w 3] as [n 3 h' w'] of `dtype`, channels last in memory."""
        pixels = images.permute(0, 3, 1, 2).float()
        if self.squash:
            pixels = _resize(pixels, self.squash, "bilinear", antialias=False)
        target = self.target(pixels.shape[2], pixels.shape[3])
        pixels = _resize(pixels, target, self.resample, antialias=True)
        if self.crop:
            pixels = _crop_centre(pixels, self.crop)
        mean = torch.tensor(self.mean, device=images.device).view(1, 3, 1, 1)
        std = torch.tensor(self.std, device=images.device).view(1, 3, 1, 1)
        normal = (pixels / 255 - mean) / std
        return normal.to(dtype).contiguous(memory_format=torch.channels_last)

    def target(self, height: int, width: int) -> tuple[int, int]:
        """Return the size to which an image of this height and width is resized."""
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
    return resized.round().clamp(0, 255)  # the models' processors resize 8-bit images


def _crop_centre(pixels: Tensor, crop: tuple[int, int]) -> Tensor:
    (height, width), (new_height, new_width) = pixels.shape[2:], crop
    top, left = (height - new_height) // 2, (width - new_width) // 2
    if top < 0 or left < 0:  # the image is smaller than the crop: pad it with black
        top, left = min(top, 0), min(left, 0)
        pad = (-left, new_width - width + left, -top, new_height - height + top)
        pixels = F.pad(pixels, [max(p, 0) for p in pad])
        top, left = (pixels.shape[2] - new_height) // 2, (pixels.shape[3] - new_width) // 2
    return pixels[:, :, top : top + new_height, left : left + new_width]


def from_processor(processor: Any) -> Preprocessing:
    """Return the preprocessing that a transformers image processor does, from its settings."""
    size = dict(processor.size or {}) if getattr(processor, "do_resize", True) else {}
    cut = dict(processor.crop_size or {}) if getattr(processor, "do_center_crop", False) else {}
    fixed = (int(size["height"]), int(size["width"])) if "height" in size else None
    edge = int(size["shortest_edge"]) if "shortest_edge" in size else None
    crop = (int(cut["height"]), int(cut["width"])) if cut else None
    crop_share = getattr(processor, "crop_pct", None)
    if crop_share and edge:  # ResNet, ConvNeXt: a small input is cut out of a larger image
        fixed, crop = (None, (edge, edge)) if edge < CONVNEXT_LARGE else ((edge, edge), None)
        edge = int(edge / crop_share) if fixed is None else None
    normalise = getattr(processor, "do_normalize", True)
    return Preprocessing(
        mean=_triple(processor.image_mean if normalise else 0.0),
        std=_triple(processor.image_std if normalise else 1.0),
        shortest_edge=edge,
        size=fixed,
        crop=crop,
        resample="bilinear" if int(getattr(processor, "resample", 3)) == 2 else "bicubic",
    )


def _triple(value: Any) -> tuple[float, float, float]:
    if isinstance(value, int | float):
        return (float(value),) * 3
    red, green, blue = value
    return float(red), float(green), float(blue)
