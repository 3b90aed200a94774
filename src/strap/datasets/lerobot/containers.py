"""Which container a video file is, told by its first bytes, and whether its index can be true.

FFmpeg looks for itself otherwise, and then a text file named .mp4 may be a playlist that names
other files. The index of an mp4 is unpacked when it is opened: "a hundred million pictures of one
byte each" takes twenty bytes in the file and gigabytes in memory.

    mp4: boxes, each   size, kind, content         top level  ftyp  moov  mdat  (moof  mdat …)
         the pictures' sizes (`stsz`), repeats (`elst`) and fragments (`trun`) lie in moov and moof
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
"""what an mp4 or mov may begin with"""
EBML = b"\x1a\x45\xdf\xa3"
"""what an mkv or webm begins with"""
MAX_INDEX_BYTES = 1 << 28
"""of an mp4, outside its pictures"""
MAX_SAMPLES = 1 << 24
"""pictures (and packets of sound) of one file: a week at 30 Hz"""
MAX_BOX_DEPTH = 10
"""of boxes within boxes, as FFmpeg allows"""
COUNTED = re.compile(b"stsz|stz2|trun|elst|cmov")
"""boxes that declare how many pictures there are"""
HOLDERS = frozenset(
    b"moov trak mdia minf stbl edts mvex moof traf tref udta meta ilst wave sinf schi iprp ipco "
    b"free hoov".split()
)
"""boxes of boxes, as FFmpeg reads them"""


def container_format(path: Path) -> str:
    """Return FFmpeg's name of the container; raise where it is none that is read, or a lie."""
    with path.open("rb") as file:
        head = file.read(12)
        if head[4:8] in MP4_BOXES:
            _check_index(path, file)
            return "mp4"
    if head.startswith(EBML):
        return "matroska"
    begin = f"it begins with {head!r}" if head else "it is empty"
    raise StrapError(
        f"'{path}' is no mp4, mov, mkv or webm video ({begin}); playlists and other kinds are not "
        "opened: download it again, or re-encode it as mp4"
    )


def _check_index(path: Path, file: BinaryIO) -> None:
    """Raise where an mp4 declares more pictures than its bytes can hold."""
    size = path.stat().st_size
    samples, edits = 0, 1
    for kind, content in _index_boxes(path, file, size):
        if kind == b"cmov":
            raise StrapError(f"'{path}': its index is compressed, which is not read; re-encode it")
        if kind == b"elst":
            edits += _number(content, 4)
        elif kind in (b"stsz", b"stz2"):
            count = _number(content, 8)
            each = _number(content, 4) if kind == b"stsz" else 0
            require_at_most(count * each, size, "bytes of pictures", path)
            samples += count
        elif kind == b"trun":
            samples += _number(content, 4)
    require_at_most(samples, size, "pictures in a file that is smaller", path)
    require_at_most(samples * edits, MAX_SAMPLES, "pictures", path)


def _number(content: bytes, place: int) -> int:
    return int.from_bytes(content[place : place + 4], "big")


def _index_boxes(path: Path, file: BinaryIO, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield kind and content of every box but those of pictures, at any depth."""
    place, kept = 0, 0
    while place + 8 <= size:
        file.seek(place)
        kind, begin, length = _head(file.read(16), size - place)
        if length < begin:
            return  # FFmpeg reads no further either
        if kind != b"mdat":
            kept += length
            require_at_most(kept, MAX_INDEX_BYTES, "bytes of index", path)
            file.seek(place + begin)
            yield from _boxes(kind, file.read(length - begin))
        place += length


def _boxes(kind: bytes, content: bytes, depth: int = 0) -> Iterator[tuple[bytes, bytes]]:
    """Yield a box and, where it holds boxes, those."""
    yield kind, content
    if kind == b"stsd":  # descriptions of codecs, which may be followed by boxes
        for found in COUNTED.finditer(content):
            yield found[0], content[found.end() :]
    if kind not in HOLDERS or depth == MAX_BOX_DEPTH:
        return
    for start in (0, 4) if kind == b"meta" else (0,):  # that of mp4, unlike mov's, has a version
        place = start
        while place + 8 <= len(content):
            inner, begin, length = _head(content[place : place + 16], len(content) - place)
            if length < begin:
                break
            yield from _boxes(inner, content[place + begin : place + length], depth + 1)
            place += length


def _head(head: bytes, remaining: int) -> tuple[bytes, int, int]:
    """Return a box's kind, where its content begins, and its length within what is left."""
    length, kind = struct.unpack(">I4s", head[:8])
    if length == 1 and len(head) == 16:
        return kind, 16, min(struct.unpack(">Q", head[8:])[0], remaining)
    return kind, 8, min(length, remaining) if length else remaining
