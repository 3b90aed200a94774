"""Read the columns of one episode from parquet files that hold many episodes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from strap.datasets.lerobot.parquet import (
    Table,
    iter_batches,
    open_table,
    read_groups,
    to_whole_numbers,
    type_name,
)
from strap.datasets.lerobot.values import short_repr
from strap.datasets.untrusted import MAX_FRAME_BYTES, require_at_most, stat_regular_file
from strap.errors import StrapError
from strap.types import Array

IMAGE_BATCH = 16
"""images read from a table at a time: bounds memory for files with huge row groups"""
CACHED_COLUMNS, CACHED_COLUMN_BYTES = 64, 1 << 20
"""the number of episode columns kept in memory, and the largest size of one"""
FETCH_BOTH = "file and meta are of different downloads: get both again"


def read_column(file: Path, episode: int, length: int, column: str, row_bytes: int) -> Array:
    """Return a numeric column of an episode, [length …]; `row_bytes` decides if it is cached."""
    require_rows(file, episode, length, column)
    load = (
        _cached_column if length * row_bytes <= CACHED_COLUMN_BYTES else _cached_column.__wrapped__
    )
    return load(file, *_stamp(file), episode, column)


def require_rows(file: Path, episode: int, length: int, column: str) -> None:
    """Raise if the episode's number of rows in the table is not its `length` in `meta/`."""
    first, last = _rows(file, episode)
    if last - first != length:
        raise StrapError(
            f"'{file}', episode {episode}: column '{column}' has {last - first} rows but meta/ "
            f"says {length} frames; {FETCH_BOTH}"
        )


def read_images(
    file: Path,
    episode: int,
    column: str,
    start: int,
    stop: int,
    locate: Callable[[str, str], Path],
) -> Iterator[bytes]:
    """Yield the encoded images of frames start … stop−1, from an image column {bytes, path}.

    An image without bytes is read from the file `locate(path, where)`.
    """
    first, _ = _rows(file, episode)
    where = f"'{file}', episode {episode}: '{column}'"
    for value in _values(file, column, first + start, first + stop):
        if not isinstance(value, dict):
            raise StrapError(f"{where} is {short_repr(value)}; an image is {{bytes, path}}")
        data, path = value.get("bytes"), value.get("path")
        if data is None and isinstance(path, str) and path:
            data = _image_file(locate(path, where), where)
        if not isinstance(data, bytes):
            raise StrapError(f"{where} holds no image bytes; download the file again")
        yield data


def cast_to_declared(values: Array, dtype: np.dtype[Any], where: str) -> Array:
    """Return numbers cast to the dtype that `info.json` declares.

    Floats may be rounded; a whole number that the dtype cannot hold is an error.
    """
    if np.can_cast(values.dtype, dtype, "safe"):
        return values.astype(dtype, copy=False)
    with np.errstate(all="ignore"):
        cast = values.astype(dtype)
    is_lost = np.isfinite(values) != np.isfinite(cast) if dtype.kind == "f" else values != cast
    if is_lost.any():
        raise StrapError(
            f"{where} is {values[is_lost][0]} in a frame, which does not fit into {dtype}, the "
            "dtype in meta/info.json; correct the dtype there"
        )
    return cast


def _image_file(file: Path, where: str) -> bytes:
    if not file.is_file():
        raise StrapError(f"{where} names the image '{file}', which is missing; download it")
    require_at_most(file.stat().st_size, MAX_FRAME_BYTES, "bytes of one image", file)
    return file.read_bytes()


def _stamp(file: Path) -> tuple[int, int, int]:
    """Return the cache key of an open file: its time and size, and the process and thread.

    An open handle may be used by only one thread, and not after a fork.
    """
    status = stat_regular_file(file, "data file")
    return status.st_mtime_ns, status.st_size, hash((os.getpid(), threading.get_ident()))


@lru_cache(maxsize=16)
def _table(file: Path, _mtime: int, _size: int, _reader: int) -> Table:
    return open_table(file)


