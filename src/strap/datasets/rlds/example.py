"""`tf.train.Example` messages, parsed from their bytes: no TensorFlow, no protobuf.

    Example  { features: 1 }
    Features { feature: 1, repeated map entry { key: 1, value: 2 } }
    Feature  { bytes_list: 1 | float_list: 2 | int64_list: 3 }, each { value: 1, repeated }

Only the map is walked at first; a feature's values are parsed when it is asked for, and pictures
stay slices of the record. Whatever does not fit the layout above raises `ValueError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from strap.types import Array

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
BYTES, FLOATS, INTS = 1, 2, 3
REPEATED = 1 << 3 | LENGTH
"""the tag of field 1 with a length: what every value of a list and entry of a map begins with"""


@dataclass(frozen=True)
class Example:
    """One record: feature name -> where its message lies in the record's bytes."""

    data: bytes
    spans: Mapping[str, tuple[int, int]]

    def texts(self, name: str) -> list[bytes]:
        """The values of a bytes feature."""
        data = self.data
        return [data[a:b] for a, b in self.pieces(name)]

    def pieces(self, name: str) -> list[tuple[int, int]]:
        """Where the values of a bytes feature lie in `data`."""
        kind, start, stop = self._list(name)
        if kind not in (BYTES, None):
            raise ValueError(f"'{name}' holds numbers, not bytes")
        return _pieces(self.data, start, stop)

    def numbers(self, name: str) -> Array:
        """The values of a float or int64 feature, flat: float32 or int64."""
        kind, start, stop = self._list(name)
        if kind is None:
            return np.empty(0, np.float32)
        if kind == BYTES:
            raise ValueError(f"'{name}' holds bytes, not numbers")
        read = _floats if kind == FLOATS else _varints
        if start < stop and self.data[start] == REPEATED:
            size, first = _size(self.data, start + 1, stop)
            if first + size == stop:  # one packed list, as every current writer makes it
                return read(self.data, first, stop)
        alone = FIXED32 if kind == FLOATS else VARINT
        parts = []
        for _, wire, a, b in _fields(self.data, start, stop):
            if wire not in (LENGTH, alone):
                raise ValueError(f"'{name}' has a part of another type")
            parts.append(read(self.data, a, b))
        dtype = np.float32 if kind == FLOATS else np.int64
        return np.concatenate(parts) if parts else np.empty(0, dtype)

    def _list(self, name: str) -> tuple[int | None, int, int]:
        """(which list, start, stop) of a feature; None for an empty one."""
        start, stop = self.spans[name]
        found: tuple[int | None, int, int] = (None, start, start)
        for number, wire, a, b in _fields(self.data, start, stop):
            if wire == LENGTH and number in (BYTES, FLOATS, INTS):
                found = (number, a, b)
        return found


def parse(data: bytes) -> Example:
    """Find the features of a record."""
    spans: dict[str, tuple[int, int]] = {}
    for number, wire, start, stop in _fields(data, 0, len(data)):
        if number == 1 and wire == LENGTH:
            for a, b in _pieces(data, start, stop):
                name, span = _entry(data, a, b)
                spans[name] = span
    if not spans:
        raise ValueError("the record holds no features: it is no tf.train.Example")
    return Example(data, spans)


def _entry(data: bytes, start: int, stop: int) -> tuple[str, tuple[int, int]]:
    name, span = "", (stop, stop)
    for number, wire, a, b in _fields(data, start, stop):
        if number == 1 and wire == LENGTH:
            name = data[a:b].decode("utf-8")
        elif number == 2 and wire == LENGTH:
            span = (a, b)
    return name, span


def _pieces(data: bytes, position: int, stop: int) -> list[tuple[int, int]]:
    """Spans of a message that is nothing but field 1 over and over: lists and maps.

    The loop that reading pictures spends its time in, so sizes are read in place.
    """
    found = []
    while position < stop:
        if data[position] != REPEATED or position + 1 >= stop:
            raise ValueError("a list holds something that is no value of it")
        size = data[position + 1]
        position += 2
        if size >= 0x80:
            size, position = _size(data, position - 1, stop)
        found.append((position, position + size))
        position += size
    if position != stop:
        raise ValueError("a field reaches over the end of its message")
    return found


def _fields(data: bytes, position: int, stop: int) -> list[tuple[int, int, int, int]]:
    """(field number, wire type, start, stop) of each field of the message data[position:stop]."""
    found = []
    while position < stop:
        tag = data[position]
        position += 1
        if tag >= 0x80:
            tag, position = _size(data, position - 1, stop)
        wire = tag & 7
        if wire == LENGTH:
            size = data[position] if position < stop else 0x80
            position += 1
            if size >= 0x80:
                size, position = _size(data, position - 1, stop)
            end = position + size
        else:
            end = _end_of_number(data, wire, position, stop)
        if end > stop:
            raise ValueError("a field reaches over the end of its message")
        found.append((tag >> 3, wire, position, end))
        position = end
    return found


def _size(data: bytes, position: int, stop: int) -> tuple[int, int]:
    """A variable-length number, and where it ends."""
    value = shift = 0
    while position < stop and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("a variable-length number does not end")


def _end_of_number(data: bytes, wire: int, position: int, stop: int) -> int:
    if wire == FIXED32:
        return position + 4
    if wire == FIXED64:
        return position + 8
    if wire != VARINT:
        raise ValueError(f"unknown wire type {wire}")
    while position < stop:
        position += 1
        if not data[position - 1] & 0x80:
            return position
    raise ValueError("a variable-length number does not end")


def _floats(data: bytes, start: int, stop: int) -> Array:
    if (stop - start) % 4:
        raise ValueError("a list of floats has a part of odd size")
    return np.frombuffer(data, "<f4", (stop - start) // 4, start)


def _varints(data: bytes, start: int, stop: int) -> Array:
    """All varints of data[start:stop] as int64, without a loop over the values."""
    raw = np.frombuffer(data, np.uint8, stop - start, start)
    if data[start:stop].isascii():  # every value below 128: flags, small counts
        return raw.astype(np.int64)
    ends = np.flatnonzero(raw < 0x80)
    if not len(ends) or ends[-1] != len(raw) - 1:
        raise ValueError("a list of integers ends inside a number")
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    if lengths.max() > 10:
        raise ValueError("a variable-length number does not end")
    place = np.arange(len(raw)) - np.repeat(starts, lengths)
    bits = (raw & 0x7F).astype(np.uint64) << (7 * place).astype(np.uint64)
    return np.bitwise_or.reduceat(bits, starts).view(np.int64)
