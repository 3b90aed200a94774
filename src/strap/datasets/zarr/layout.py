"""Parse and check an array's description (`.zarray`, `zarr.json`) before zarr reads it.

A codec is code that zarr runs by a name from the file. Only codecs that unpack numbers and images
are allowed; codecs that create Python objects are not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from strap.datasets.untrusted import MAX_CHUNK_BYTES, MAX_FRAME_BYTES, REMEDY, require_at_most
from strap.datasets.zarr.buffer_files import BufferFiles, read_document
from strap.errors import StrapError, shorten

PACKING_CODECS = frozenset(("blosc", "zstd", "zlib", "gzip", "lz4", "lzma", "bz2"))
IMAGE_CODECS = frozenset(
    f"imagecodecs_{kind}" for kind in ("jpegxl", "jpeg2k", "jpeg", "png", "webp")
)
CHECKSUM_CODECS = frozenset(("crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3"))
FILTER_CODECS = frozenset(
    ("shuffle", "delta", "fixedscaleoffset", "astype", "packbits", "quantize", "bitround")
)
ALLOWED_CODECS = PACKING_CODECS | IMAGE_CODECS | CHECKSUM_CODECS | FILTER_CODECS
NATIVE_V3 = frozenset(("bytes", "transpose", "gzip", "zstd", "blosc", "crc32c"))
"""codecs of Zarr version 3 itself; in version 3 those of numcodecs are called `numcodecs.<name>`"""
SHARDS = "sharding_indexed"
DTYPE = re.compile(r"[<>|=]?[biufcSU][1-9][0-9]{0,8}")
NUMBER_DTYPE = re.compile(r"[<>|=]?[biuf](1|2|4|8)")
DTYPE_V3 = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)|complex(64|128)")
DTYPE_OPTIONS = ("dtype", "astype", "encode_dtype", "decode_dtype")
MAX_AXES, MAX_SIDE = 32, 1 << 62
Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Codec:
    """A codec: its name in numcodecs, and its options."""

    name: str
    options: Mapping[str, Any]

    @property
    def is_packer(self) -> bool:
        """Whether the codec compresses the data."""
        return self.name in PACKING_CODECS | IMAGE_CODECS


@dataclass(frozen=True)
class ArrayLayout:
    """The layout of an array: its shape, its files and its codecs."""

    key: str
    version: Literal[2, 3]
    shape: Shape
    dtype: np.dtype[Any]
    files: Shape
    """shape of the part of the array in one file"""
    chunks: Shape
    """shape of the part that is packed together: that of a file, or smaller if files are shards"""
    codecs: tuple[Codec, ...]
    """the codecs in the order of writing"""
    separator: str
    prefix: str = ""
    """the part of a file's key before its numbers: `c/` in version 3"""
    is_index_first: bool = False
    """whether the index of a shard is before its chunks"""
    has_index_checksum: bool = False

    @property
    def is_sharded(self) -> bool:
        """Whether a file is a shard: several chunks and an index."""
        return self.files != self.chunks

    @property
    def chunk_bytes(self) -> int:
        """The largest size of an unpacked chunk, for the widest dtype that its codecs use."""
        named = (codec.options.get(key) for codec in self.codecs for key in DTYPE_OPTIONS)
        sizes = [np.dtype(str(dtype)).itemsize for dtype in named if dtype is not None]
        return math.prod(self.chunks) * max([self.dtype.itemsize, *sizes])

    def file_key(self, numbers: Sequence[int]) -> str:
        """Return the key of the file with these numbers."""
        return f"{self.key}/{self.prefix}{self.separator.join(map(str, numbers))}"


