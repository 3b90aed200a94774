"""What a column of a parquet file unpacks to, told by the headers of its pages.

The footer tells it too, but nothing holds a footer to the truth: 552 bytes that declare 39 numbers
may hold a page of two billion. A column is a sequence of pages,

    header  compressed content  header  compressed content  …

and each header, a struct of Thrift's compact protocol, has two sizes and a number of values:

    1 kind   2 unpacked size   3 size in the file   5|8 of data (1 values …)   7 of a dictionary
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

MAX_PAGES = 100_000
"""of one column in one row group; pages have about a megabyte"""
MAX_HEADER_BYTES = 1 << 20
FIRST_READ = 512
"""bytes of a header that are tried first"""
MAX_STRUCT_DEPTH = 8
DATA_HEADERS = (5, 8)
"""the fields of a page's header in which its number of values is"""
BOOLEANS, BYTE, NUMBERS, DOUBLE, BINARY, LISTS, STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12
"""Thrift's types; a map does not occur"""


def unpacked_size(file: BinaryIO, start: int, length: int, values: int, width: int) -> int:
    """Return the bytes of a column's pages, or `width` times its values where that is more.

    Args:
        file: the parquet file.
        start: where the first page is.
        length: of all pages in the file.
        values: how many are declared; pages after these are not read by anybody.
        width: bytes of a value.

    Raises:
        ValueError: where there are no such pages.
    """
    size = seen = 0
    place, end = start, start + length
    for _ in range(MAX_PAGES):
        if seen >= values or place >= end:
            return max(size, seen * width)
        header, used = _read_header(file, place)
        unpacked, packed = header.get(2, -1), header.get(3, -1)
        counted = header.get("values", 0)
        if min(unpacked, packed, counted) < 0:
            raise ValueError("a page declares less than nothing")
        size += unpacked
        seen += counted
        place += used + packed
    raise ValueError(f"more than {MAX_PAGES} pages")


def _read_header(file: BinaryIO, place: int) -> tuple[dict[int | str, int], int]:
    """Return the numbers of the page's header at `place`, and its length."""
    length = FIRST_READ
    while True:
        file.seek(place)
        data = file.read(length)
        try:
            fields = _Fields(data)
            return dict(fields.numbers()), fields.place
        except IndexError as error:  # the header is longer than what was read of it
            if len(data) < length or length >= MAX_HEADER_BYTES:
                raise ValueError("the header of a page does not end") from error
            length *= 8


class _Fields:
    """Reads a struct of Thrift's compact protocol; `IndexError` where the data end before it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0

    def numbers(self) -> Iterator[tuple[int | str, int]]:
        """Yield the numbers of a page's header by field, its number of values as `values`."""
        for field, kind in self._struct():
            if kind in NUMBERS:
                yield field, self._number()
            elif kind == STRUCT and field in DATA_HEADERS:
                for inner, inner_kind in self._struct():
                    if inner == 1 and inner_kind in NUMBERS:
                        yield "values", self._number()
                    else:
                        self._skip(inner_kind)
            else:
                self._skip(kind)

    def _struct(self) -> Iterator[tuple[int, int]]:
        field = 0
        while (head := self._byte()) != 0:
            step = head >> 4
            field = field + step if step else self._number()
            yield field, head & 15

    def _skip(self, kind: int, depth: int = 0) -> None:
        if kind in BOOLEANS:
            return
        if kind == BYTE:
            self.place += 1
        elif kind in NUMBERS:
            self._varint()
        elif kind == DOUBLE:
            self.place += 8
        elif kind == BINARY:
            length = self._varint()  # before `place` is read: it moves it
            self.place += length
        elif kind == STRUCT and depth < MAX_STRUCT_DEPTH:
            for _, inner in self._struct():
                self._skip(inner, depth + 1)
        elif kind in LISTS and depth < MAX_STRUCT_DEPTH:
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._varint()
            for _ in range(min(count, MAX_HEADER_BYTES)):
                self._skip(head & 15, depth + 1)
        else:
            raise ValueError(f"a page's header has a field of type {kind}")

    def _number(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a number of a page's header does not end")

    def _byte(self) -> int:
        byte = self.data[self.place]
        self.place += 1
        return byte
