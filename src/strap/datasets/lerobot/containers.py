"""Detect the container of a video file by its first bytes, and check the index of an mp4.

If FFmpeg detects the container, a text file named .mp4 can be a playlist that names other files.
FFmpeg unpacks the index of an mp4 when it opens the file: "a hundred million images of one byte
each" takes twenty bytes in the file and gigabytes in memory.

    mp4: boxes, each   size, type, content         top level  ftyp  moov  mdat  (moof  mdat …)
         moov and moof hold the images' sizes (`stsz`), repeats (`elst`) and fragments (`trun`)
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from strap.datasets.untrusted import require_at_most
from strap.errors import StrapError

MP4_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"styp")
"""the types of the first box of an mp4 or mov"""
EBML = b"\x1a\x45\xdf\xa3"
"""the first bytes of an mkv or webm"""
MAX_INDEX_BYTES = 1 << 28
"""the most bytes of an mp4 outside its image data"""
MAX_SAMPLES = 1 << 24
"""the most images (and sound packets) of one file: a week at 30 Hz"""
MAX_BOX_DEPTH = 10
"""the deepest nesting of boxes, as in FFmpeg"""
COUNTED = re.compile(b"stsz|stz2|trun|elst|cmov")
"""types of boxes that declare the number of images"""
HOLDERS = frozenset(
    b"moov trak mdia minf stbl edts mvex moof traf tref udta meta ilst wave sinf schi iprp ipco "
    b"free hoov".split()
)
"""types of boxes that contain boxes, as FFmpeg reads them"""


def container_format(path: Path) -> str:
    """Return FFmpeg's name of the container; raise if it is unsupported or its index is wrong."""
    with path.open("rb") as file:
        head = file.read(12)
        if head[4:8] in MP4_BOXES:
            _check_index(path, file)
            return "mp4"
    if head.startswith(EBML):
        return "matroska"
    begin = f"it starts with {head!r}" if head else "it is empty"
    raise StrapError(
        f"'{path}' is not an mp4, mov, mkv or webm video ({begin}); playlists and other kinds are "
        "not opened: download it again, or re-encode it as mp4"
    )


def _check_index(path: Path, file: BinaryIO) -> None:
    """Raise if an mp4 declares more images than its bytes can hold."""
    size = path.stat().st_size
    samples, edits = 0, 1
    for kind, content in _index_boxes(path, file, size):
        if kind == b"cmov":
            raise StrapError(
                f"'{path}': its index is compressed, which is not supported; re-encode it"
            )
        if kind == b"elst":
            edits += _number(content, 4)
        elif kind in (b"stsz", b"stz2"):
            count = _number(content, 8)
            each = _number(content, 4) if kind == b"stsz" else 0
            require_at_most(count * each, size, "bytes of images", path)
            samples += count
        elif kind == b"trun":
            samples += _number(content, 4)
    require_at_most(samples, size, "images, more than the file has bytes", path)
    require_at_most(samples * edits, MAX_SAMPLES, "images", path)


def _number(content: bytes, place: int) -> int:
    return int.from_bytes(content[place : place + 4], "big")


def _index_boxes(path: Path, file: BinaryIO, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield (type, content) of every box at any depth, except for image data."""
    place, kept = 0, 0
    while place + 8 <= size:
        file.seek(place)
        kind, begin, length = _head(file.read(16), size - place)
        if length < begin:
            return  # FFmpeg also stops here
        if kind != b"mdat":
            kept += length
            require_at_most(kept, MAX_INDEX_BYTES, "bytes of index", path)
            file.seek(place + begin)
            yield from _boxes(kind, file.read(length - begin))
        place += length


def _boxes(kind: bytes, content: bytes, depth: int = 0) -> Iterator[tuple[bytes, bytes]]:
    """Yield a box and the boxes inside it."""
    yield kind, content
    if kind == b"stsd":  # boxes can follow the codec descriptions in it
        for found in COUNTED.finditer(content):
            yield found[0], content[found.end() :]
    if kind not in HOLDERS or depth == MAX_BOX_DEPTH:
        return
    for start in (0, 4) if kind == b"meta" else (0,):  # in mp4, not in mov, 4 bytes come first
        place = start
        while place + 8 <= len(content):
            inner, begin, length = _head(content[place : place + 16], len(content) - place)
            if length < begin:
                break
            yield from _boxes(inner, content[place + begin : place + length], depth + 1)
            place += length


def _head(head: bytes, remaining: int) -> tuple[bytes, int, int]:
    """Return a box's type, the offset of its content, and its length, at most `remaining`."""
    length, kind = struct.unpack(">I4s", head[:8])
    if length == 1 and len(head) == 16:
        return kind, 16, min(struct.unpack(">Q", head[8:])[0], remaining)
    return kind, 8, min(length, remaining) if length else remaining
