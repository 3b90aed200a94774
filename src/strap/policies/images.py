"""Resize and crop images for a policy."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from strap.types import Array


def resize_square(images: Array, size: int) -> Array:
    """Resize uint8 images [n h w 3] to [n size size 3]; return images of that size unchanged."""
    if images.shape[1:3] == (size, size):
        return images
    # Images from a network are read-only, which torch warns about: those are copied.
    writable = np.require(images, requirements=("C", "W"))
    pixels = torch.from_numpy(writable).permute(0, 3, 1, 2).float()
    small = F.interpolate(pixels, (size, size), mode="bilinear", antialias=True)
    return np.asarray(small.round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy())


def centre_crop_start(size: int, crop: int) -> int:
    """Return the first row (and column) of a centre crop."""
    return (size - crop) // 2


def crop_clips(frames: Tensor, rows: Tensor, corner: Tensor, crop: int) -> Tensor:
    """Crop the frames of clips, with one corner per clip or one per frame.

    Args:
        frames: uint8 [n s s 3].
        rows: index of each clip's frames in `frames` [b h].
        corner: (top, left) of one crop per clip [b 1 2], or of one per frame [b h 2].
        crop: side of the crop in pixels.

    Returns:
        uint8 [b h crop crop 3].
    """
    crop_frames = crop_by_slices if frames.device.type == "cpu" else crop_by_gathering
    return crop_frames(frames, rows, corner, crop)


def crop_by_gathering(frames: Tensor, rows: Tensor, corner: Tensor, crop: int) -> Tensor:
    """Crop with one indexing operation, which is fastest on a GPU; see `crop_clips`."""
    steps = torch.arange(crop, device=frames.device)
    top = corner[:, :, 0, None, None] + steps[:, None]  # [b 1|h crop 1]
    left = corner[:, :, 1, None, None] + steps  # [b 1|h 1 crop]
    return frames[rows[:, :, None, None], top, left]


def crop_by_slices(frames: Tensor, rows: Tensor, corner: Tensor, crop: int) -> Tensor:
    """Crop frame by frame: a CPU copies rows of pixels faster than it gathers single pixels."""
    out = torch.empty((*rows.shape, crop, crop, 3), dtype=frames.dtype)
    corners = corner.expand(*rows.shape, 2).tolist()
    for clip, clip_rows in enumerate(rows.tolist()):
        for index, row in enumerate(clip_rows):
            top, left = corners[clip][index]
            out[clip, index] = frames[row, top : top + crop, left : left + crop]
    return out
