"""Read TFRecord files: framing, checksums, and an index of the records' offsets.

A record on disk:

    length uint64 | crc(length) uint32 | data, `length` bytes | crc(data) uint32

The checksums are masked CRC-32C. The index of a shard is built once, by reading one header after
the other, and kept in the user's cache folder. With the index, an episode is read without reading
the others.
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
from strap.datasets.untrusted import MAX_TRAJECTORIES, missing_file_error, require_at_most
from strap.errors import StrapError
from strap.folders import cache_folder
from strap.types import Array

HEADER, FOOTER = 12, 4
SMALLEST_RECORD = HEADER + FOOTER
MAX_RECORD_BYTES = (1 << 31) - 1
"""the longest record: a record is a protobuf message, which has at most 2 GiB"""
_MASK = 0xA282EAD8


def masked_crc(data: bytes) -> int:
    """Return the checksum as TFRecord stores it: CRC-32C, rotated by 15 bits, plus a constant."""
    crc = _crc32c()(data)
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


def read_record(shard: Path, index: int, count: int | None = None) -> bytes:
    """Return the data of one record after verifying its checksums.

    Args:
        shard: the file.
        index: the number of the record in the file.
        count: the number of records that the file must hold; None if it is not known.
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
            f"'{shard}' has {len(records)} records, but record {index} was requested: the file "
            "has changed; open the dataset again"
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
    """Return whether a record has the offset and the length that the index says."""
    if not 0 <= index < len(records):
        return False
    offset, length = (int(n) for n in records[index])
    packed = struct.pack("<Q", length)
    with _opened(shard) as file:
        file.seek(offset - HEADER)
        return file.read(HEADER) == packed + struct.pack("<I", masked_crc(packed))


def record_index(shard: Path) -> Array:
    """Return the offset and the length of each record's data, int64 [records 2]."""
    try:
        status = shard.stat()
    except OSError as error:
        raise missing_file_error(shard, "shard", error) from error
    return _cached_index(shard, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=256)
def _cached_index(shard: Path, size: int, mtime: int) -> Array:
    file = _index_file(shard, size, mtime)
    stored = _load(file, size)
    if stored is not None:
        return stored
    found = build_index(shard)
    # If the index cannot be stored, it is only built again the next time.
    with contextlib.suppress(OSError, StrapError):
        _save(file, found)
    return found


def _rebuild_index(shard: Path) -> Array:
    """Delete the cached index of a shard and build it again."""
    status = shard.stat()
    with contextlib.suppress(OSError):
        _index_file(shard, status.st_size, status.st_mtime_ns).unlink()
    _cached_index.cache_clear()
    return record_index(shard)


def _save(file: Path, index: Array) -> None:
    with replacing(file) as temporary:
        temporary.write_bytes(index.astype("<i8").tobytes())


def _load(file: Path, size: int) -> Array | None:
    """Return the stored index; None if there is none that fits a shard of `size` bytes.

    Records fill a shard from the first byte to the last, so an index with gaps or overlaps is
    damaged or forged. Every record is longer than its entry in the index, so an index file longer
    than the shard is not read.
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
    """Return the index of a shard's records, built by reading one header after the other."""
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
    """Return the length in a record's header after verifying its checksum."""
    if len(header) < HEADER:
        raise _truncated(shard, index)
    length, crc = struct.unpack("<QI", header)
    if masked_crc(header[:8]) != crc:
        raise StrapError(
            f"'{shard}', record {index} (at byte {position}): the checksum of its "
            "length is wrong: damaged, compressed, or not a TFRecord file; download it again"
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
    """Yield the open shard; raise if it is a pipe or a device, which could block."""
    try:
        if not stat.S_ISREG(shard.stat().st_mode):
            raise StrapError(
                f"'{shard}' is not a file of records but a folder or a device; remove it"
            )
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
