"""Pictures: the header is looked at before anything is made; only plain JPEG and PNG are read."""

from __future__ import annotations

import io
import struct
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image
from tests.datasets.writers import number_of, picture, png

from strap.datasets.encoded_images import MAX_SCANS, PNG, decode_images, read_image_size
from strap.errors import StrapError

SHAPE = (48, 64, 3)
SOUND = picture(5)


def encoded(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def decode(data: bytes, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is to be printed beside the error
        return decode_images([data], 1, shape, "'shard', 'camera'", 7)[0]


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_of(width: int, height: int, *, depth: int = 8, colour: int = 2, data: bytes = b"") -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return (
        PNG + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data, 9)) + chunk(b"IEND", b"")
    )


def test_jpeg_and_png_are_read() -> None:
    for format in ("PNG", "JPEG"):
        assert number_of(decode(png(SOUND, format))) == 5
        assert read_image_size(png(SOUND, format), "x") == (48, 64)
    np.testing.assert_array_equal(decode(png(SOUND, "PNG")), SOUND)


@pytest.mark.parametrize("mode", ["L", "1", "P", "RGBA", "LA"])
def test_other_colours_become_rgb(mode: str) -> None:
    image = Image.fromarray(SOUND).convert(mode)
    np.testing.assert_array_equal(decode(encoded(image)), np.asarray(image.convert("RGB")))
    assert decode(encoded(image)).shape == SHAPE


def test_transparency_is_dropped() -> None:
    image = Image.fromarray(SOUND).convert("P")
    data = encoded(image, transparency=bytes(range(256)))
    np.testing.assert_array_equal(decode(data), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (encoded(Image.new("I;16", (64, 48))), "its colours are I;16 of 16 bits"),
        (png_of(64, 48, depth=16), "its colours are RGB of 16 bits"),
        (encoded(Image.new("CMYK", (64, 48)), "JPEG"), "its colours are CMYK"),
        (
            encoded(
                Image.fromarray(SOUND),
                save_all=True,
                append_images=[Image.fromarray(picture(6)), Image.fromarray(picture(7))],
            ),
            "it is an animation, not a single image",
        ),
        (
            png(SOUND, "JPEG").replace(b"\xff\xd9", b"\xff\xda" * (MAX_SCANS + 1) + b"\xff\xd9"),
            "JPEG of more than 100 scans",
        ),
    ],
    ids=["grey16", "rgb16", "cmyk", "animation", "scans"],
)
def test_odd_pictures_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(StrapError, match=f"'shard', 'camera', frame 7: .*{message}.*encode it"):
        decode(data)


@pytest.mark.parametrize("format", ["GIF", "BMP", "TIFF", "WEBP", "PPM"])
def test_other_formats_are_refused(format: str) -> None:
    with pytest.raises(StrapError, match=r"frame 7: .*neither JPEG nor PNG: it starts with"):
        decode(encoded(Image.fromarray(SOUND), format))
    with pytest.raises(StrapError, match="x: cannot decode the image"):
        read_image_size(b"", "x")


def test_a_picture_is_held_against_its_description_before_it_is_decoded() -> None:
    bomb = png_of(8000, 8000)
    with pytest.raises(StrapError, match=r"frame 7: the image is \[8000, 8000, 3\] but .*\[48, 64"):
        decode(bomb)
    # The description may lie too: nothing of its size is made before a picture agrees.
    with pytest.raises(StrapError, match=r"the image is \[48, 64, 3\] but .*\[8000, 8000, 3\]"):
        decode_images([png(SOUND, "PNG")] * 10, 10**6, (8000, 8000, 3), "x")


@pytest.mark.parametrize("side", [8193, 50_000, 2**31 - 1])
def test_pictures_larger_than_the_limit_are_refused(side: int) -> None:
    with pytest.raises(StrapError, match=f"frame 7: .*it is {side}×{side}, .*at most 67,108,864"):
        decode(png_of(side, side), (side, side, 3))
    with pytest.raises(StrapError, match="at most 67,108,864 are decoded"):
        read_image_size(png_of(side, side), "x")


def test_a_jpeg_whose_header_lies_is_refused() -> None:
    data = png(SOUND, "JPEG")
    place = data.index(b"\xff\xc0") + 5
    lying = data[:place] + struct.pack(">HH", 60_000, 60_000) + data[place + 4 :]
    with pytest.raises(StrapError, match="it is 60000×60000"):
        decode(lying, (60_000, 60_000, 3))


@pytest.mark.parametrize("format", ["PNG", "JPEG"])
def test_truncated_pictures_are_refused(format: str) -> None:
    data = png(SOUND, format)
    for size in range(0, len(data) - 2, 7):
        with pytest.raises(StrapError, match=r"frame 7: cannot decode the image .*damaged"):
            decode(data[:size])


def test_any_flipped_bit_of_a_png_is_noticed() -> None:
    data = png(SOUND, "PNG")
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 4
        with pytest.raises(StrapError, match="frame 7: cannot decode the image"):
            decode(bytes(damaged))


def test_pixels_that_end_early_are_refused() -> None:
    with pytest.raises(StrapError, match="cannot decode the image"):
        decode(png_of(64, 48, data=bytes(100)))


def test_as_many_pictures_as_frames() -> None:
    two = [png(picture(i), "PNG") for i in range(2)]
    assert decode_images(two, 2, SHAPE, "x").shape == (2, *SHAPE)
    assert decode_images([], 0, SHAPE, "x").shape == (0, *SHAPE)
    with pytest.raises(StrapError, match="x: 2 images for 3 frames"):
        decode_images(two, 3, SHAPE, "x")
    with pytest.raises(StrapError, match="x: more than 1 images for 1 frames"):
        decode_images(two, 1, SHAPE, "x")
    other = png(picture(1, (24, 32)), "PNG")
    with pytest.raises(StrapError, match=r"x, frame 5: the image is \[24, 32, 3\]"):
        decode_images([two[0], other], 2, SHAPE, "x", 4)
