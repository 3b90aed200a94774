"""Check how an array is stored in an HDF5 file, then read ranges of its rows.

An array declares its shape, its chunks and its filters, and each declaration can be wrong. They are
checked against the bytes in the file:

- Nothing is read from another file.
- Values that were never written are an error, not zeros.
- Reading a range needs memory for that range and one chunk.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import numpy as np

from strap.datasets.hdf5.links import resolve_link
from strap.datasets.untrusted import MAX_CHUNK_BYTES, MAX_FRAME_BYTES, require_at_most
from strap.errors import StrapError
from strap.types import Array

DEFLATE, SHUFFLE, FLETCHER32, LZF = 1, 2, 3, 32000
FILTERS = {
    DEFLATE: "gzip",
    SHUFFLE: "shuffle",
    FLETCHER32: "fletcher32",
    4: "szip",
    5: "nbit",
    6: "scaleoffset",
    LZF: "lzf",
    307: "bzip2",
    32001: "blosc",
    32004: "lz4",
    32008: "bitshuffle",
    32015: "zstd",
    32026: "blosc2",
}
"""the allowed filters, by HDF5's numbers; those after lzf need a plugin (hdf5plugin)"""
COMPRESSORS = FILTERS.keys() - {SHUFFLE, FLETCHER32}
MAX_RATIOS = {DEFLATE: 1032, LZF: 100}
"""the most bytes that one stored byte can unpack to"""
UNCHECKED_BYTES = 1 << 20
"""gzip chunks up to this size are decoded without a check: they unpack to at most 1 GiB"""
TEXT_BYTES = 16
"""bytes of a variable-length text in the array itself: its length and a reference"""
MAX_VIRTUAL_DEPTH = 8
"""the deepest nesting of virtual arrays"""
CHUNK_SLACK = 4096
"""the most bytes by which a stored chunk can exceed its values: headers and checksums"""
Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Place:
    """An array's file and path, for messages, and the size of the file."""

    file: Path
    key: str
    name: str
    size: int

    def __str__(self) -> str:
        return f"'{self.file}', {self.key}: '{self.name}'"

    def error(self, what: str) -> StrapError:
        """Return an error that says how this array is damaged."""
        return StrapError(
            f"{self} {what}; the file is damaged or half-written: copy or record it again, "
            "or leave it out"
        )


def is_number(dtype: np.dtype[Any]) -> bool:
    """Return whether an array holds numbers, one per element."""
    return dtype.kind in "biuf"


def require_stored(array: h5py.Dataset, place: Place, *, depth: int = 0) -> None:
    """Raise if some of an array's values are not in this file, or are too large to be read."""
    _require_type(array, place)
    row = math.prod(array.shape[1:]) * array.dtype.itemsize
    require_at_most(row, MAX_FRAME_BYTES, f"bytes per frame of '{place.name}'", place.file)
    if not math.prod(array.shape):
        return
    properties = array.id.get_create_plist()
    layout = properties.get_layout()
    if properties.get_external_count():
        other = bytes(properties.get_external(0)[0]).decode("utf-8", "replace")
        raise StrapError(
            f"{place} is stored in the file '{other}' (HDF5 external storage): files must not "
            "refer to other files. If you trust it, write its values into this file"
        )
    if layout == h5py.h5d.VIRTUAL:
        _require_sources(array, place, depth)
    elif layout == h5py.h5d.CHUNKED:
        _require_chunked(array, place)
    else:
        _require_contiguous(array, place, compact=layout == h5py.h5d.COMPACT)


def read_rows(array: h5py.Dataset, start: int, stop: int, place: Place) -> Array:
    """Return rows start … stop−1, after a check of each chunk that holds some of them."""
    if start >= stop or not math.prod(array.shape):
        return np.empty((max(0, stop - start), *array.shape[1:]), array.dtype)
    _require_chunks(array, start, stop, place)
    is_text = array.dtype.hasobject
    values: Array = _read_texts(array, start, stop, place) if is_text else array[start:stop]
    _require_not_filled(array, start, values)
    return values


def _require_type(array: h5py.Dataset, place: Place) -> None:
    dtype = array.dtype
    is_text = dtype.kind == "S" or h5py.check_string_dtype(dtype) is not None
    is_table = dtype.fields is not None and not dtype.hasobject
    if not (dtype.kind in "biufc" or is_text or is_table):
        raise StrapError(
            f"{place} is of the type {_type_name(dtype)}: only numbers, texts and tables of "
            "numbers can be read; convert or remove the array"
        )
    if dtype.kind in "iuf" and not array.id.get_type().equal(
        h5py.h5t.py_create(dtype, logical=True)
    ):
        raise place.error(f"stores numbers in a bit layout that is not that of {dtype}")


