"""Images stored as plain arrays, converted to uint8 [t h w 3].

The arrays may have their channels last or first, and bytes or floats as values. Shape and dtype
decide whether an array holds images; if they are ambiguous, its name decides.
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
"""words in the names of arrays that are cameras"""
NON_CAMERA_WORDS = ("depth", "normal", "seg", "mask", "cloud", "point", "xyz", "flow")
"""words in the names of arrays that have three channels but are not colour images"""
MAX_CHANNELS = 4
SAMPLED_FRAMES = 9
"""frames of an episode that decide whether its float images range to 1 or to 255"""
MIN_SIDE = 8
"""the smallest side of an image in pixels: a smaller array with channels first might be a matrix"""


def is_image_array(name: str, shape: Sequence[int | None], dtype: np.dtype[Any]) -> bool:
    """Return whether the frames of an array are colour images.

    Bytes with the channels last always are. Arrays of another dtype or with the channels first
    are images if their name says so, such as `wrist_image`.

    Args:
        name: the array's name.
        shape: its shape without the time axis.
        dtype: its dtype.
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
    """Return the axis of an array [t …] that runs over pixel rows; None if it has no such axis.

    Args:
        name: the array's name; `depth` in it marks a depth map, which may have any size.
        shape: its shape without the time axis: [h w], or with channels before or after.
        camera_sizes: [h w] of the trajectory's cameras; an array of such a size has pixel rows.
    """
    if len(shape) not in (2, 3):
        return None
    is_first = len(shape) == 3 and shape[2] > MAX_CHANNELS >= shape[0]
    size = tuple(shape[1:] if is_first else shape[:2])
    is_depth = "depth" in name.lower() and min(size) >= MIN_SIDE and max(size) <= 4 * min(size)
    return 1 + is_first if is_depth or size in camera_sizes else None


def as_uint8_images(array: LazyArray, where: str) -> LazyArray:
    """Return images [t h w 3] or [t 3 h w] of any numeric dtype as uint8 [t h w 3].

    Floats range from 0 to 1 or from 0 to 255. Errors name `where`.
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
    """Return the factor from values to grey levels: 255 for floats from 0 to 1, else 1.

    Frames from the whole episode decide, not the frames that are read: a dark frame must not be
    brightened. A maximum of up to 2 counts as the range 0 to 1; values above 1 raise an error when
    they are read.
    """
    if array.dtype.kind != "f" or not len(array):
        return 1.0
    places = np.unique(np.linspace(0, len(array) - 1, SAMPLED_FRAMES).astype(int))
    # NaN and infinity raise an error when their frame is read; here they are ignored.
    samples = [array.read(place, place + 1) for place in places]
    largest = max(frame[np.isfinite(frame)].max(initial=0) for frame in samples)
    return 255.0 if largest <= 2 else 1.0


def _as_bytes(frames: Array, scale: float, where: str, part: str) -> Array:
    if not np.isfinite(frames).all():
        raise StrapError(
            f"{where} has pixels that are NaN or infinite {part}; it is damaged: copy or download "
            "it again, or leave it out"
        )
    pixels = np.rint(frames * scale)
    low, high = float(frames.min(initial=0)), float(frames.max(initial=0))
    if low * scale < -0.5 or high * scale > 255.5:
        raise StrapError(
            f"{where} has pixels from {low:g} to {high:g} {part}; images must be bytes, or "
            "numbers from 0 to 1 or from 0 to 255: undo their normalisation"
        )
    return pixels.clip(0, 255).astype(np.uint8)
