"""Parquet files with one change in their columns, rows or values."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.fuzzing.values import HUGE

TEXTS = ("", "x", "../../etc/hostname", "/etc/hostname", "\x1b[31m", "9" * 5000, "episode_000000")
NUMBERS = (-1, 0, 1, 2**31, 2**62, -(2**62), HUGE)
FLOATS = (float("nan"), float("inf"), -1.0, 0.0, 1e300, 1e18, 0.5)
KINDS = (
    pa.string(),
    pa.int8(),
    pa.int64(),
    pa.uint64(),
    pa.float16(),
    pa.float64(),
    pa.bool_(),
    pa.binary(),
    pa.list_(pa.int64()),
    pa.struct([("bytes", pa.binary())]),
    pa.timestamp("us"),
    pa.dictionary(pa.int32(), pa.string()),
    pa.decimal128(20, 3),
    pa.null(),
)


def change_table(rng: random.Random, file: Path) -> str:
    """One change; where pyarrow can't write it, another."""
    table = pq.read_table(file)
    while True:
        name = rng.choice(list(CHANGES))
        try:
            changed = CHANGES[name](rng, table)
            pq.write_table(changed, file, row_group_size=max(1, changed.num_rows // 2))
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            continue
        return name


def _column(rng: random.Random, table: pa.Table) -> int:
    return rng.randrange(table.num_columns)


def _drop_column(rng: random.Random, table: pa.Table) -> pa.Table:
    return table.remove_column(_column(rng, table))


def _rename_column(rng: random.Random, table: pa.Table) -> pa.Table:
    names, at = list(table.column_names), _column(rng, table)
    names[at] = rng.choice((names[at].upper(), "", names[at] + ".x", rng.choice(names), "\x1b[2J"))
    return table.rename_columns(names)


def _retype_column(rng: random.Random, table: pa.Table) -> pa.Table:
    """Cast where that is possible, else invent values of the other kind."""
    at, kind = _column(rng, table), rng.choice(KINDS)
    try:
        column = table.column(at).cast(kind, safe=False)
    except pa.ArrowException:
        column = pa.array([_invent(rng, kind) for _ in range(table.num_rows)], kind)
    return table.set_column(at, table.column_names[at], column)


def _invent(rng: random.Random, kind: pa.DataType) -> Any:
    if pa.types.is_string(kind) or pa.types.is_dictionary(kind):
        return rng.choice(TEXTS)
    if pa.types.is_floating(kind):
        return rng.choice(FLOATS)
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        return [_invent(rng, kind.value_type) for _ in range(rng.randrange(4))]
    if pa.types.is_struct(kind):
        return {field.name: _invent(rng, field.type) for field in kind}
    if pa.types.is_binary(kind):
        return rng.randbytes(rng.choice((0, 1, 100)))
    if pa.types.is_boolean(kind):
        return rng.random() < 0.5
    return (
        rng.choice(NUMBERS) if pa.types.is_int64(kind) else 1 if pa.types.is_integer(kind) else None
    )


def _null_values(rng: random.Random, table: pa.Table) -> pa.Table:
    at = _column(rng, table)
    every = rng.random() < 0.4
    values = table.column(at).to_pylist()
    kept = [None if every or rng.random() < 0.3 else value for value in values]
    column = pa.array(kept, table.schema.field(at).type)
    return table.set_column(at, table.column_names[at], column)


def _change_value(rng: random.Random, table: pa.Table) -> pa.Table:
    at, row = _column(rng, table), rng.randrange(max(1, table.num_rows))
    kind, values = table.schema.field(at).type, table.column(at).to_pylist()
    old = values[row]
    if isinstance(old, int | float) and not isinstance(old, bool) and rng.random() < 0.5:
        values[row] = rng.choice((old + 1, old - 1, -old, old * 2))
    elif isinstance(old, dict) and isinstance(old.get("bytes"), bytes):
        values[row] = {**old, "bytes": _change_picture(rng, old["bytes"])}
    else:
        values[row] = _invent(rng, kind)
    return table.set_column(at, table.column_names[at], pa.array(values, kind))


def _change_picture(rng: random.Random, picture: bytes) -> bytes:
    """A PNG cut off, with other bytes, or one that says it is enormous."""
    content = bytearray(picture)
    change = rng.randrange(3)
    if change == 0:
        return picture[: rng.randrange(len(picture))]
    if change == 1:
        content[rng.randrange(len(content))] ^= 0xFF
    else:
        content[16:24] = rng.choice((b"\x00\x01\x00\x00", b"\x7f\xff\xff\xff")) * 2
    return bytes(content)


def _double_column(rng: random.Random, table: pa.Table) -> pa.Table:
    at = _column(rng, table)
    return table.append_column(table.column_names[at], table.column(at))


def _reorder_columns(rng: random.Random, table: pa.Table) -> pa.Table:
    return table.select(rng.sample(range(table.num_columns), table.num_columns))


def _swap_columns(rng: random.Random, table: pa.Table) -> pa.Table:
    names = rng.sample(list(table.column_names), table.num_columns)
    return table.rename_columns(names)


def _reorder_rows(rng: random.Random, table: pa.Table) -> pa.Table:
    return table.take(rng.sample(range(table.num_rows), table.num_rows))


def _drop_rows(rng: random.Random, table: pa.Table) -> pa.Table:
    count = rng.choice((0, 1, table.num_rows - 1))
    return table.take(sorted(rng.sample(range(table.num_rows), max(0, count))))


def _double_rows(rng: random.Random, table: pa.Table) -> pa.Table:
    return pa.concat_tables([table, table.slice(rng.randrange(table.num_rows), 1)])


def _drop_metadata(_rng: random.Random, table: pa.Table) -> pa.Table:
    return table.replace_schema_metadata(None)


CHANGES = {
    "column dropped": _drop_column,
    "column renamed": _rename_column,
    "column retyped": _retype_column,
    "column doubled": _double_column,
    "columns reordered": _reorder_columns,
    "columns swapped": _swap_columns,
    "values nulled": _null_values,
    "value changed": _change_value,
    "rows reordered": _reorder_rows,
    "rows dropped": _drop_rows,
    "rows doubled": _double_rows,
    "schema metadata dropped": _drop_metadata,
}
