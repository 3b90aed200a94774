"""Parse `tf.train.Example` messages from their bytes, without TensorFlow or protobuf.

    Example  { features: 1 }
    Features { feature: 1, repeated map entry { key: 1, value: 2 } }
    Feature  { bytes_list: 1 | float_list: 2 | int64_list: 3 }, each { value: 1, repeated }

At first only the map is parsed. A feature's values are parsed on access, and images stay slices of
the record. Anything that does not fit the layout above raises `ValueError`. Memory use is bounded
by the number of bytes in the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from strap.types import Array

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
BYTES, FLOATS, INTS = 1, 2, 3
REPEATED = 1 << 3 | LENGTH
"""the tag of field 1 with a length, before every value of a list and every entry of a map"""
UNPACKED_FLOAT, UNPACKED_INT = 1 << 3 | FIXED32, 1 << 3 | VARINT
"""the tags of field 1 with one number, before every value of a list that is not packed"""
MAX_FEATURES = 100_000
"""the most features of one record"""
MAX_LIST_VALUES = 1 << 20
"""the most values of a bytes feature: images or texts, one per step"""
VARINTS_PER_BATCH = 1 << 20
"""integers decoded at a time: decoding needs several times their memory"""


@dataclass(frozen=True)
class Example:
    """One record, with the spans of its features in its bytes."""

    data: bytes
    spans: Mapping[str, tuple[int, int]]
    """feature name -> (start, stop) of its message in `data`"""

    def texts(self, name: str) -> list[bytes]:
        """Return the values of a bytes feature."""
        data = self.data
        return [data[a:b] for a, b in self.value_spans(name)]

    def value_spans(self, name: str) -> list[tuple[int, int]]:
        """Return (start, stop) in `data` of every value of a bytes feature."""
        kind, start, stop = self._list(name)
        if kind not in (BYTES, None):
            raise ValueError(f"'{name}' holds numbers, not bytes")
        return _repeated_spans(self.data, start, stop, MAX_LIST_VALUES)

    def count(self, name: str) -> int:
        """Return the number of values of a float or int64 feature, without decoding them."""
        return sum(block.count for block in self._blocks(name))

    def numbers(self, name: str) -> Array:
        """Return the values of a float or int64 feature, flat: float32 or int64."""
        decoded = [block.decode(self.data) for block in self._blocks(name)]
        if len(decoded) == 1:
            return decoded[0]
        kind, _, _ = self._list(name)
        empty = np.empty(0, np.int64 if kind == INTS else np.float32)
        return np.concatenate(decoded) if decoded else empty

    def _blocks(self, name: str) -> list[_NumberBlock]:
        """Return the spans of a numeric feature's values; each span can be decoded at once."""
        kind, start, stop = self._list(name)
        if kind is None:
            return []
        if kind == BYTES:
            raise ValueError(f"'{name}' holds bytes, not numbers")
        if start < stop and self.data[start] != REPEATED:
            return [_unpacked(self.data, kind, start, stop)]
        spans = _repeated_spans(self.data, start, stop, MAX_FEATURES)
        return [_packed(self.data, kind, a, b) for a, b in spans]

    def _list(self, name: str) -> tuple[int | None, int, int]:
        """Return (type of list, start, stop) of a feature; the type of an empty one is None."""
        start, stop = self.spans[name]
        if start == stop:
            return None, start, stop
        number, a, b = _message(self.data, start, stop)
        if number not in (BYTES, FLOATS, INTS) or b != stop:
            raise ValueError(f"'{name}' is not a list of bytes, floats or integers")
        return number, a, b


def parse(data: bytes) -> Example:
    """Return a record with the spans of its features."""
    if not data:
        raise ValueError("the record is empty")
    number, start, stop = _message(data, 0, len(data))
    if number != 1 or stop != len(data):
        raise ValueError("the record is not a tf.train.Example")
    spans: dict[str, tuple[int, int]] = {}
    for a, b in _repeated_spans(data, start, stop, MAX_FEATURES):
        name, span = _entry(data, a, b)
        if name in spans:
            raise ValueError(f"the record holds the feature '{name}' twice")
        spans[name] = span
    if not spans:
        raise ValueError("the record holds no features: it is not a tf.train.Example")
    return Example(data, spans)


def _entry(data: bytes, start: int, stop: int) -> tuple[str, tuple[int, int]]:
    """Return (name, span of the feature) of a map entry, its fields 1 and 2."""
    found: dict[int, tuple[int, int]] = {}
    position = start
    while position < stop:
        number, a, b = _message(data, position, stop)
        if number not in (1, 2) or number in found:
            raise ValueError("an entry of the record's map is not a name with a feature")
        found[number] = (a, b)
        position = b
    if len(found) != 2:
        raise ValueError("an entry of the record's map lacks its name or its feature")
    a, b = found[1]
    return data[a:b].decode("utf-8"), found[2]