def _type_name(dtype: np.dtype[Any]) -> str:
    if h5py.check_ref_dtype(dtype) is not None:
        return "reference"
    inner = h5py.check_vlen_dtype(dtype)
    return f"list of {inner} of any length" if inner is not None else str(dtype)


def _stored_bytes(array: h5py.Dataset) -> int:
    """Return the bytes of the declared shape in the file, uncompressed."""
    return int(array.size) * _item_bytes(array)


def _item_bytes(array: h5py.Dataset) -> int:
    return TEXT_BYTES if array.dtype.hasobject else int(array.id.get_type().get_size())


def require_apart(arrays: Mapping[str, h5py.Dataset], place: Place) -> None:
    """Raise if two arrays overlap in the file; two names of the same array are allowed."""
    spans = {}
    for name, array in arrays.items():
        if array.size and (offset := array.id.get_offset()) is not None:
            spans[offset, offset + _stored_bytes(array)] = name
    for one, other in pairwise(sorted(spans)):
        if other[0] < one[1]:
            raise replace(place, name=spans[other]).error(
                f"uses the same bytes of the file as '{spans[one]}'"
            )


def _require_contiguous(array: h5py.Dataset, place: Place, *, compact: bool) -> None:
    offset, needed = array.id.get_offset(), _stored_bytes(array)
    if not compact and offset is None:
        raise place.error(f"has shape {array.shape} but was never written")
    if array.id.get_storage_size() < needed or (offset or 0) + needed > place.size:
        raise place.error(
            f"declares {needed:,} bytes, which are not all in the file of {place.size:,} bytes"
        )


