"""The journal of an unfinished shard: what its data files contain, line by line.

Each line is the CRC-32 of its JSON in eight hexadecimal digits, a space, and the JSON. Rows are
written before the line that describes them, so the rows of an undamaged line are in the files. The
first damaged line ends the journal.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from strap.store.layout import parse_entry
from strap.store.parsing import (
    parse_list,
    parse_number,
    parse_object,
    parse_text,
    parse_texts,
    require_keys,
)

Line = Mapping[str, Any]


def pack(lines: Sequence[Line]) -> bytes:
    """Return lines encoded as bytes."""
    texts = [json.dumps(line, ensure_ascii=False, separators=(",", ":")) for line in lines]
    return b"".join(b"%08x %s\n" % (zlib.crc32(t.encode()), t.encode()) for t in texts)


def unpack(content: bytes) -> Iterator[tuple[Line, int]]:
    """Yield the lines up to the first damaged one, each with the position after it."""
    position = 0
    while (end := content.find(b"\n", position)) >= 0:
        line = content[position:end]
        if len(line) < 10 or line[:8] != b"%08x" % zlib.crc32(line[9:]):
            return
        try:
            value = parse_line(json.loads(line[9:]))
        except (ValueError, RecursionError):  # not a line that a writer writes
            return
        position = end + 1
        yield value, position


def parse_line(raw: object) -> Line:
    """Return a line after checking the types of its values."""
    line = parse_object(raw, "a line")
    parse_texts(line.get("claim", []), "claim")
    for one in parse_list(line.get("begin", []), "begin"):
        parse_object(one, "a started trajectory")
        require_keys(one, ("id", "length", "instruction", "stamp"), "a started trajectory")
        parse_number(one["length"], "a length", least=1)
        for name in ("id", "instruction", "stamp"):
            parse_text(one[name], name)
    rows = parse_list(line.get("rows", [0, 0, 0, 0]), "rows")
    if len([parse_number(value, "an item of rows") for value in rows]) != 4:
        raise ValueError("rows are not camera, first row, count and checksum")
    if "entry" in line:
        checksums = parse_list(parse_object(line["entry"], "entry").get("checksums"), "checksums")
        parse_entry(line["entry"], len(checksums))
    return line


def claims(file: Path) -> set[str]:
    """Return the ids of the trajectories that the journal's writer has claimed."""
    found: set[str] = set()
    for line, _ in unpack(read_journal(file)):
        found = set() if "release" in line else found | set(line.get("claim", ()))
    return found


def read_journal(file: Path) -> bytes:
    """Return a journal's bytes; empty if there is no journal."""
    try:
        return file.read_bytes() if file.is_file() else b""
    except FileNotFoundError:  # its writer has just finished
        return b""
