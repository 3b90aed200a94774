"""The journal of a shard being written: what its data files hold, line by line.

Each line is the CRC-32 of its JSON in eight hexadecimal digits, a space, and the JSON. Rows are
written before the line that speaks of them, so a line that is whole speaks of rows that are there;
the first torn line ends the journal.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Line = Mapping[str, Any]


def pack(lines: Sequence[Line]) -> bytes:
    """Lines as bytes."""
    texts = [json.dumps(line, ensure_ascii=False, separators=(",", ":")) for line in lines]
    return b"".join(b"%08x %s\n" % (zlib.crc32(t.encode()), t.encode()) for t in texts)


def unpack(content: bytes) -> Iterator[tuple[Line, int]]:
    """The whole lines, each with the position after it."""
    position = 0
    while (end := content.find(b"\n", position)) >= 0:
        line = content[position:end]
        if len(line) < 10 or line[:8] != b"%08x" % zlib.crc32(line[9:]):
            return
        position = end + 1
        yield json.loads(line[9:]), position


def claims(file: Path) -> set[str]:
    """Ids that the journal's writer has taken upon itself."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return set()
    found: set[str] = set()
    for line, _ in unpack(content):
        found = set() if "release" in line else found | set(line.get("claim", ()))
    return found