def _require_chunked(array: h5py.Dataset, place: Place) -> None:
    filters = _filters(array, place)
    chunk = math.prod(array.chunks) * max(_item_bytes(array), array.dtype.itemsize)
    require_at_most(chunk, MAX_CHUNK_BYTES, f"bytes per chunk of '{place.name}'", place.file)
    sides = zip(array.shape, array.chunks, strict=True)
    needed, found = math.prod(-(-side // step) for side, step in sides), array.id.get_num_chunks()
    if found < needed:
        raise place.error(f"has {found:,} of the {needed:,} chunks of its shape {array.shape}")
    stored, declared = array.id.get_storage_size(), _stored_bytes(array)
    if stored > place.size or declared > stored * _max_ratio(filters):
        raise place.error(
            f"declares {declared:,} bytes, stored as {stored:,} bytes in a file of "
            f"{place.size:,} bytes, which is impossible"
        )


def _max_ratio(filters: Sequence[int]) -> float:
    """Return the most bytes that one stored byte can unpack to."""
    compressors = [number for number in filters if number in COMPRESSORS]
    return MAX_RATIOS.get(compressors[0], math.inf) if compressors else 1


def _filters(array: h5py.Dataset, place: Place) -> list[int]:
    """Return the numbers of an array's filters in the order of writing; raise for unknown ones."""
    properties = array.id.get_create_plist()
    filters = [int(properties.get_filter(i)[0]) for i in range(properties.get_nfilters())]
    for number in filters:
        name = FILTERS.get(number, "unknown")
        if number not in FILTERS or not h5py.h5z.filter_avail(number):
            raise StrapError(
                f"{place} is packed with HDF5's filter {number} ({name}), which is not available: "
                "repack the file (h5repack -f GZIP=4), or for blosc, lz4, zstd: pip install "
                "hdf5plugin and import it first"
            )
    if len([number for number in filters if number in COMPRESSORS]) > 1:
        raise StrapError(f"{place} is compressed twice: repack the file (h5repack -f GZIP=4)")
    return filters


def _require_chunks(array: h5py.Dataset, start: int, stop: int, place: Place) -> None:
    """Raise if a chunk of these rows is missing or unpacks to more than its declared size."""
    if array.is_virtual:
        for source in _sources(array, place):
            _require_chunks(source, 0, source.shape[0], place)
    if array.chunks is None:
        return
    filters = _filters(array, place)
    length = math.prod(array.chunks) * _item_bytes(array)
    most = length + length // 16 + CHUNK_SLACK
    for corner in _corners(array.shape, array.chunks, start, stop):
        chunk = array.id.get_chunk_info_by_coord(corner)
        if chunk.byte_offset is None:
            raise place.error(f"has no chunk at {corner}")
        applied = [f for i, f in enumerate(filters) if not chunk.filter_mask >> i & 1]
        is_long = chunk.size > most or chunk.byte_offset + chunk.size > place.size
        if is_long or length > chunk.size * _max_ratio(applied):
            raise place.error(
                f"has a chunk of {chunk.size:,} bytes at {corner}, which cannot unpack to "
                f"{length:,} bytes"
            )
        if DEFLATE in applied and chunk.size > UNCHECKED_BYTES:
            _require_inflated(place, chunk.byte_offset, chunk.size, length)


def _require_not_filled(array: h5py.Dataset, start: int, values: Array) -> None:
    """Raise if HDF5 returned fill values because it did not find a chunk that is in the file.

    HDF5 lists chunks by walking through its index, but reads a chunk by searching the index. If a
    key of the index is damaged, the search fails and HDF5 returns fill values without an error.
    `read_direct_chunk` also searches, and raises.
    """
    if array.chunks is None or not values.size:
        return
    for corner in _corners(array.shape, array.chunks, start, start + len(values)):
        first = max(corner[0] - start, 0)
        rows = slice(first, max(corner[0] + array.chunks[0] - start, first))
        others = zip(corner[1:], array.chunks[1:], strict=True)
        block = values[(rows, *(slice(at, at + step) for at, step in others))]
        if (block == array.fillvalue).all():
            array.id.read_direct_chunk(corner)


def _corners(shape: Shape, chunks: Shape, start: int, stop: int) -> Iterator[Shape]:
    """Return the first element of every chunk that holds some of rows start … stop−1."""
    first = start // chunks[0] * chunks[0]
    rows = range(first, stop, chunks[0])
    others = (range(0, n, step) for n, step in zip(shape[1:], chunks[1:], strict=True))
    return product(rows, *others)


def _require_inflated(place: Place, offset: int, size: int, length: int) -> None:
    """Raise if a gzip chunk unpacks to more than its declared length; no unpacked data is kept."""
    with place.file.open("rb") as stream:
        stream.seek(offset)
        packed = stream.read(size)
    inflater, inflated = zlib.decompressobj(), 0
    while packed and not inflater.eof:
        inflated += len(inflater.decompress(packed, UNCHECKED_BYTES))
        packed = inflater.unconsumed_tail
        if inflated > length:
            raise place.error(f"has a gzip chunk that unpacks to more than its {length:,} bytes")


def _read_texts(array: h5py.Dataset, start: int, stop: int, place: Place) -> Array:
    """Return rows of variable-length texts, read in batches that cannot fill the memory.

    In a damaged file many elements can point to one long text. In a sound file each element has
    its own text, so all texts together are not longer than the file.
    """
    step = max(1, MAX_FRAME_BYTES // (place.size * max(1, math.prod(array.shape[1:]))))
    batches, length = [], 0
    for first in range(start, stop, step):
        batches.append(array[first : min(first + step, stop)])
        length += sum(len(text) for text in batches[-1].flat)
        if length > place.size:
            raise place.error(f"has texts longer than the whole file ({place.size:,} bytes)")
    return np.concatenate(batches)


def _sources(array: h5py.Dataset, place: Place) -> Iterator[h5py.Dataset]:
    """Yield the source arrays of a virtual array; raise if one is in another file."""
    for source in array.virtual_sources():
        if source.file_name != ".":
            raise StrapError(
                f"{place} is a virtual array of values in the file '{source.file_name}': files "
                "must not refer to other files. If you trust it, write its values into this file"
            )
        found = resolve_link(array.file["/"], source.dset_name, place.file)
        if not isinstance(found, h5py.Dataset) or not found.shape:
            raise place.error(f"is a virtual array of '{source.dset_name}', not an array")
        yield found


def _require_sources(array: h5py.Dataset, place: Place, depth: int) -> None:
    """Raise if a virtual array has a part without source values, or is nested too deeply."""
    if depth == MAX_VIRTUAL_DEPTH:
        raise place.error(f"is a virtual array nested more than {MAX_VIRTUAL_DEPTH} deep")
    mapped = 0
    sources = zip(array.virtual_sources(), _sources(array, place), strict=True)
    for mapping, source in sources:
        require_stored(source, place, depth=depth + 1)
        points = mapping.vspace.get_select_npoints()
        if mapping.src_space.get_select_type() == h5py.h5s.SEL_ALL:
            inside = points == source.size
        else:
            last = mapping.src_space.get_select_bounds()[1]
            inside = all(i < n for i, n in zip(last, source.shape, strict=True))
        if not inside:
            raise place.error(f"is a virtual array of values that '{source.name}' lacks")
        mapped += points
    if mapped != array.size:
        raise place.error(f"is a virtual array with only {mapped:,} of its {array.size:,} values")
