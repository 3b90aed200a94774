"""Read the arrays, texts and images of one episode, which is one record."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from strap.datasets.encoded_images import decode_images, read_image_size
from strap.datasets.image_arrays import as_uint8_images
from strap.datasets.rlds.description import FEATURES
from strap.datasets.rlds.example import Example, parse
from strap.datasets.rlds.records import read_record
from strap.datasets.rlds.structure import NUMPY_DTYPES, STEPS_FEATURE, Field, Structure
from strap.datasets.untrusted import explain_read_errors
from strap.errors import StrapError
from strap.lazy_arrays import LazyArray
from strap.types import Array

MAX_CACHED_BYTES = 64 << 20
"""records kept in memory per process, so that reading an episode's arrays reads its record once"""
Parsed = TypeVar("Parsed")


@dataclass(frozen=True)
class EpisodeRecord:
    """One record of a shard, with the id of its trajectory."""

    id: str
    shard: Path
    record: int
    records: int | None
    """number of records in the shard, if dataset_info.json says it"""

    @property
    def where(self) -> str:
        """The shard, the id and the record, for errors."""
        return f"'{self.shard}', {self.id} (record {self.record})"

    def example(self) -> Example:
        """Return the parsed record."""
        return _records.get(self)

    def count(self, steps: Mapping[str, Field]) -> int:
        """Return the number of steps, from the first field in the record that determines it."""
        example = self.example()
        for path, field in steps.items():
            name = f"{STEPS_FEATURE}/{path}"
            if name not in example.spans:
                continue
            if field.kind == "image" or (field.kind == "text" and not field.shape):
                return len(self._parsed(example.value_spans, name))
            if field.kind == "tensor" and field.is_plain and {0, None}.isdisjoint(field.shape):
                return self._count_steps(field, name)
        raise StrapError(
            f"{self.where}: none of the fields of {FEATURES} is in the record; it holds: "
            f"{', '.join(sorted(example.spans)[:12])}"
        )

    def _count_steps(self, field: Field, name: str) -> int:
        per_step = math.prod(n or 1 for n in field.shape)
        values = self._parsed(self.example().count, name)
        if values % per_step:
            raise StrapError(
                f"{self.where}: '{name}' has {values} values, not {per_step} for each step; "
                f"{FEATURES} does not describe this record"
            )
        return values // per_step

    def instructions(self, paths: Sequence[str], structure: Structure, length: int) -> list[str]:
        """Return the texts of the instruction fields, without empty ones and duplicates."""
        example = self.example()
        found: list[str] = []
        for path in paths:
            is_per_step = path in structure.steps
            name = self._require(f"{STEPS_FEATURE}/{path}" if is_per_step else path)
            values = self._parsed(example.texts, name)
            if is_per_step and not structure.steps[path].shape and len(values) != length:
                raise self._unequal(name, f"{len(values)} texts", f"{length} steps")
            text = values[0].decode("utf-8", "replace").strip() if values else ""
            if text and text not in found:
                found.append(text)
        return found

    def attributes(self, fields: Mapping[str, Field]) -> dict[str, Any]:
        """Return the values stored once per episode, such as file paths."""
        example = self.example()
        found: dict[str, Any] = {}
        for path, field in fields.items():
            if not field.is_plain:
                continue
            if field.kind == "text":
                texts = self._parsed(example.texts, self._require(path))
                if not field.shape and len(texts) != 1:
                    raise self._unequal(path, f"{len(texts)} texts", "one episode")
                decoded = [text.decode("utf-8", "replace") for text in texts]
                found[path] = decoded[0] if len(decoded) == 1 else decoded
            elif field.kind == "tensor" and not field.shape:
                found[path] = self._values(field, self._require(path), (1,), 0, 1)[0].item()
        return found

    def numbers(self, fields: Sequence[Field], length: int, *, flat: bool = True) -> LazyArray:
        """Return the concatenation of numeric fields, [length, …].

        If `flat`, a single scalar field is [length], else [length, 1].
        """
        shapes = [self._shape(field, length) for field in fields]
        if len(fields) > 1 or not flat:
            shapes = [shape or (1,) for shape in shapes]
        last = sum(shape[-1] for shape in shapes) if len(shapes) > 1 else 0
        shape = (length, last) if last else (length, *shapes[0])
        dtypes = [np.dtype(NUMPY_DTYPES[field.dtype]) for field in fields]
        dtype = np.result_type(*dtypes) if len(dtypes) > 1 else dtypes[0]

        def read(start: int, stop: int) -> Array:
            with self._reading():
                parts = []
                for field, part in zip(fields, shapes, strict=True):
                    name = self._require(f"{STEPS_FEATURE}/{field.path}")
                    rows = self._values(field, name, (length, *part), start, stop)
                    parts.append(rows.astype(dtype, copy=False))
                return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

        return LazyArray(shape, dtype, read)

    def camera(self, field: Field, length: int) -> LazyArray:
        """Return a camera's images, uint8 [length h w 3], decoded when they are read."""
        name = f"{STEPS_FEATURE}/{field.path}"
        where = f"{self.where}, '{name}'"
        if field.kind == "tensor":
            return as_uint8_images(self.numbers([field], length), where)
        height, width = field.shape[:2]
        if (height is None or width is None) and length:
            begin, end = self._image_spans(name, length)[0]
            height, width = read_image_size(self.example().data[begin:end], where)
        shape = (height or 0, width or 0, 3)

        def read(start: int, stop: int) -> Array:
            with self._reading():
                spans = self._image_spans(name, length)
                data = self.example().data
                chosen = (data[a:b] for a, b in spans[start:stop])
                return decode_images(chosen, max(stop - start, 0), shape, where, start)

        return LazyArray((length, *shape), np.dtype(np.uint8), read)

    def _reading(self) -> Any:
        return explain_read_errors(self.shard, f"the RLDS episode {self.id}")

    def _shape(self, field: Field, length: int) -> tuple[int, ...]:
        if None not in field.shape:
            return tuple(int(n or 0) for n in field.shape)
        known = math.prod(n for n in field.shape if n is not None)
        values = self._parsed(self.example().count, self._require(f"{STEPS_FEATURE}/{field.path}"))
        free = values // (known * length) if known * length else 0
        return tuple(free if n is None else n for n in field.shape)

    def _values(
        self, field: Field, name: str, shape: tuple[int, ...], start: int, stop: int
    ) -> Array:
        """Return rows start … stop−1 of a feature of this shape, as the field's declared dtype."""
        example = self.example()
        found = self._parsed(example.count, name)
        if found != math.prod(shape):
            raise StrapError(
                f"{self.where}: '{name}' has {found} values, but shape {list(shape)} needs "
                f"{math.prod(shape)}; {FEATURES} does not describe this record"
            )
        rows = self._parsed(example.numbers, name).reshape(shape)[start:stop]
        converted = _converted(rows, np.dtype(NUMPY_DTYPES[field.dtype]))
        if converted is None:
            raise StrapError(
                f"{self.where}: '{name}' holds {rows.dtype} values that do not fit into "
                f"{field.dtype}, the dtype in {FEATURES}; correct the description"
            )
        return converted

    def _image_spans(self, name: str, length: int) -> list[tuple[int, int]]:
        spans = self._parsed(self.example().value_spans, self._require(name))
        if len(spans) != length:
            raise self._unequal(name, f"{len(spans)} images", f"{length} steps")
        return spans

    def _unequal(self, name: str, values: str, expected: str) -> StrapError:
        return StrapError(
            f"{self.where}: '{name}' has {values} for {expected}, so the record is damaged; "
            "download the shard again"
        )

    def _require(self, name: str) -> str:
        """Return the name of a feature; raise if the record does not hold it."""
        if name not in self.example().spans:
            raise StrapError(
                f"{self.where} has no '{name}', which {FEATURES} lists; download both again"
            )
        return name

    def _parsed(self, parse_field: Callable[[str], Parsed], name: str) -> Parsed:
        try:
            return parse_field(name)
        except ValueError as error:
            raise StrapError(
                f"{self.where}: '{name}' cannot be parsed: {error}; download the shard again"
            ) from error


