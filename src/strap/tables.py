"""Reading of Parquet tables with known columns; an error names a wrong or missing column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from strap.errors import StrapError, printable

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["string", "int64", "float64"]
MAX_ROWS = 1_000_000
"""Limit of the rows that are read: a small file can declare any number of equal rows."""
ROWS_PER_BATCH = 10_000


def read_rows(path: Path, columns: Mapping[str, Kind], what: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file with the requested columns; other columns are ignored.

    Args:
        path: the file, written by any tool.
        columns: name -> type. Narrower numbers and other encodings of texts are accepted.
        what: what the rows are, for error messages: "matches".
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Not memory-mapped: truncating a mapped file would crash this process.
        with pq.ParquetFile(path) as file:
            _require_columns(file, columns, path, what)
            for batch in file.iter_batches(ROWS_PER_BATCH, columns=list(columns)):
                table = pa.table({name: batch.column(name) for name in columns})
                yield from table.cast(pa.schema(list(_schema(columns)))).to_pylist()
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        text = printable(" ".join(str(error).split())[:300])
        raise StrapError(
            f"cannot read {what} from '{path}' ({text}): restore it from a copy, or create it again"
        ) from error


def _schema(columns: Mapping[str, Kind]) -> Iterator[tuple[str, pa.DataType]]:
    import pyarrow as pa

    return ((name, getattr(pa, kind)()) for name, kind in columns.items())


def _require_columns(file: Any, columns: Mapping[str, Kind], path: Path, what: str) -> None:
    schema, count = file.schema_arrow, file.metadata.num_rows
    missing = [name for name in columns if name not in schema.names]
    if missing:
        raise StrapError(f"'{path}' is not a table of {what}: it lacks {', '.join(missing)}")
    for name, kind in columns.items():
        if schema.names.count(name) > 1:
            raise StrapError(f"'{path}' has several columns called '{name}': keep one of them")
        if not _suits(schema.field(name).type, kind):
            raise StrapError(
                f"'{path}': column '{name}' holds {schema.field(name).type}, not {kind}: write "
                f"{what} as `strap retrieve` does"
            )
    if count > MAX_ROWS:
        raise StrapError(
            f"'{path}' declares {count:,} rows; at most {MAX_ROWS:,} are read: it is damaged"
        )


def _suits(found: pa.DataType, kind: Kind) -> bool:
    """Return whether all values of a type can be converted to the type that a column needs."""
    import pyarrow as pa

    if pa.types.is_dictionary(found):
        found = found.value_type
    if kind == "string":
        return bool(pa.types.is_string(found) or pa.types.is_large_string(found))
    if kind == "int64":
        return bool(pa.types.is_integer(found))
    return bool(pa.types.is_integer(found) or pa.types.is_floating(found))
