"""Decode JPEG and PNG images to arrays."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from strap.datasets.untrusted import MAX_IMAGE_PIXELS, describe_error
from strap.errors import StrapError
from strap.types import Array

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

PNG, JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
MODES = ("RGB", "L", "1", "P", "RGBA", "LA")
"""Pillow's colour modes that convert to RGB without loss; transparency is dropped, as in
TensorFlow"""
MAX_SCANS = 100
"""the most scans of a progressive JPEG: encoders write about ten, and each costs a full decode"""


def decode_images(
    encoded: Iterable[bytes], count: int, shape: tuple[int, ...], where: str, first: int = 0
) -> Array:
    """Return JPEG or PNG images as uint8 [count h w 3]; errors name `where` and the frame.

    The header of each image is compared with `shape` before memory for it is allocated.
    """
    out: Array | None = None
    done = 0
    for done, data in enumerate(encoded, 1):
        place = f"{where}, frame {first + done - 1}"
        image = _open(data, place)
        if (image.height, image.width, 3) != shape:
            raise StrapError(
                f"{place}: the image is {[image.height, image.width, 3]} but the "
                f"dataset's description says {list(shape)}; correct the description"
            )
        if done > count:
            raise StrapError(
                f"{where}: more than {count} images for {count} frames; it is damaged: copy or "
                "download it again"
            )
        if out is None:
            out = np.empty((count, *shape), np.uint8)
        out[done - 1] = _decode(image, place)
    if done < count:
        raise StrapError(
            f"{where}: {done} images for {count} frames; it is damaged: copy or download it again"
        )
    return np.empty((0, *shape), np.uint8) if out is None else out


def read_image_size(data: bytes, what: str) -> tuple[int, int]:
    """Return (height, width) from an image's header, without decoding the image."""
    image = _open(data, what)
    return image.height, image.width


def _open(data: bytes, place: str) -> ImageFile:
    """Read an image's header; raise if the image is too large or of an unsupported kind.

    The bytes go only to Pillow's JPEG or PNG decoder: Pillow does not detect the format.
    """
    from PIL.JpegImagePlugin import JpegImageFile
    from PIL.PngImagePlugin import PngImageFile

    try:
        if data.startswith(PNG):
            if b"acTL" in _chunks(data):
                raise _unusable(place, "it is an animation, not a single image")
            image: ImageFile = PngImageFile(io.BytesIO(data))
        elif data.startswith(JPEG):
            image = JpegImageFile(io.BytesIO(data))
        else:
            raise ValueError(f"neither JPEG nor PNG: it starts with {bytes(data[:8])!r}")
    except StrapError:
        raise
    except Exception as error:
        raise _damaged(place, error) from error
    _require_usable(image, data, place)
    return image


def _require_usable(image: ImageFile, data: bytes, place: str) -> None:
    pixels = image.width * image.height
    deep = data.startswith(PNG) and data[24] > 8
    if pixels > MAX_IMAGE_PIXELS:
        problem = (
            f"it is {image.height}×{image.width}, {pixels:,} pixels; at most "
            f"{MAX_IMAGE_PIXELS:,} are decoded"
        )
    elif image.mode not in MODES or deep:
        problem = (
            f"its colours are {image.mode}{' of 16 bits' if deep else ''}; only RGB, grey and "
            "palette of 8 bits can be read"
        )
    elif not data.startswith(PNG) and data.count(b"\xff\xda") > MAX_SCANS:
        problem = f"it is a JPEG of more than {MAX_SCANS} scans"
    else:
        return
    raise _unusable(place, problem)


def _decode(image: ImageFile, place: str) -> Array:
    try:
        image.info.pop("transparency", None)  # not used, and the conversion would warn about it
        return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))
    except Exception as error:
        raise _damaged(place, error) from error


def _unusable(place: str, problem: str) -> StrapError:
    return StrapError(f"{place}: the image cannot be used: {problem}; encode it again")


def _damaged(place: str, error: Exception) -> StrapError:
    return StrapError(
        f"{place}: cannot decode the image ({describe_error(error)}); it is damaged: copy or "
        "download it again"
    )


def _chunks(data: bytes) -> set[bytes]:
    """Return the types of a PNG's chunks; raise `ValueError` if a checksum is wrong.

    Pillow does not verify the checksums of the pixels: it would return wrong pixels silently.
    """
    view = memoryview(data)
    position, kind = len(PNG), b""
    kinds: set[bytes] = set()
    while kind != b"IEND":
        if position + 12 > len(data):
            raise ValueError("the PNG ends before its last chunk")
        size, kind = struct.unpack_from(">I4s", data, position)
        end = position + 8 + size
        if end + 4 > len(data):
            raise ValueError(f"the PNG ends inside its chunk {kind!r}")
        if zlib.crc32(view[position + 4 : end]) != struct.unpack_from(">I", data, end)[0]:
            raise ValueError(f"the checksum of the PNG's chunk {kind!r} is wrong")
        kinds.add(kind)
        position = end + 4
    return kinds
