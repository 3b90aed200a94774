"""JPEG and PNG pictures as arrays."""

from __future__ import annotations

import io
from collections.abc import Iterable

import numpy as np

from strap.errors import StrapError
from strap.types import Array


def decode_pictures(
    pictures: Iterable[bytes], count: int, shape: tuple[int, ...], where: str, first: int = 0
) -> Array:
    """JPEG or PNG pictures as uint8 [count h w 3]; errors name `where` and the frame's number."""
    from PIL import Image

    out = np.empty((count, *shape), np.uint8)
    number = first
    try:
        for number, data in enumerate(pictures, first):
            image = Image.open(io.BytesIO(data))
            pixels = np.asarray(image if image.mode == "RGB" else image.convert("RGB"))
            if pixels.shape != shape:
                raise StrapError(
                    f"{where}, frame {number}: the picture is {list(pixels.shape)} but the "
                    f"dataset's description says {list(shape)}; correct the description"
                )
            out[number - first] = pixels
    except (OSError, ValueError, SyntaxError) as error:
        raise StrapError(
            f"{where}, frame {number}: cannot decode the picture ({error}); it is damaged"
        ) from error
    return out


def picture_size(data: bytes, what: str) -> tuple[int, int]:
    """(height, width) from the picture's header, nothing decoded."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            return image.height, image.width
    except (OSError, ValueError, SyntaxError) as error:
        raise StrapError(f"{what}: no JPEG or PNG picture ({error}); it is damaged") from error
