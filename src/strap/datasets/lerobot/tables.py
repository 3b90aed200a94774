"""Columns of one episode out of parquet files that hold many, without reading the rest."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from strap.errors import StrapError
from strap.types import Array

IMAGE_BATCH = 16
"""pictures decoded from a table at a time: bounds memory for files with huge row groups"""
KEPT_COLUMNS, KEPT_BYTES = 64, 1 << 20
"""how many columns of episodes stay in memory, and how large one of them may be"""


def read_column(file: Path, episode: int, length: int, column: str, row_bytes: int) -> Array:
    """One numeric column of one episode, [length] or [length, …]; a row has about `row_bytes`."""
    load = _cached_column if length * row_bytes <= KEPT_BYTES else _cached_column.__wrapped__
    array = load(file, *_stamp(file), episode, column)
    if len(array) != length:
        raise StrapError(
            f"'{file}', episode {episode}: column '{column}' has {len(array)} rows but meta/ says "
            f"{length} frames; file and meta are of different downloads: get both again"
        )
    return array


def read_images(
    file: Path, episode: int, column: str, start: int, stop: int, root: Path
) -> Iterator[bytes]:
    """The encoded pictures of frames start … stop−1, from an image column {bytes, path}."""
    first, last = _rows(file, episode)
    if first + stop > last:
        raise StrapError(
            f"'{file}', episode {episode}: has {last - first} rows, frame {stop - 1} was asked for"
        )
    for value in _stream(file, column, first + start, first + stop):
        data, path = value.get("bytes"), value.get("path")
        if data is None and path and (root / path).is_file():
            data = (root / path).read_bytes()
        if data is None:
            raise StrapError(f"'{file}', episode {episode}: '{column}' holds no picture bytes")
        yield data


def _stamp(file: Path) -> tuple[int, int, int]:
    """What changes when the file does, and who reads: an open handle is one thread's alone.

    Nor does it survive a fork.
    """
    try:
        stat = file.stat()
    except OSError as error:
        raise StrapError(
            f"missing data file '{file}' ({error.strerror}); download it, or open the dataset "
            "with missing='skip' to leave its episodes out"
        ) from error
    return stat.st_mtime_ns, stat.st_size, hash((os.getpid(), threading.get_ident()))


@lru_cache(maxsize=16)
def _handle(file: Path, _mtime: int, _size: int, _reader: int) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file)
    except (OSError, pa.ArrowException) as error:
        raise StrapError(
            f"cannot read '{file}' as parquet ({error}): truncated or damaged; download it again"
        ) from error


@lru_cache(maxsize=64)
def _runs(file: Path, mtime: int, size: int, reader: int) -> dict[int, tuple[int, int]]:
    """episode -> (first row, last row + 1), from the file's `episode_index` column alone."""
    handle = _handle(file, mtime, size, reader)
    if "episode_index" not in handle.schema_arrow.names:
        raise StrapError(f"'{file}' has no column 'episode_index'; it is no LeRobot data file")
    index = _read(handle, file, list(range(handle.num_row_groups)), "episode_index").to_numpy()
    if not len(index):
        return {}
    cuts = np.flatnonzero(np.diff(index)) + 1
    starts, stops = np.concatenate(([0], cuts)), np.concatenate((cuts, [len(index)]))
    runs = {int(index[a]): (int(a), int(b)) for a, b in zip(starts, stops, strict=True)}
    if len(runs) != len(starts):
        raise StrapError(f"'{file}': the rows of an episode are not together; the file is damaged")
    return runs


def _rows(file: Path, episode: int) -> tuple[int, int]:
    runs = _runs(file, *_stamp(file))
    if episode not in runs:
        known = f"{min(runs)} to {max(runs)}" if runs else "none"
        raise StrapError(
            f"'{file}' holds no rows of episode {episode} (it has {known}); "
            "file and meta are of different downloads: get both again"
        )
    return runs[episode]


def _read(handle: pq.ParquetFile, file: Path, groups: list[int], column: str) -> pa.ChunkedArray:
    if column not in handle.schema_arrow.names:
        raise StrapError(
            f"'{file}' has no column '{column}', which meta/info.json lists; "
            f"its columns: {', '.join(handle.schema_arrow.names)}"
        )
    try:
        return handle.read_row_groups(groups, columns=[column])[column]
    except (OSError, pa.ArrowException) as error:
        raise StrapError(f"'{file}': cannot read '{column}' ({error}); download it again") from (
            error
        )


@lru_cache(maxsize=KEPT_COLUMNS)
def _cached_column(
    file: Path, mtime: int, size: int, reader: int, episode: int, column: str
) -> Array:
    handle = _handle(file, mtime, size, reader)
    first, last = _rows(file, episode)
    groups, offset = _overlapping(handle, first, last)
    values = _read(handle, file, groups, column).slice(first - offset, last - first)
    try:
        array = to_numpy(values)
    except (ValueError, TypeError, pa.ArrowException) as error:
        raise StrapError(
            f"'{file}', episode {episode}: column '{column}' is no regular array ({error})"
        ) from error
    array.flags.writeable = False  # shared by everyone who reads this column
    return array


def _overlapping(handle: pq.ParquetFile, first: int, last: int) -> tuple[list[int], int]:
    """The row groups that hold rows first … last−1, and the row at which the first one starts."""
    groups: list[int] = []
    begin = offset = 0
    for group in range(handle.num_row_groups):
        end = begin + handle.metadata.row_group(group).num_rows
        if begin < last and first < end:
            offset = begin if not groups else offset
            groups.append(group)
        begin = end
    return groups, offset


def to_numpy(values: pa.ChunkedArray) -> Array:
    """Numbers, or nested lists of numbers of equal lengths, as an array [rows, …]."""
    array = values.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], values.type)
    return _nested(array)


def _nested(array: pa.Array) -> Array:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if not (pa.types.is_list(array.type) or _is_other_list(array.type)):
        if array.null_count:
            raise ValueError("it has missing values")
        return np.array(array.to_numpy(zero_copy_only=False))
    rows = len(array)
    inner = _nested(array.flatten())
    if rows == 0 or len(inner) % rows or not _equal_lengths(array, len(inner) // rows):
        raise ValueError("its rows differ in length")
    return inner.reshape(rows, len(inner) // rows, *inner.shape[1:])


def _is_other_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(kind) or pa.types.is_large_list(kind))


def _equal_lengths(array: pa.Array, length: int) -> bool:
    if array.null_count:
        return False
    if pa.types.is_fixed_size_list(array.type):
        return True
    return bool((np.diff(array.offsets.to_numpy()) == length).all())


def _stream(file: Path, column: str, first: int, last: int) -> Iterator[dict[str, Any]]:
    """Rows first … last−1 of a column, a few at a time."""
    handle = _handle(file, *_stamp(file))
    groups, row = _overlapping(handle, first, last)
    try:
        batches = handle.iter_batches(IMAGE_BATCH, row_groups=groups, columns=[column])
        for batch in batches:
            low, high = max(first - row, 0), min(last - row, batch.num_rows)
            if low < high:
                yield from batch.column(0).slice(low, high - low).to_pylist()
            row += batch.num_rows
            if row >= last:
                return
    except (OSError, pa.ArrowException) as error:
        raise StrapError(f"'{file}': cannot read '{column}' ({error}); download it again") from (
            error
        )