@lru_cache(maxsize=64)
def _row_spans(file: Path, mtime: int, size: int, reader: int) -> dict[int, tuple[int, int]]:
    """Return each episode's first row and last row + 1, from the columns that number frames."""
    table = _table(file, mtime, size, reader)
    if "episode_index" not in table.names:
        raise StrapError(f"'{file}' has no column 'episode_index'; it is not a LeRobot data file")
    numbered = [name for name in ("episode_index", "frame_index") if name in table.names]
    spans: dict[int, tuple[int, int]] = {}
    row, last, last_frame = 0, -1, -1
    for batch in iter_batches(table, numbered):
        index, *frames = (
            to_whole_numbers(values, f"'{file}': '{name}'")
            for values, name in zip(batch, numbered, strict=True)
        )
        is_next = np.diff(index, prepend=last) != 0
        if frames and not (is_next | (np.diff(frames[0], prepend=last_frame) > 0)).all():
            raise StrapError(
                f"'{file}': its rows are not in the order of frame_index; {FETCH_BOTH}"
            )
        starts = np.flatnonzero(is_next)
        for start, stop in pairwise((*starts.tolist(), len(index))):
            episode = int(index[start])
            if episode in spans:
                raise StrapError(
                    f"'{file}': the rows of episode {episode} are not together; the file is "
                    "damaged: download it again"
                )
            spans[episode] = (row + start, row + stop)
        if len(starts) == 0 or starts[0] > 0:  # the batch begins inside the previous episode
            spans[last] = (spans[last][0], row + int(starts[0] if len(starts) else len(index)))
        row, last = row + len(index), int(index[-1])
        last_frame = int(frames[0][-1]) if frames else -1
    return spans


def _rows(file: Path, episode: int) -> tuple[int, int]:
    spans = _row_spans(file, *_stamp(file))
    if episode not in spans:
        known = f"{min(spans)} to {max(spans)}" if spans else "none"
        raise StrapError(
            f"'{file}' holds no rows of episode {episode} (it has {known}); {FETCH_BOTH}"
        )
    return spans[episode]


@lru_cache(maxsize=CACHED_COLUMNS)
def _cached_column(
    file: Path, mtime: int, size: int, reader: int, episode: int, column: str
) -> Array:
    table = _table(file, mtime, size, reader)
    first, last = _rows(file, episode)
    groups, offset = _overlapping(table, first, last)
    values = read_groups(table, groups, column).slice(first - offset, last - first)
    try:
        array = to_numpy(values)
    except (ValueError, TypeError, RecursionError, pa.ArrowException) as error:
        raise StrapError(
            f"'{file}', episode {episode}: column '{column}' is not a regular array ({error}); "
            "download the file again"
        ) from error
    array.flags.writeable = False  # the cached array is shared by all readers of this column
    return array


def _overlapping(table: Table, first: int, last: int) -> tuple[list[int], int]:
    """Return the row groups that hold rows first … last−1, and the first row of these groups."""
    groups: list[int] = []
    begin = offset = 0
    for group, rows in enumerate(table.group_rows):
        if begin < last and first < begin + rows:
            offset = begin if not groups else offset
            groups.append(group)
        begin += rows
    return groups, offset


def to_numpy(values: pa.ChunkedArray) -> Array:
    """Return numbers, or nested lists of numbers of equal lengths, as an array [rows, …]."""
    array = values.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], values.type)
    return _nested(array)


def _nested(array: pa.Array) -> Array:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    list_tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(is_list(array.type) for is_list in list_tests):
        return _numbers(array)
    rows = len(array)
    inner = _nested(array.flatten())
    if rows == 0 or len(inner) % rows or not _equal_lengths(array, len(inner) // rows):
        raise ValueError("its rows differ in length")
    return inner.reshape(rows, len(inner) // rows, *inner.shape[1:])


def _numbers(array: pa.Array) -> Array:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise ValueError(f"it holds {type_name(kind)}, not numbers")
    if array.null_count:
        raise ValueError("it has missing values")
    return np.array(array.to_numpy(zero_copy_only=False))


def _equal_lengths(array: pa.Array, length: int) -> bool:
    if array.null_count:
        return False
    if pa.types.is_fixed_size_list(array.type):
        return True
    return bool((np.diff(array.offsets.to_numpy()) == length).all())


def _values(file: Path, column: str, first: int, last: int) -> Iterator[object]:
    """Yield rows first … last−1 of a column, a few at a time."""
    table = _table(file, *_stamp(file))
    groups, row = _overlapping(table, first, last)
    for (values,) in iter_batches(table, [column], rows=IMAGE_BATCH, groups=groups):
        low, high = max(first - row, 0), min(last - row, len(values))
        if low < high:
            yield from values.slice(low, high - low).to_pylist()
        row += len(values)
        if row >= last:
            return
