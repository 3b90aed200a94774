"""Read parquet files that are not trusted: columns within limits, errors that name the column.

A small parquet file can unpack to a huge column if its values repeat. So the unpacked size of a
column is computed and compared with a limit before the column is read.
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
from strap.datasets.untrusted import describe_error, require_at_most
from strap.errors import StrapError, shorten
from strap.types import Array

ROWS_PER_BATCH = 1 << 16
"""rows of numbers read at a time"""
MAX_COLUMN_BYTES = 1 << 30
"""the largest unpacked size of a column in one row group"""
MAX_BATCH_BYTES = 1 << 29
"""the largest size of the texts or images read at a time, and of a whole column of `meta/`"""
LIST_BYTES = 8
"""memory that Arrow needs per list value while it reads a list"""
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 12}


@dataclass(frozen=True)
class Table:
    """An open parquet file, without the values of its columns."""

    file: Path
    handle: pq.ParquetFile
    schema: pa.Schema
    group_rows: Sequence[int]
    """number of rows of each row group"""
    sizes: dict[tuple[int, int], int] = field(default_factory=dict)
    """cache: (row group, column) -> unpacked bytes"""

    @property
    def names(self) -> Sequence[str]:
        """The names of the columns."""
        return list(self.schema.names)

    @property
    def rows(self) -> int:
        """The total number of rows."""
        return sum(self.group_rows)


def open_table(file: Path) -> Table:
    """Open a parquet file; raise if its footer is damaged or contradicts itself."""
    try:
        handle = pq.ParquetFile(file, page_checksum_verification=True)
        footer = handle.metadata
        rows = [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
        table = Table(file, handle, handle.schema_arrow, rows)
    except Exception as error:
        raise StrapError(
            f"cannot read '{file}' as parquet ({describe_error(error)}): truncated or damaged; "
            "download it again"
        ) from error
    if table.rows != footer.num_rows or min(rows, default=0) < 0:
        raise StrapError(f"'{file}': its row groups do not add up to its rows; download it again")
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
    """Yield batches of columns, of `rows` rows each, or fewer if they hold texts or images.

    Many rows can share one text that is stored once. So each row can be as large as the whole
    column in the file.
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
    """Return whole numbers of 0 or more as int64; with `missing`, nulls are allowed and become −1.

    Floats with whole values are accepted. `what` names the column and its file in the error.
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
    """Return numbers as float64, nulls as NaN; `what` names the column in the error."""
    values = _decoded(values)
    kind = values.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
        raise StrapError(f"{what} is of type {type_name(kind)}; it must be seconds")
    return np.array(values.cast(pa.float64(), safe=False).to_numpy(), np.float64)


def type_name(kind: pa.DataType) -> str:
    """Return the name of a type, shortened if it is long."""
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
    """Return the column's largest unpacked size among the row groups; raise if it is too large."""
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
    """Return the unpacked size of a column in a row group: the larger by footer and by pages."""
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
        f"'{table.file}': cannot read '{column}' ({describe_error(error)}); it is damaged: "
        "download it again"
    )