def _converted(values: Array, dtype: np.dtype[Any]) -> Array | None:
    """Return float32 or int64 values as `dtype`; None if a value is out of its range."""
    if not values.size:
        return values.astype(dtype)
    if (values.dtype.kind == "f") != (dtype.kind == "f"):
        return None
    if dtype == np.float16:
        limit = float(np.finfo(np.float16).max)
        if (np.isfinite(values) & (np.abs(values) > limit)).any():
            return None
    elif dtype.kind != "f" and dtype != np.uint64:  # uint64 is stored as the same 64 bits, signed
        least, most = (0, 1) if dtype == np.bool_ else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        if values.min() < least or values.max() > most:
            return None
    return values.astype(dtype, copy=False)


class _Records:
    """A cache of the most recent records, bounded by their bytes, for use by several threads."""

    def __init__(self) -> None:
        self._examples: OrderedDict[tuple[Path, int, int], Example] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, episode: EpisodeRecord) -> Example:
        key = (episode.shard, episode.record, _mtime(episode.shard))
        with self._lock:
            if key in self._examples:
                self._examples.move_to_end(key)
                return self._examples[key]
        try:
            example = parse(read_record(episode.shard, episode.record, episode.records))
        except ValueError as error:
            raise StrapError(
                f"{episode.where} cannot be parsed: {error}; download the shard again"
            ) from error
        with self._lock:
            self._examples[key] = example
            n_bytes = sum(len(cached.data) for cached in self._examples.values())
            while len(self._examples) > 1 and n_bytes > MAX_CACHED_BYTES:
                n_bytes -= len(self._examples.popitem(last=False)[1].data)
        return example


def _mtime(shard: Path) -> int:
    try:
        return shard.stat().st_mtime_ns
    except OSError:
        return 0  # reading the record will raise that the shard is missing


_records = _Records()
