"""Compute the unpacked size of a chunk from its header, or by unpacking without keeping it."""

from __future__ import annotations

import bz2
import io
import lzma
import math
import struct
import warnings
import zlib
from collections.abc import Callable
from typing import Any

from PIL import Image

DEFLATE_RATIO = 1032
"""the most bytes that one deflated byte can unpack to"""
UNCHECKED_BYTES = 1 << 28
"""deflated chunks that cannot unpack to more bytes than this are not checked"""
STEP_BYTES = 1 << 20
LZMA_MEMORY = 1 << 28
ZSTD_BLOCK_BYTES = 1 << 17
"""the largest unpacked size of a zstd block"""
ZSTD_MAGIC = 0xFD2FB528
ZSTD_SKIPPABLE = 0x184D2A50
HEADER_BYTES = {"blosc": 16, "lz4": 4}
"""codec whose header says the unpacked size -> length of that header"""


def unpacked_bytes(codec: str, data: bytes, limit: int, *, length: int) -> int:
    """Return an upper bound of the unpacked size of a chunk, in bytes, or in pixels for images.

    Counting stops once the size is above `limit`; small deflated chunks return 0 without a check.

    Args:
        codec: the codec's name.
        data: the packed chunk, or only its first `HEADER_BYTES`.
        limit: the largest size that is allowed.
        length: the length of the packed chunk.
    """
    if codec in ("zlib", "gzip"):
        if len(data) * DEFLATE_RATIO <= max(limit, UNCHECKED_BYTES):
            return 0
        return _inflated(lambda: zlib.decompressobj(47), data, limit)
    if codec == "bz2":
        return _inflated(bz2.BZ2Decompressor, data, limit)
    if codec == "lzma":
        return _inflated(lambda: lzma.LZMADecompressor(memlimit=LZMA_MEMORY), data, limit)
    if codec == "blosc":
        return _blosc(data, length)
    if codec == "lz4":
        return int(struct.unpack_from("<I", data)[0])
    if codec == "zstd":
        return _zstd(data)
    return _pixels(codec, data)


def _inflated(start: Callable[[], Any], data: bytes, limit: int) -> int:
    """Return the unpacked bytes of consecutive streams, without keeping them."""
    total = 0
    while data and total <= limit:
        stream = start()
        while not stream.eof and total <= limit:
            out = stream.decompress(data, STEP_BYTES)
            total += len(out)
            data = getattr(stream, "unconsumed_tail", b"")
            if not out and not data and not stream.eof:
                return total
        data = stream.unused_data
    return total


def _blosc(data: bytes, length: int) -> int:
    """Return the unpacked size in blosc's header; raise if its packed size is not `length`."""
    unpacked, _, packed = struct.unpack_from("<III", data, 4)
    if packed != length:
        raise ValueError(f"{packed} packed bytes declared, {length} found")
    return int(unpacked)


def _zstd(data: bytes) -> int:
    """Return the unpacked size in the frame's header, else the largest size of its blocks."""
    total = place = 0
    while place < len(data):
        (magic,) = struct.unpack_from("<I", data, place)
        if magic & 0xFFFFFFF0 == ZSTD_SKIPPABLE:
            place += 8 + struct.unpack_from("<I", data, place + 4)[0]
            continue
        if magic != ZSTD_MAGIC:
            raise ValueError("not a zstd frame")
        length, place, has_checksum = _zstd_header(data, place + 4)
        if length is not None:
            return total + length
        is_last = False
        while not is_last:
            header = int.from_bytes(data[place : place + 3].ljust(3, b"\1"), "little")
            is_last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
            total += size if kind in (0, 1) else ZSTD_BLOCK_BYTES
            place += 3 + (1 if kind == 1 else size)
        place += 4 * has_checksum
    return total


def _zstd_header(data: bytes, place: int) -> tuple[int | None, int, bool]:
    """Return (declared size or None, offset of the blocks, whether a checksum follows them)."""
    descriptor = data[place]
    is_single, size_flag = bool(descriptor & 0x20), descriptor >> 6
    place += 1 + (not is_single) + (0, 1, 2, 4)[descriptor & 3]
    width = (1 if is_single else 0, 2, 4, 8)[size_flag]
    length = int.from_bytes(data[place : place + width], "little") + (256 if width == 2 else 0)
    return (length if width else None), place + width, bool(descriptor & 4)


def _pixels(codec: str, data: bytes) -> int:
    if codec == "imagecodecs_jpegxl":
        return math.prod(_jpegxl_size(data))
    if codec == "imagecodecs_webp":
        return math.prod(_webp_size(data))
    kind = {"jpeg2k": "JPEG2000", "jpeg": "JPEG", "png": "PNG"}[codec.removeprefix("imagecodecs_")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        with Image.open(io.BytesIO(data), formats=(kind,)) as image:
            return math.prod(image.size)


def _webp_size(data: bytes) -> tuple[int, int]:
    kind = data[12:16]
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP" or len(data) < 30:
        raise ValueError("not a WebP image")
    if kind == b"VP8X":
        return (
            int.from_bytes(data[24:27], "little") + 1,
            int.from_bytes(data[27:30], "little") + 1,
        )
    if kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    width, height = struct.unpack_from("<HH", data, 26)
    return width & 0x3FFF, height & 0x3FFF


def _jpegxl_size(data: bytes) -> tuple[int, int]:
    """Return the width and height of a JPEG XL image, with or without a container."""
    if data[:12] == b"\0\0\0\x0cJXL \r\n\x87\n":
        data = _jpegxl_codestream(data)
    if data[:2] != b"\xff\x0a":
        raise ValueError("not a JPEG XL image")
    bits = _Bits(int.from_bytes(data[2:14], "little"))
    is_small = bits.take(1)
    height = _jpegxl_side(bits, is_small)
    ratio = bits.take(3)
    if not ratio:
        return _jpegxl_side(bits, is_small), height
    across, down = ((1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))[ratio - 1]
    return height * across // down, height


def _jpegxl_side(bits: _Bits, is_small: int) -> int:
    if is_small:
        return (bits.take(5) + 1) * 8
    return bits.take((9, 13, 18, 30)[bits.take(2)]) + 1


def _jpegxl_codestream(data: bytes) -> bytes:
    place = 0
    while place + 16 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, place)
        start = place + 8
        if size == 1:
            (size,), start = struct.unpack_from(">Q", data, start), start + 8
        if kind == b"jxlc":
            return data[start:]
        if kind == b"jxlp":
            return data[start + 4 :]
        if size < 8:
            break
        place += size
    return b""


class _Bits:
    """A reader of bits, from the lowest on."""

    def __init__(self, value: int) -> None:
        self._value = value

    def take(self, count: int) -> int:
        """Return the next `count` bits as a number."""
        taken = self._value & ((1 << count) - 1)
        self._value >>= count
        return taken
