"""`tf.train.Example` messages, parsed from their bytes: no TensorFlow, no protobuf.

    Example  { features: 1 }
    Features { feature: 1, repeated map entry { key: 1, value: 2 } }
    Feature  { bytes_list: 1 | float_list: 2 | int64_list: 3 }, each { value: 1, repeated }

Only the map is walked at first; a feature's values are parsed when it is asked for, and pictures
stay slices of the record. Whatever does not fit the layout above raises `ValueError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from strap.types import Array

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
BYTES, FLOATS, INTS = 1, 2, 3


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
        return [(a, b) for _, wire, a, b in _fields(self.data, start, stop) if _is(wire, LENGTH)]

    def numbers(self, name: str) -> Array:
        """The values of a float or int64 feature, flat: float32 or int64."""
        kind, start, stop = self._list(name)
        if kind is None:
            return np.empty(0, np.float32)
        if kind == FLOATS:
            return self._floats(start, stop)
        if kind == INTS:
            return self._ints(start, stop)
        raise ValueError(f"'{name}' holds bytes, not numbers")

    def _list(self, name: str) -> tuple[int | None, int, int]:
        start, stop = self.spans[name]
        found: tuple[int | None, int, int] = (None, start, start)
        for number, wire, a, b in _fields(self.data, start, stop):
            if number in (BYTES, FLOATS, INTS) and _is(wire, LENGTH):
                found = (number, a, b)
        return found

    def _floats(self, start: int, stop: int) -> Array:
        parts = []
        for _, wire, a, b in _fields(self.data, start, stop):
            if wire not in (LENGTH, FIXED32) or (b - a) % 4:
                raise ValueError("a list of floats has a part of odd size")
            parts.append(np.frombuffer(self.data, "<f4", (b - a) // 4, a))
        return _joined(parts, np.dtype(np.float32))

    def _ints(self, start: int, stop: int) -> Array:
        parts = []
        for _, wire, a, b in _fields(self.data, start, stop):
            if wire not in (LENGTH, VARINT):
                raise ValueError("a list of integers has a part of another type")
            parts.append(_varints(self.data, a, b))
        return _joined(parts, np.dtype(np.int64))


def parse(data: bytes) -> Example:
    """Find the features of a record."""
    spans: dict[str, tuple[int, int]] = {}
    for number, wire, start, stop in _fields(data, 0, len(data)):
        if number != 1 or wire != LENGTH:
            continue
        for entry, wire_of_entry, a, b in _fields(data, start, stop):
            if entry == 1 and wire_of_entry == LENGTH:
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


def _fields(data: bytes, position: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """(field number, wire type, start, stop) of each field of the message data[position:stop]."""
    while position < stop:
        tag = data[position]
        position += 1
        if tag & 0x80:
            tag, position = _long_varint(data, tag, position, stop)
        wire = tag & 7
        if wire == LENGTH:
            if position >= stop:
                raise ValueError("a message ends inside a field")
            size = data[position]
            position += 1
            if size & 0x80:
                size, position = _long_varint(data, size, position, stop)
            end = position + size
        else:
            end = _end_of_number(data, wire, position, stop)
        if end > stop:
            raise ValueError("a field reaches over the end of its message")
        yield tag >> 3, wire, position, end
        position = end


def _long_varint(data: bytes, value: int, position: int, stop: int) -> tuple[int, int]:
    """Go on with a varint whose first byte is `value`."""
    value &= 0x7F
    for shift in range(7, 70, 7):
        if position >= stop:
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, position
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


def _varints(data: bytes, start: int, stop: int) -> Array:
    """All varints of data[start:stop] as int64, without a loop over the values."""
    raw = np.frombuffer(data, np.uint8, stop - start, start)
    ends = np.flatnonzero(raw < 0x80)
    if not len(raw):
        return np.empty(0, np.int64)
    if not len(ends) or ends[-1] != len(raw) - 1:
        raise ValueError("a list of integers ends inside a number")
    if len(ends) == len(raw):  # every value below 128: flags, small counts
        return raw.astype(np.int64)
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    if lengths.max() > 10:
        raise ValueError("a variable-length number does not end")
    place = np.arange(len(raw)) - np.repeat(starts, lengths)
    bits = (raw & 0x7F).astype(np.uint64) << (7 * place).astype(np.uint64)
    return np.bitwise_or.reduceat(bits, starts).view(np.int64)


def _joined(parts: list[Array], dtype: np.dtype[np.float32] | np.dtype[np.int64]) -> Array:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def _is(wire: int, expected: int) -> bool:
    if wire != expected:
        raise ValueError(f"wire type {wire} where {expected} belongs")
    return True
