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
import stat
import struct
from array import array
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO

import numpy as np

from strap.atomic import replacing
from strap.datasets.untrusted import MAX_TRAJECTORIES, require_at_most
from strap.errors import StrapError
from strap.folders import cache_folder
from strap.types import Array

HEADER, FOOTER = 12, 4
SMALLEST_RECORD = HEADER + FOOTER
MAX_RECORD_BYTES = (1 << 31) - 1
"""the longest record: protobuf messages, which records are, have at most 2 GiB"""
_MASK = 0xA282EAD8


def masked_crc(data: bytes) -> int:
    """Return the checksum as TFRecord stores it: CRC-32C, rotated by 15 bits, plus a constant."""
    crc = _crc32c()(data)
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


def read_record(shard: Path, index: int, count: int | None = None) -> bytes:
    """Return the data of one record, its checksums verified.

    Args:
        shard: the file.
        index: which record.
        count: how many records the file must hold, where a description says it.
    """
    records = record_index(shard)
    if count not in (None, len(records)) or not _is_record(shard, records, index):
        records = _rebuild_index(shard)
    if count not in (None, len(records)):
        raise StrapError(
            f"'{shard}' has {len(records)} records, dataset_info.json promises {count}: they are "
            "of different downloads; get both again"
        )
    if not 0 <= index < len(records):
        raise StrapError(
            f"'{shard}' has {len(records)} records, number {index} was asked for: it changed; "
            "open the dataset again"
        )
    offset, length = (int(n) for n in records[index])
    with _opened(shard) as file:
        file.seek(offset)
        body, footer = file.read(length), file.read(FOOTER)
    if len(body) + len(footer) != length + FOOTER:
        raise _truncated(shard, index)
    if masked_crc(body) != struct.unpack("<I", footer)[0]:
        raise StrapError(
            f"'{shard}', record {index} (at byte {offset}): its checksum is wrong, so its content "
            "is damaged; download the shard again"
        )
    return body


def _is_record(shard: Path, records: Array, index: int) -> bool:
    """Return whether a record begins where the index says, and is as long as it says."""
    if not 0 <= index < len(records):
        return False
    offset, length = (int(n) for n in records[index])
    packed = struct.pack("<Q", length)
    with _opened(shard) as file:
        file.seek(offset - HEADER)
        return file.read(HEADER) == packed + struct.pack("<I", masked_crc(packed))


def record_index(shard: Path) -> Array:
    """Return where each record's data begins and how long it is, int64 [records 2]."""
    try:
        status = shard.stat()
    except OSError as error:
        raise StrapError(
            f"missing shard '{shard}' ({error.strerror}); download it, or open the dataset with "
            "missing='skip' (--missing skip) to leave its episodes out"
        ) from error
    return _cached_index(shard, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=256)
def _cached_index(shard: Path, size: int, mtime: int) -> Array:
    file = _index_file(shard, size, mtime)
    stored = _load(file, size)
    if stored is not None:
        return stored
    found = build_index(shard)
    # A cache that cannot be written costs time on the next opening, nothing else.
    with contextlib.suppress(OSError, StrapError):
        _save(file, found)
    return found


def _rebuild_index(shard: Path) -> Array:
    """Forget what is kept of the shard's index and look at the shard again."""
    status = shard.stat()
    with contextlib.suppress(OSError):
        _index_file(shard, status.st_size, status.st_mtime_ns).unlink()
    _cached_index.cache_clear()
    return record_index(shard)


def _save(file: Path, index: Array) -> None:
    with replacing(file) as temporary:
        temporary.write_bytes(index.astype("<i8").tobytes())


def _load(file: Path, size: int) -> Array | None:
    """Return the index that an earlier process kept; None unless it fits a shard of `size` bytes.

    Records lie one after the other from the first byte to the last, so an index of anything else
    is damaged or forged. Every record has more bytes than its entry, which bounds what is read.
    """
    with contextlib.suppress(OSError, ValueError):
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stored:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > size:
                return None
            index = np.frombuffer(stored.read(), "<i8").astype(np.int64).reshape(-1, 2)
        return index if _tiles(index, size) else None
    return None


def _tiles(index: Array, size: int) -> bool:
    """Return whether the records of an index fill a shard of `size` bytes without gaps."""
    if not len(index):
        return size == 0
    starts, lengths = index[:, 0], index[:, 1]
    if index.min() < 0 or index.max() > size:
        return False
    ends = starts + lengths + FOOTER
    gapless = bool((starts[1:] == ends[:-1] + HEADER).all())
    return gapless and int(starts[0]) == HEADER and int(ends[-1]) == size


def _index_file(shard: Path, size: int, mtime: int) -> Path:
    key = f"{shard.resolve().as_posix()}\0{size}\0{mtime}"
    name = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
    return cache_folder() / "tfrecord-index" / f"{name}.i8"


def build_index(shard: Path) -> Array:
    """Return where a shard's records lie, found by hopping over it from header to header."""
    found = array("q")
    with _opened(shard) as file:
        size = os.fstat(file.fileno()).st_size
        position = index = 0
        while position < size:
            file.seek(position)
            length = _record_length(file.read(HEADER), shard, index, position)
            found.extend((position + HEADER, length))
            position += length + SMALLEST_RECORD
            if position > size:
                raise _truncated(shard, index)
            index += 1
            require_at_most(index, MAX_TRAJECTORIES, "records", shard)
    return np.array(found, np.int64).reshape(-1, 2)


def _record_length(header: bytes, shard: Path, index: int, position: int) -> int:
    """Return the length that a record's header states, its checksum verified."""
    if len(header) < HEADER:
        raise _truncated(shard, index)
    length, crc = struct.unpack("<QI", header)
    if masked_crc(header[:8]) != crc:
        raise StrapError(
            f"'{shard}', record {index} (at byte {position}): the checksum of its "
            "length is wrong: damaged, compressed, or no TFRecord file; download it again"
        )
    if length > MAX_RECORD_BYTES:
        raise StrapError(
            f"'{shard}', record {index} (at byte {position}) states {length:,} bytes; a record "
            f"has at most {MAX_RECORD_BYTES:,}: the shard is damaged; download it again"
        )
    return int(length)


def _truncated(shard: Path, index: int) -> StrapError:
    return StrapError(
        f"'{shard}' ends in the middle of record {index}: truncated; download it again"
    )


@contextlib.contextmanager
def _opened(shard: Path) -> Iterator[IO[bytes]]:
    """Open a shard; a pipe or a device in its place is refused instead of waited for."""
    try:
        if not stat.S_ISREG(shard.stat().st_mode):
            raise StrapError(f"'{shard}' is no file of records but a folder or a device; remove it")
        with shard.open("rb") as file:
            yield file
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