def _repeated_spans(data: bytes, position: int, stop: int, limit: int) -> list[tuple[int, int]]:
    """Return the spans of a message that only repeats field 1, as lists and maps do.

    Reading images spends its time in this loop, so one-byte sizes are read without a call.
    """
    found: list[tuple[int, int]] = []
    while position < stop:
        if data[position] != REPEATED or position + 1 >= stop:
            raise ValueError("a list holds something other than values")
        size = data[position + 1]
        position += 2
        if size >= 0x80:
            size, position = _number(data, position - 1, stop)
        found.append((position, position + size))
        position += size
        if len(found) > limit:
            raise ValueError(f"a list holds more than {limit:,} values")
    if position != stop:
        raise ValueError("a field extends past the end of its message")
    return found


def _message(data: bytes, position: int, stop: int) -> tuple[int, int, int]:
    """Return (field number, start, stop) of the field with a length at `position`."""
    tag, position = _number(data, position, stop)
    if tag & 7 != LENGTH:
        raise ValueError(f"a field has wire type {tag & 7}, expected a message")
    size, position = _number(data, position, stop)
    if position + size > stop:
        raise ValueError("a field extends past the end of its message")
    return tag >> 3, position, position + size


def _number(data: bytes, position: int, stop: int) -> tuple[int, int]:
    """Return a variable-length number and the position after it."""
    value = shift = 0
    while position < stop and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("a variable-length number does not end")


@dataclass(frozen=True)
class _NumberBlock:
    """The consecutive numbers in data[start:stop]."""

    kind: int
    start: int
    stop: int
    count: int
    is_packed: bool

    def decode(self, data: bytes) -> Array:
        if self.kind == FLOATS:
            width = 4 if self.is_packed else 5
            rows = np.frombuffer(data, np.uint8, self.stop - self.start, self.start)
            return np.ascontiguousarray(rows.reshape(-1, width)[:, -4:]).view("<f4").ravel()
        values = _varints(data, self.start, self.stop)
        return values if self.is_packed else values[1::2].copy()


def _packed(data: bytes, kind: int, start: int, stop: int) -> _NumberBlock:
    """Return the block of a packed list: one tag and length, then the values.

    All current writers write packed lists.
    """
    if kind == FLOATS:
        if (stop - start) % 4:
            raise ValueError("the size of a list of floats is not a multiple of 4 bytes")
        return _NumberBlock(kind, start, stop, (stop - start) // 4, True)
    return _NumberBlock(kind, start, stop, _count_varints(data, start, stop), True)


def _unpacked(data: bytes, kind: int, start: int, stop: int) -> _NumberBlock:
    """Return the block of an unpacked list, with a tag before each value, as in protobuf 2."""
    if kind == FLOATS:
        raw = np.frombuffer(data, np.uint8, stop - start, start)
        if len(raw) % 5 or not (raw[::5] == UNPACKED_FLOAT).all():
            raise ValueError("a list of floats holds something other than floats")
        return _NumberBlock(kind, start, stop, len(raw) // 5, False)
    tags = _varints(data, start, stop)[::2]
    count = _count_varints(data, start, stop)
    if count % 2 or not (tags == UNPACKED_INT).all():
        raise ValueError("a list of integers holds something other than integers")
    return _NumberBlock(kind, start, stop, count // 2, False)


def _count_varints(data: bytes, start: int, stop: int) -> int:
    if start < stop and data[stop - 1] >= 0x80:
        raise ValueError("a list of integers ends inside a number")
    return int(np.count_nonzero(np.frombuffer(data, np.uint8, stop - start, start) < 0x80))


def _varints(data: bytes, start: int, stop: int) -> Array:
    """Return all varints in data[start:stop] as int64, decoded with numpy."""
    raw = np.frombuffer(data, np.uint8, stop - start, start)
    if data[start:stop].isascii():  # every value below 128: flags, small counts
        return raw.astype(np.int64)
    ends = np.flatnonzero(raw < 0x80) + 1
    if not len(ends) or ends[-1] != len(raw):
        raise ValueError("a list of integers ends inside a number")
    out = np.empty(len(ends), np.int64)
    for at in range(0, len(ends), VARINTS_PER_BATCH):
        begin = int(ends[at - 1]) if at else 0
        stops = ends[at : at + VARINTS_PER_BATCH]
        out[at : at + VARINTS_PER_BATCH] = _decode_varints(
            raw[begin : int(stops[-1])], stops - begin
        )
    return out


def _decode_varints(raw: Array, ends: Array) -> Array:
    """Return the varints in `raw`; varint i ends before position ends[i]."""
    starts = np.concatenate(([0], ends[:-1]))
    lengths = ends - starts
    if lengths.max() > 10:
        raise ValueError("a variable-length number does not end")
    place = np.arange(len(raw)) - np.repeat(starts, lengths)
    bits = (raw & 0x7F).astype(np.uint64) << (7 * place).astype(np.uint64)
    return np.bitwise_or.reduceat(bits, starts).view(np.int64)
