"""JPEG and PNG pictures as arrays."""

from __future__ import annotations

import io

import numpy as np

from strap.errors import StrapError
from strap.types import Array


def decode_picture(data: bytes, shape: tuple[int, ...], what: str) -> Array:
    """A JPEG or PNG as uint8 [h w 3]; `what` names the picture in errors."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            pixels = np.asarray(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError) as error:
        raise StrapError(f"{what}: cannot decode the picture ({error}); it is damaged") from error
    if pixels.shape != shape:
        raise StrapError(
            f"{what}: the picture is {list(pixels.shape)} but the dataset's description says "
            f"{list(shape)}; correct the description"
        )
    return pixels


def picture_size(data: bytes, what: str) -> tuple[int, int]:
    """(height, width) from the picture's header, nothing decoded."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            return image.height, image.width
    except (OSError, ValueError, SyntaxError) as error:
        raise StrapError(f"{what}: no JPEG or PNG picture ({error}); it is damaged") from error
