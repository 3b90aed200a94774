"""Parquet files of somebody else: columns within limits, errors that name file and column.

A parquet file is small where its values repeat: what a column unpacks to is looked up and held
against a limit before it is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from strap.datasets.lerobot.pages import unpacked_size
from strap.datasets.lerobot.values import MAX_WHOLE_NUMBER, short_repr
from strap.datasets.untrusted import describe, require_at_most
from strap.errors import StrapError, shorten
from strap.types import Array

ROWS_PER_BATCH = 1 << 16
"""rows of numbers read at a time"""
MAX_COLUMN_BYTES = 1 << 30
"""the most that one column of one row group may unpack to"""
MAX_BATCH_BYTES = 1 << 29
"""the most that texts or pictures read at a time may come to, and a column of `meta/` in all"""
LIST_BYTES = 8
"""what Arrow needs for each value of a list while it reads it"""
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 12}


@dataclass(frozen=True)
class Table:
    """An open parquet file, its columns unread."""

    file: Path
    handle: pq.ParquetFile
    schema: pa.Schema
    group_rows: Sequence[int]
    """rows of each row group"""
    sizes: dict[tuple[int, int], int] = field(default_factory=dict)
    """(row group, column) -> bytes that it unpacks to, of those that were looked at"""

    @property
    def names(self) -> Sequence[str]:
        """Names of its columns."""
        return list(self.schema.names)

    @property
    def rows(self) -> int:
        """Rows in all."""
        return sum(self.group_rows)


def open_table(file: Path) -> Table:
    """Open a parquet file; raise where its footer is damaged or contradicts itself."""
    try:
        handle = pq.ParquetFile(file, page_checksum_verification=True)
        footer = handle.metadata
        rows = [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
        table = Table(file, handle, handle.schema_arrow, rows)
    except Exception as error:
        raise StrapError(
            f"cannot read '{file}' as parquet ({describe(error)}): truncated or damaged; "
            "download it again"
        ) from error
    if table.rows != footer.num_rows or min(rows, default=0) < 0:
        raise StrapError(f"'{file}': its row groups do not add up; damaged, download it again")
    twice = [name for name, count in Counter(table.names).items() if count > 1]
    if twice:
        raise StrapError(f"'{file}' has two columns {short_repr(twice[0])}; download it again")
    return table


def read_groups(table: Table, groups: Sequence[int], column: str) -> pa.ChunkedArray:
    """Return a column of these row groups."""
    _require_column(table, column)
    _unpacked_size(table, groups, column)
    try:
        values = table.handle.read_row_groups(list(groups), columns=[column])[column]
    except Exception as error:
        raise _unreadable(table, column, error) from error
    _require_rows(table, column, len(values), sum(table.group_rows[group] for group in groups))
    return values


def iter_batches(
    table: Table,
    columns: Sequence[str],
    *,
    rows: int = ROWS_PER_BATCH,
    groups: Sequence[int] | None = None,
) -> Iterator[Sequence[pa.Array]]:
    """Yield columns, `rows` rows at a time, or fewer where they hold texts or pictures.

    A text that stands once in the file may be that of many rows, so that each row may be as large
    as all of the column in the file.
    """
    groups = range(len(table.group_rows)) if groups is None else groups
    for column in columns:
        _require_column(table, column)
        largest = _unpacked_size(table, groups, column)
        if not pa.types.is_primitive(table.schema.field(column).type):
            rows = max(1, min(rows, MAX_BATCH_BYTES // max(1, largest)))
    seen = 0
    try:
        for batch in table.handle.iter_batches(rows, row_groups=list(groups), columns=columns):
            seen += batch.num_rows
            if batch.num_rows:
                yield [batch.column(column) for column in columns]
    except Exception as error:
        raise _unreadable(table, columns[0], error) from error
    _require_rows(table, columns[0], seen, sum(table.group_rows[group] for group in groups))


def read_whole_column(table: Table, column: str) -> pa.ChunkedArray:
    """Return a whole column, of at most `MAX_BATCH_BYTES`."""
    kept: list[pa.Array] = []
    size = 0
    for (values,) in iter_batches(table, [column]):
        size += values.nbytes
        require_at_most(size, MAX_BATCH_BYTES, f"bytes of column '{column}'", table.file)
        kept.append(values)
    return pa.chunked_array(kept, table.schema.field(column).type)


def to_whole_numbers(
    values: pa.Array | pa.ChunkedArray, what: str, *, missing: bool = False
) -> Array:
    """Return whole numbers from 0 on as int64; with `missing`, −1 where there is none.

    Floats are taken where they are whole. `what` names the column and its file in the error.
    """
    values = _decoded(values)
    if pa.types.is_null(values.type) and missing:
        return np.full(len(values), -1, np.int64)
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        raise StrapError(f"{what} is of type {type_name(values.type)}; it must be whole numbers")
    if values.null_count and not missing:
        raise StrapError(f"{what} has missing values; download the file again")
    known = values.drop_null().to_numpy(zero_copy_only=False)
    is_whole = (known >= 0) & (known <= MAX_WHOLE_NUMBER)
    if known.dtype.kind == "f":
        is_whole &= (known == np.floor(known)) & (known <= 2.0**53)
    if not is_whole.all():
        raise StrapError(
            f"{what} is {known[~is_whole][0]} in a row; it must be whole numbers of 0 or more: "
            "download the file again"
        )
    out = np.full(len(values), -1, np.int64)
    out[values.is_valid().to_numpy(zero_copy_only=False)] = known.astype(np.int64)
    return out


def to_seconds(values: pa.ChunkedArray, what: str) -> Array:
    """Return numbers as float64, NaN where there is none; `what` names the column in the error."""
    values = _decoded(values)
    kind = values.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
        raise StrapError(f"{what} is of type {type_name(kind)}; it must be seconds")
    return np.array(values.cast(pa.float64(), safe=False).to_numpy(), np.float64)


def type_name(kind: pa.DataType) -> str:
    """Return the name of a type, shortened where it is long."""
    return shorten(str(kind))


def _decoded(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    is_coded = pa.types.is_dictionary(values.type)
    return values.cast(values.type.value_type) if is_coded else values


def _require_column(table: Table, column: str) -> None:
    if column not in table.names:
        known = ", ".join(short_repr(name) for name in table.names[:40])
        raise StrapError(
            f"'{table.file}' has no column '{column}', which meta/info.json lists; "
            f"its columns: {known}"
        )


def _unpacked_size(table: Table, groups: Sequence[int], column: str) -> int:
    """Return the most bytes of the column in one of the row groups; raise where it is too many."""
    footer = table.handle.metadata
    paths = [footer.schema.column(i).path for i in range(footer.num_columns)]
    leaves = [i for i, path in enumerate(paths) if f"{path}.".startswith(f"{column}.")]
    wanted = [(group, leaf) for group in groups for leaf in leaves]
    try:
        _look_up_sizes(table, [place for place in wanted if place not in table.sizes])
    except ValueError as error:
        raise _unreadable(table, column, error) from error
    largest = max((table.sizes[place] for place in wanted), default=0)
    what = f"bytes of column '{column}' in a row group"
    require_at_most(largest, MAX_COLUMN_BYTES, what, table.file)
    return largest


def _look_up_sizes(table: Table, places: Sequence[tuple[int, int]]) -> None:
    if not places:
        return
    footer = table.handle.metadata
    with table.file.open("rb") as file:
        for group, leaf in places:
            is_list = footer.schema.column(leaf).max_repetition_level > 0
            chunk = footer.row_group(group).column(leaf)
            table.sizes[group, leaf] = _chunk_size(file, chunk, is_list=is_list)


def _chunk_size(file: BinaryIO, chunk: pq.ColumnChunkMetaData, *, is_list: bool) -> int:
    """Return what one column of one row group unpacks to, by its footer and by its pages."""
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < (chunk.dictionary_page_offset or 0) < start:
        start = chunk.dictionary_page_offset
    width = _WIDTHS.get(chunk.physical_type, 1) + (LIST_BYTES if is_list else 0)
    pages = unpacked_size(file, start, chunk.total_compressed_size, chunk.num_values, width)
    return int(max(pages, chunk.total_uncompressed_size, chunk.num_values * width))


def _require_rows(table: Table, column: str, found: int, declared: int) -> None:
    if found != declared:
        raise StrapError(
            f"'{table.file}' has {found} rows of '{column}' but declares {declared}; it is "
            "damaged: download it again"
        )


def _unreadable(table: Table, column: str, error: Exception) -> StrapError:
    return StrapError(
        f"'{table.file}': cannot read '{column}' ({describe(error)}); it is damaged: "
        "download it again"
    )