def read_layout(store: BufferFiles, key: str) -> ArrayLayout | None:
    """Return the layout of an array; None for a group."""
    if (described := read_document(store, f"{key}/.zarray")) is not None:
        read_document(store, f"{key}/.zattrs")
        parsed = _Parser(store, f"{key}/.zarray", key, described).version_2()
    elif (described := read_document(store, f"{key}/zarr.json")) is not None:
        if described.get("node_type") == "group":
            return None
        parsed = _Parser(store, f"{key}/zarr.json", key, described).version_3()
    elif read_document(store, f"{key}/.zgroup") is not None:
        return None
    else:
        raise StrapError(
            f"'{store.path}': '{key}' has neither '.zarray' nor 'zarr.json': its description is "
            f"missing; {REMEDY}"
        )
    if len(parsed.files) != len(parsed.shape) or not all(parsed.files):
        raise StrapError(
            f"'{store.path}': '{key}' has chunks {parsed.files} of the shape {parsed.shape}: its "
            f"description is damaged; {REMEDY}"
        )
    row = math.prod(parsed.shape[1:]) * parsed.dtype.itemsize
    require_at_most(row, MAX_FRAME_BYTES, f"bytes per frame of '{key}'", store.path)
    chunk = max(parsed.chunk_bytes, math.prod(parsed.files) * parsed.dtype.itemsize)
    require_at_most(chunk, MAX_CHUNK_BYTES, f"bytes per chunk of '{key}'", store.path)
    return parsed


