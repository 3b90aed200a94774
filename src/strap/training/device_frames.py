"""Load the images of the clips in use: onto the device if they fit there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from strap.training.cache import FrameCache
from strap.training.windows import Ints, Windows
from strap.types import Array

MAX_FLOAT32_BYTES = 1 << 30
"""feature maps below this many bytes are converted to float32 once, on a CPU"""
MAX_GPU_SHARE = 0.6
"""largest share of the GPU's free memory that images may use"""


@dataclass(frozen=True, eq=False)
class DeviceFrames:
    """Every camera's frames or feature maps, and the row at which each clip begins."""

    images: dict[str, Tensor]
    """camera -> [image rows …]"""
    rows: Ints
    """image row of each clip's first frame; arbitrary for clips that are not in use"""
    is_resident: bool
    """whether the images are on the device that trains"""


def load_frames(
    cache: FrameCache, windows: Sequence[Windows], *, maps: bool, device: torch.device
) -> DeviceFrames:
    """Copy the images of clips that have a window to the device, or map the images of all clips.

    Images are mapped if they do not fit on the GPU. On a CPU only small feature maps are copied.

    Args:
        cache: the cache with the images.
        windows: all windows that will be drawn or evaluated.
        maps: load feature maps instead of frames.
        device: the device that trains.
    """
    read = cache.maps if maps else cache.frames
    stored = {name: _tensor(read(name)) for name in cache.interface.cameras}
    used = used_clips(cache, windows)
    count = sum(cache.clips[number].length for number in used)
    size = sum(t[:1].numel() * t.element_size() * count for t in stored.values())
    is_cpu = device.type == "cpu"
    if is_cpu and not (maps and size < MAX_FLOAT32_BYTES):
        return DeviceFrames(stored, np.array(cache.image_rows, np.int64), True)
    if not is_cpu and size >= MAX_GPU_SHARE * torch.cuda.mem_get_info()[0]:
        return DeviceFrames(stored, np.array(cache.image_rows, np.int64), False)
    return gather_clips(cache, stored, used, device)


def gather_clips(
    cache: FrameCache, stored: Mapping[str, Tensor], used: Sequence[int], device: torch.device
) -> DeviceFrames:
    """Copy the images of some clips to a device, end to end; feature maps on a CPU as float32."""
    lengths = [cache.clips[number].length for number in used]
    rows = np.zeros(len(cache.clips), np.int64)
    rows[list(used)] = np.cumsum([0, *lengths])[:-1]
    images = {}
    for name, source in stored.items():
        widen = device.type == "cpu" and source.is_floating_point()
        dtype = torch.float32 if widen else source.dtype
        gathered = torch.empty((sum(lengths), *source.shape[1:]), dtype=dtype, device=device)
        for number, length in zip(used, lengths, strict=True):
            begin, row = cache.image_rows[number], int(rows[number])
            gathered[row : row + length].copy_(source[begin : begin + length])
        images[name] = gathered
    return DeviceFrames(images, rows, True)


def clip_numbers(cache: FrameCache, windows: Windows) -> Ints:
    """Return the number of each window's clip."""
    begins = np.array([clip.row for clip in cache.clips])
    return np.asarray(np.searchsorted(begins, windows.anchor, side="right") - 1, np.int64)


def used_clips(cache: FrameCache, windows: Sequence[Windows]) -> list[int]:
    """Return the numbers of the clips that have a window."""
    found = np.concatenate([clip_numbers(cache, part) for part in windows])
    return [int(number) for number in np.unique(found)]


def _tensor(array: Array) -> Tensor:
    # Copy-on-write, because torch requires writable memory; nothing is ever written.
    if isinstance(array, np.memmap) and array.filename is not None:
        array = np.load(array.filename, mmap_mode="c", allow_pickle=False)
    return torch.from_numpy(array)
