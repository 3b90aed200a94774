"""Compute the unpacked size of a parquet column from the headers of its pages.

The footer declares the size too, but it can be wrong: a file of 552 bytes whose footer declares 39
numbers can hold a page of two billion. A column is a sequence of pages,

    header  compressed content  header  compressed content  …

and each header, a struct of Thrift's compact protocol, has two sizes and a number of values:

    1 type   2 unpacked size   3 size in the file   5|8 data header (1 values …)   7 dictionary
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

MAX_PAGES = 100_000
"""the most pages of a column in a row group; a page usually has about a megabyte"""
MAX_HEADER_BYTES = 1 << 20
FIRST_READ = 512
"""bytes that are read first for a header"""
MAX_STRUCT_DEPTH = 8
DATA_HEADERS = (5, 8)
"""the fields of a page header that hold its number of values"""
BOOLEANS, BYTE, NUMBERS, DOUBLE, BINARY, LISTS, STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12
"""Thrift's types; maps do not occur"""


def unpacked_size(file: BinaryIO, start: int, length: int, values: int, width: int) -> int:
    """Return the unpacked bytes of a column's pages, or `width` times its values if that is more.

    Args:
        file: the parquet file.
        start: the offset of the first page.
        length: the length of all pages in the file.
        values: the declared number of values; pages beyond it are never read.
        width: bytes per value.

    Raises:
        ValueError: if the pages are malformed.
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
            raise ValueError("a page declares a negative size")
        size += unpacked
        seen += counted
        place += used + packed
    raise ValueError(f"more than {MAX_PAGES} pages")


def _read_header(file: BinaryIO, place: int) -> tuple[dict[int | str, int], int]:
    """Return the numeric fields of the page header at `place`, and the header's length."""
    length = FIRST_READ
    while True:
        file.seek(place)
        data = file.read(length)
        try:
            fields = _Fields(data)
            return dict(fields.numbers()), fields.place
        except IndexError as error:  # the header is longer than `length`
            if len(data) < length or length >= MAX_HEADER_BYTES:
                raise ValueError("the header of a page does not end") from error
            length *= 8


class _Fields:
    """A parser of Thrift's compact protocol; raises `IndexError` if the data end too early."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0

    def numbers(self) -> Iterator[tuple[int | str, int]]:
        """Yield (field, number) of a page header, with its number of values as `values`."""
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
            length = self._varint()  # not inline: `_varint` itself changes `place`
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