@dataclass(frozen=True)
class _Parser:
    """A parser of one array description."""

    store: BufferFiles
    document: str
    key: str
    described: Mapping[str, Any]

    def error(self, what: str) -> StrapError:
        return StrapError(f"'{self.store.path}': '{self.document}' {what}; {REMEDY}")

    def version_2(self) -> ArrayLayout:
        self.require("zarr_format", 2)
        filters = self.described.get("filters") or []
        compressor = self.described.get("compressor")
        if not isinstance(filters, list):
            raise self.error(f"has the filters {_shown(filters)}, not a list")
        chunks = self.sides("chunks", self.described)
        return ArrayLayout(
            key=self.key,
            version=2,
            shape=self.sides("shape", self.described),
            dtype=self.dtype("dtype", DTYPE),
            files=chunks,
            chunks=chunks,
            codecs=self.codecs([*filters, *([] if compressor is None else [compressor])], "id"),
            separator=self.separator(self.described.get("dimension_separator") or "."),
        )

    def version_3(self) -> ArrayLayout:
        self.require("zarr_format", 3)
        self.require("node_type", "array")
        if self.described.get("storage_transformers"):
            raise self.error("has storage transformers, which are not read")
        _, grid = self.named("chunk_grid", ("regular",))
        encoding, options = self.named("chunk_key_encoding", ("default", "v2"))
        separator = self.separator(options.get("separator", "/" if encoding == "default" else "."))
        chunks, listed = self.sides("chunk_shape", grid), self.described.get("codecs")
        is_sharded = isinstance(listed, list) and SHARDS in map(_name, listed)
        layout = ArrayLayout(
            key=self.key,
            version=3,
            shape=self.sides("shape", self.described),
            dtype=self.dtype("data_type", DTYPE_V3),
            files=chunks,
            chunks=chunks,
            codecs=() if is_sharded else self.codecs(listed, "name"),
            separator=separator,
            prefix=f"c{separator}" if encoding == "default" else "",
        )
        return self.sharded(layout, listed) if is_sharded else layout

    def sharded(self, layout: ArrayLayout, listed: Any) -> ArrayLayout:
        """Return the layout with the chunks and codecs inside its shards."""
        options = listed[-1].get("configuration") if isinstance(listed[-1], dict) else None
        if len(listed) > 1 or not isinstance(options, dict):
            raise self.error(f"has codecs around '{SHARDS}', which are not read")
        chunks, place = self.sides("chunk_shape", options), options.get("index_location", "end")
        index = [codec.name for codec in self.codecs(options.get("index_codecs"), "name")]
        is_whole = len(chunks) == len(layout.files) and all(
            step and side % step == 0 for side, step in zip(layout.files, chunks, strict=True)
        )
        is_known = index in (["bytes"], ["bytes", "crc32c"]) and place in ("start", "end")
        if not is_whole or not is_known:
            raise self.error(f"has the shards {_shown(options)}, which are not read")
        return replace(
            layout,
            chunks=chunks,
            codecs=self.codecs(options.get("codecs"), "name"),
            is_index_first=place == "start",
            has_index_checksum=len(index) > 1,
        )

    def require(self, name: str, value: object) -> None:
        if self.described.get(name) != value:
            raise self.error(f"has {name} {_shown(self.described.get(name))}, not {value!r}")

    def named(self, part: str, known: Sequence[str]) -> tuple[str, Mapping[str, Any]]:
        """Return the name and the options of a part of version 3."""
        found = self.described.get(part)
        options = found.get("configuration", {}) if isinstance(found, dict) else None
        if _name(found) not in known or not isinstance(options, dict):
            raise self.error(f"has the {part} {_shown(found)}; known: {', '.join(known)}")
        return str(_name(found)), options

    def sides(self, name: str, described: Mapping[str, Any]) -> Shape:
        found = described.get(name)
        if not isinstance(found, list) or not 0 < len(found) <= MAX_AXES:
            raise self.error(f"has the {name} {_shown(found)}, not a list of lengths")
        if not all(type(side) is int and 0 <= side <= MAX_SIDE for side in found):
            raise self.error(f"has the {name} {_shown(found)}, which are not lengths")
        return tuple(found)

    def separator(self, found: Any) -> str:
        if found not in (".", "/"):
            raise self.error(f"has the separator {_shown(found)}; it must be '.' or '/'")
        return str(found)

    def dtype(self, key: str, pattern: re.Pattern[str]) -> np.dtype[Any]:
        name = self.described.get(key)
        if not isinstance(name, str) or not pattern.fullmatch(name):
            raise StrapError(
                f"'{self.store.path}': '{self.key}' is of the type {_shown(name)}: numbers and "
                "texts of a fixed length are read, Python objects and tables are not; convert it"
            )
        return np.dtype(name)

    def codecs(self, listed: Any, name_key: str) -> tuple[Codec, ...]:
        """Return the codecs of a list; raise if one is not allowed, or several compress."""
        if not isinstance(listed, list):
            raise self.error(f"has the codecs {_shown(listed)}, not a list")
        found = tuple(self.codec(described, name_key) for described in listed)
        places = [i for i, codec in enumerate(found) if codec.is_packer]
        if len(places) > 1 or any(
            c.name not in CHECKSUM_CODECS for i in places for c in found[i + 1 :]
        ):
            names = ", ".join(codec.name for codec in found)
            raise self.error(f"compresses twice, or changes compressed data ({names})")
        return found

    def codec(self, described: Any, name_key: str) -> Codec:
        described = described if isinstance(described, dict) else {name_key: described}
        name = described.get(name_key)
        options = described if name_key == "id" else described.get("configuration", {})
        known = _allowed_name(name, version=2 if name_key == "id" else 3)
        if known is None or not isinstance(options, dict):
            raise StrapError(
                f"'{self.store.path}': '{self.key}' uses the codec {_shown(name)}, which is not "
                "allowed: it can run code or create objects. If you trust the file, write the "
                "array again with blosc, zstd, gzip, lz4 or no compression"
            )
        for key in DTYPE_OPTIONS:
            dtype = options.get(key)
            if dtype is not None and not (isinstance(dtype, str) and NUMBER_DTYPE.fullmatch(dtype)):
                raise self.error(f"has the {key} {_shown(dtype)} in the codec '{known}'")
        if known == "lzma" and (
            options.get("filters") or options.get("format", 1) not in (0, 1, 2)
        ):
            raise self.error("has raw LZMA filters, which are not read")
        return Codec(known, options)


def _allowed_name(name: object, *, version: int) -> str | None:
    """Return a codec's name in numcodecs; None if the codec is not allowed."""
    if not isinstance(name, str):
        return None
    allowed = ALLOWED_CODECS if version == 2 else NATIVE_V3 | IMAGE_CODECS
    if version == 3 and name.startswith("numcodecs."):
        name, allowed = name.removeprefix("numcodecs."), ALLOWED_CODECS - IMAGE_CODECS
    return name if name in allowed else None


def _name(described: Any) -> Any:
    return described.get("name") if isinstance(described, dict) else described


def _shown(value: object) -> str:
    return shorten(repr(value))
