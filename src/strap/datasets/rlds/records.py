"""TFRecord files: framing, checksums, and an index of where each record lies.

A record on disk:

    length uint64 | crc(length) uint32 | data, `length` bytes | crc(data) uint32

with CRC-32C, masked. The index of a shard is found by hopping from header to header, once, and kept
in the user's cache folder, so that later an episode is read without touching the others.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np

from strap.artifacts import replacing
from strap.errors import StrapError
from strap.types import Array

HEADER, FOOTER = 12, 4
_MASK = 0xA282EAD8


def masked_crc(data: bytes) -> int:
    """The checksum as TFRecord stores it: CRC-32C, rotated by 15 bits, plus a constant."""
    crc = _crc32c()(data)
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


def read_record(shard: Path, index: int) -> bytes:
    """The data of one record, its checksum verified."""
    records = record_index(shard)
    if not 0 <= index < len(records):
        raise StrapError(
            f"'{shard}' has {len(records)} records, number {index} was asked for: shard and "
            "dataset_info.json are of different downloads; get both again"
        )
    offset, length = (int(n) for n in records[index])
    with _reading(shard), _descriptor(shard) as file:
        body = os.pread(file, length, offset)
        footer = os.pread(file, FOOTER, offset + length)
    if len(body) + len(footer) != length + FOOTER:
        raise _truncated(shard, index)
    if masked_crc(body) != struct.unpack("<I", footer)[0]:
        raise StrapError(
            f"'{shard}', record {index} (at byte {offset}): its checksum is wrong, so its content "
            "is damaged; download the shard again"
        )
    return body


def record_index(shard: Path) -> Array:
    """Where each record's data begins and how long it is, int64 [records 2]."""
    try:
        stat = shard.stat()
    except OSError as error:
        raise StrapError(
            f"missing shard '{shard}' ({error.strerror}); download it, or open the dataset with "
            "missing='skip' to leave its episodes out"
        ) from error
    return _cached_index(shard, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=256)
def _cached_index(shard: Path, size: int, mtime: int) -> Array:
    file = _index_file(shard, size, mtime)
    with contextlib.suppress(OSError, ValueError, EOFError):
        stored: Array = np.load(file, allow_pickle=False)
        if stored.dtype == np.int64 and stored.ndim == 2 and stored.shape[1] == 2:
            return stored
    found = build_index(shard)
    # A cache that cannot be written costs time on the next opening, nothing else.
    with contextlib.suppress(OSError, StrapError):
        _save(file, found)
    return found


def _save(file: Path, index: Array) -> None:
    with replacing(file) as temporary, temporary.open("wb") as out:
        np.save(out, index)


def _index_file(shard: Path, size: int, mtime: int) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key = f"{shard.resolve().as_posix()}\0{size}\0{mtime}"
    name = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
    return cache / "strap" / "tfrecord-index" / f"{name}.npy"


def build_index(shard: Path) -> Array:
    """Hop over the shard from header to header; every header's checksum is verified."""
    found: list[tuple[int, int]] = []
    with _reading(shard), shard.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        position = 0
        while position < size:
            header = file.read(HEADER)
            if len(header) < HEADER:
                raise _truncated(shard, len(found))
            length, crc = struct.unpack("<QI", header)
            if masked_crc(header[:8]) != crc:
                raise StrapError(
                    f"'{shard}', record {len(found)} (at byte {position}): the checksum of its "
                    "length is wrong: damaged, compressed, or no TFRecord file; download it again"
                )
            found.append((position + HEADER, length))
            position += HEADER + length + FOOTER
            if position > size:
                raise _truncated(shard, len(found) - 1)
            file.seek(position)
    return np.array(found, np.int64).reshape(-1, 2)


def _truncated(shard: Path, index: int) -> StrapError:
    return StrapError(
        f"'{shard}' ends in the middle of record {index}: truncated; download it again"
    )


@contextlib.contextmanager
def _descriptor(shard: Path) -> Iterator[int]:
    file = os.open(shard, os.O_RDONLY)
    try:
        yield file
    finally:
        os.close(file)


@contextlib.contextmanager
def _reading(shard: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StrapError(f"cannot read '{shard}': {error.strerror or error}") from error


@lru_cache(maxsize=1)
def _crc32c() -> Callable[[bytes], int]:
    try:
        import google_crc32c
    except ImportError as error:
        raise StrapError(
            "reading RLDS records needs a checksum library: pip install google-crc32c"
        ) from error
    function: Callable[[bytes], int] = google_crc32c.value
    return function
