"""Check the chunks of a range of rows before they are decoded: presence and unpacked size."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from strap.datasets.untrusted import describe_error
from strap.datasets.zarr.buffer_files import BufferFiles
from strap.datasets.zarr.layout import CHECKSUM_CODECS, IMAGE_CODECS, ArrayLayout, Codec
from strap.datasets.zarr.sizes import HEADER_BYTES, unpacked_bytes
from strap.errors import StrapError

SLACK_BYTES = 1 << 16
"""the most bytes by which a stored chunk can exceed its values: headers and checksums"""
ABSENT = (1 << 64) - 1
"""the offset and the length, in a shard's index, of a chunk that is not stored"""


def require_chunks(
    store: BufferFiles,
    layout: ArrayLayout,
    start: int,
    stop: int,
    *,
    empty_chunks: bool,
    where: str,
) -> None:
    """Raise if a chunk of rows start … stop−1 is missing, or unpacks to more than its shape."""
    for file in _block_numbers(layout.shape, layout.files, start, stop):
        key = layout.file_key(file)
        size = store.size(key)
        if size is None:
            if not empty_chunks:
                raise _missing(key, where)
            continue
        most = _max_file_bytes(layout)
        if size > most:
            raise StrapError(
                f"{where}: chunk '{key}' has {size:,} bytes, more than the {most:,} that its shape "
                "allows: it is damaged, copy the dataset again"
            )
        spans = [(0, size)]
        if layout.is_sharded:
            spans = _shard_spans(store, layout, key, file, (start, stop), size, empty_chunks, where)
        for offset, length in spans:
            _require_fits(store, layout, key, offset, length, where)


def _missing(key: str, where: str) -> StrapError:
    return StrapError(
        f"{where}: chunk '{key}' is missing: copy the dataset again, or open it with "
        "empty_chunks=True if its writer left out chunks of zeros"
    )


def _block_numbers(
    shape: Sequence[int], steps: Sequence[int], start: int, stop: int
) -> Iterator[tuple[int, ...]]:
    """Return the numbers of all blocks of shape `steps` that hold some of rows start … stop−1."""
    rows = range(start // steps[0], -(-stop // steps[0])) if start < stop else range(0)
    others = (range(-(-n // step)) for n, step in zip(shape[1:], steps[1:], strict=True))
    return product(rows, *others)


def _max_file_bytes(layout: ArrayLayout) -> int:
    """Return the largest allowed size of a file: its chunks, codec overhead and index."""
    count = math.prod(f // c for f, c in zip(layout.files, layout.chunks, strict=True))
    return count * (layout.chunk_bytes + layout.chunk_bytes // 16 + 32) + SLACK_BYTES


def _require_fits(
    store: BufferFiles, layout: ArrayLayout, key: str, offset: int, length: int, where: str
) -> None:
    """Raise if a packed chunk unpacks to more than its shape declares."""
    begin, end, packer = offset, offset + length, None
    for codec in reversed(layout.codecs):
        if codec.is_packer:
            packer = codec.name
            break
        begin, end = _without_checksum(codec, begin, end)
    if packer is None:
        return
    stop = min(end, begin + HEADER_BYTES.get(packer, length))
    limit = math.prod(layout.chunks) if packer in IMAGE_CODECS else layout.chunk_bytes + SLACK_BYTES
    try:
        unpacked = unpacked_bytes(packer, store.read(key, begin, stop), limit, length=end - begin)
    except Exception as error:
        raise StrapError(
            f"{where}: chunk '{key}' is not valid {packer} ({describe_error(error)}): it is "
            "damaged, copy the dataset again"
        ) from error
    if unpacked > limit:
        raise StrapError(
            f"{where}: chunk '{key}' unpacks to more than the {limit:,} bytes of its shape: it is "
            "damaged, copy the dataset again"
        )


def _without_checksum(codec: Codec, begin: int, end: int) -> tuple[int, int]:
    """Return the span without the checksum that a codec adds before or after it."""
    if codec.name not in CHECKSUM_CODECS:
        return begin, end
    usual = "start" if codec.name in ("crc32", "adler32") else "end"
    is_before = codec.options.get("location", usual) == "start"
    return (begin + 4, end) if is_before else (begin, end - 4)


def _shard_spans(
    store: BufferFiles,
    layout: ArrayLayout,
    key: str,
    file: Sequence[int],
    rows: tuple[int, int],
    size: int,
    empty_chunks: bool,
    where: str,
) -> list[tuple[int, int]]:
    """Return (offset, length) in a shard of every chunk that holds some of these rows."""
    counts = [f // c for f, c in zip(layout.files, layout.chunks, strict=True)]
    length = 16 * math.prod(counts)
    tail = 4 * layout.has_index_checksum
    begin = 0 if layout.is_index_first else size - length - tail
    if begin < 0 or length + tail > size:
        raise StrapError(f"{where}: shard '{key}' has no index: copy the dataset again")
    index = struct.unpack(f"<{length // 8}Q", store.read(key, begin, begin + length))
    first = file[0] * layout.files[0]
    inside = [max(0, row - first) for row in rows]
    ends = [min(f, n - i * f) for i, f, n in zip(file, layout.files, layout.shape, strict=True)]
    spans = []
    for numbers in _block_numbers(ends, layout.chunks, inside[0], min(inside[1], ends[0])):
        place = int(np.ravel_multi_index(numbers, counts))
        span = index[2 * place], index[2 * place + 1]
        if span == (ABSENT, ABSENT):
            if not empty_chunks:
                raise _missing(f"{key} {list(numbers)}", where)
            continue
        if sum(span) > size:
            raise StrapError(f"{where}: shard '{key}' is cut short: copy the dataset again")
        spans.append(span)
    return spans
