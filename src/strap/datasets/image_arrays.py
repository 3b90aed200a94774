"""Pictures that lie as plain arrays, channels last or first, bytes or floats: as uint8 [t h w 3].

Whether an array is pictures is told by its shape, its type and, where these leave doubt, its name.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from strap.errors import StrapError
from strap.lazy_arrays import LazyArray
from strap.types import Array

CAMERA_WORDS = ("image", "img", "rgb", "cam", "view", "color", "colour", "pixel", "frame")
"""parts of the names of cameras"""
NON_CAMERA_WORDS = ("depth", "normal", "seg", "mask", "cloud", "point", "xyz", "flow")
"""parts of the names of arrays that have three channels and are no colours"""
MAX_CHANNELS = 4
SAMPLED_FRAMES = 9
"""of an episode, by which it is told whether its floats go to 1 or to 255"""
MIN_SIDE = 8
"""pixels of a side: what is smaller, channels first, may be a matrix"""


def is_image_array(name: str, shape: Sequence[int | None], dtype: np.dtype[Any]) -> bool:
    """Return whether rows of this shape (the time left out) are colour pictures.

    Bytes with the channels last always are; other types, and channels first, need a name that
    says so, such as `wrist_image`.
    """
    if len(shape) != 3 or dtype.kind not in "uif" or 3 not in (shape[0], shape[2]):
        return False
    if shape[2] == 3 and dtype == np.uint8:
        return True
    word = name.lower()
    is_named = any(part in word for part in CAMERA_WORDS)
    is_large = shape[2] == 3 or min(shape[1] or 0, shape[2] or 0) >= MIN_SIDE
    return is_named and is_large and not any(part in word for part in NON_CAMERA_WORDS)


def find_pixel_rows(
    name: str, shape: Sequence[int], camera_sizes: Collection[tuple[int, ...]]
) -> int | None:
    """Return the axis of an array [t …] along which rows of pixels lie, None where there is none.

    Args:
        name: the array's; a depth map is told by it too, whatever its size.
        shape: its shape, the time left out: [h w], or with channels before or after.
        camera_sizes: [h w] of the cameras beside it; what has such a size lies on pixels.
    """
    if len(shape) not in (2, 3):
        return None
    is_first = len(shape) == 3 and shape[2] > MAX_CHANNELS >= shape[0]
    size = tuple(shape[1:] if is_first else shape[:2])
    is_depth = "depth" in name.lower() and min(size) >= MIN_SIDE and max(size) <= 4 * min(size)
    return 1 + is_first if is_depth or size in camera_sizes else None


def as_uint8_images(array: LazyArray, where: str) -> LazyArray:
    """Return pictures [t h w 3] or [t 3 h w] of any number type as uint8 [t h w 3].

    Floats go from 0 to 1 or from 0 to 255. Errors name `where`.
    """
    is_first = array.shape[3] != 3
    if array.dtype == np.uint8 and not is_first:
        return array
    height, width = array.shape[2:4] if is_first else array.shape[1:3]
    scale = cache(partial(_scale, array))

    def read(start: int, stop: int) -> Array:
        frames = array.read(start, stop)
        if array.dtype != np.uint8:
            frames = _as_bytes(frames, scale(), where, f"in frames {start}:{stop}")
        return np.ascontiguousarray(np.moveaxis(frames, 1, 3)) if is_first else frames

    return LazyArray((array.shape[0], height, width, 3), np.dtype(np.uint8), read)


def _scale(array: LazyArray) -> float:
    """Return what makes grey levels of the values; floats up to about 1 are shares of 255.

    Some frames of the whole episode decide, not those that are asked for: a dark one must not be
    stretched. Values up to 2 are shares that go too far, which is an error where they are read.
    """
    if array.dtype.kind != "f" or not len(array):
        return 1.0
    places = np.unique(np.linspace(0, len(array) - 1, SAMPLED_FRAMES).astype(int))
    # What is no number is an error where it is read, and decides nothing about other frames.
    shown = [array.read(place, place + 1) for place in places]
    largest = max(frame[np.isfinite(frame)].max(initial=0) for frame in shown)
    return 255.0 if largest <= 2 else 1.0


def _as_bytes(frames: Array, scale: float, where: str, part: str) -> Array:
    if not np.isfinite(frames).all():
        raise StrapError(
            f"{where} has pixels that are no numbers {part}; it is damaged: copy or download it "
            "again, or leave it out"
        )
    pixels = np.rint(frames * scale)
    low, high = float(frames.min(initial=0)), float(frames.max(initial=0))
    if low * scale < -0.5 or high * scale > 255.5:
        raise StrapError(
            f"{where} has pixels from {low:g} to {high:g} {part}; pictures are bytes, or numbers "
            "from 0 to 1 or from 0 to 255: undo their normalisation"
        )
    return pixels.clip(0, 255).astype(np.uint8)
