"""RLDS episodes (TFDS records of Open X-Embodiment, DROID, Bridge) without TensorFlow."""

from __future__ import annotations

import math
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np

from strap.datasets.pictures import decode_pictures, picture_size
from strap.datasets.rlds.example import Example, parse
from strap.datasets.rlds.fields import Fields, Roles, assign_roles
from strap.datasets.rlds.records import read_record, record_index
from strap.datasets.rlds.structure import (
    DATASET_INFO,
    FEATURES,
    STEPS,
    Field,
    Shard,
    Structure,
    find_folder,
    load_structure,
)
from strap.errors import StrapError, unknown
from strap.types import Array, LazyArray, Orientation, Source, Trajectory

KEPT_BYTES = 64 << 20
"""records kept in memory per process, so that the arrays of one episode read its record once"""


@dataclass(frozen=True)
class RldsReader:
    """Reads a TFDS folder; ids are `train/000000`: the split and the place in it."""

    structure: Structure
    roles: Roles
    splits: Mapping[str, Sequence[tuple[Shard, int]]]
    """split -> its shards, each with the number of its first episode"""
    ids: Sequence[str]
    orientation: Orientation
    skipped: Sequence[str] = ()
    """ids left out because their shard is missing (`missing="skip"`)"""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """`dataset_info.json`."""
        return self.structure.info

    @cached_property
    def files(self) -> Sequence[Path]:
        """The two descriptions and every shard."""
        files = [self.structure.folder / name for name in (FEATURES, DATASET_INFO)]
        files += [shard.file for shard in self.structure.shards]
        return tuple(file for file in files if file.exists())

    @property
    def summary(self) -> str:
        """One line about what was left out; empty when nothing was."""
        if not self.skipped:
            return ""
        total = len(self.ids) + len(self.skipped)
        return f"skipped {len(self.skipped)} of {total} episodes whose shards are missing"

    def read(self, trajectory_id: str) -> Trajectory:
        """The trajectory: its record is found and checked, its pictures are not decoded."""
        shard, index = self._place(trajectory_id)
        episode = _Episode(trajectory_id, shard.file, index)
        roles = self.roles
        length = episode.count(self.structure.steps)
        instructions = episode.instructions(roles.language, self.structure)
        attributes: dict[str, Any] = dict(episode.attributes(self.structure.episode))
        if roles.position:
            attributes["position"] = roles.position
        if len(instructions) > 1:
            attributes["instructions"] = instructions
        return Trajectory(
            id=trajectory_id,
            length=length,
            instruction=instructions[0] if instructions else "",
            cameras={n: episode.camera(f, length) for n, f in roles.cameras.items()},
            proprioception={
                n: episode.numbers([f], length, flat=False) for n, f in roles.proprioception.items()
            },
            actions=episode.numbers(roles.actions, length, flat=False),
            source=Source(shard.file, str(index)),
            fps=roles.fps,
            orientation=self.orientation,
            extras={n: episode.numbers([f], length) for n, f in roles.extras.items()},
            attributes=attributes,
        )

    def _place(self, trajectory_id: str) -> tuple[Shard, int]:
        split, _, number = trajectory_id.rpartition("/")
        if split not in self.splits or not number.isdigit() or trajectory_id in self._left_out:
            raise KeyError(trajectory_id)
        shards = self.splits[split]
        at = bisect_right(shards, int(number), key=lambda shard: shard[1]) - 1
        shard, first = shards[at]
        if trajectory_id != f"{split}/{int(number):06d}" or int(number) - first >= _length(shard):
            raise KeyError(trajectory_id)
        return shard, int(number) - first

    @cached_property
    def _left_out(self) -> frozenset[str]:
        return frozenset(self.skipped)


def is_rlds(path: Path) -> bool:
    """Whether `path` is a TFDS version folder, its dataset's folder or the folder above."""
    return path.is_dir() and find_folder(path) is not None


def open_rlds(
    path: Path,
    *,
    orientation: Orientation | None = None,
    fields: Fields | None = None,
    missing: Literal["error", "skip"] = "error",
) -> tuple[str, RldsReader]:
    """The reader of a TFDS folder, and its format's name (`rlds`).

    Args:
        path: the version folder (with `features.json`), the dataset's folder, or the one above.
        orientation: how images lie on disk; RLDS's are upright.
        fields: which fields of a step to take for `camera`, `position`, `language`, `action`, by
            path under `steps/` (`observation/wrist_image`); a string or a list of them.
        missing: what to do about episodes whose shard is absent: an error when they are read, or
            leave them out (`reader.skipped` and `reader.summary` tell).
    """
    if missing not in ("error", "skip"):
        raise unknown("value of missing", missing, ("error", "skip"))
    folder = find_folder(path)
    if folder is None:
        raise StrapError(f"'{path}' holds no RLDS dataset: no {FEATURES} there or two levels below")
    structure = load_structure(folder)
    splits: dict[str, list[tuple[Shard, int]]] = {}
    ids: list[str] = []
    skipped: list[str] = []
    for split in dict.fromkeys(shard.split for shard in structure.shards):
        shards = [shard for shard in structure.shards if shard.split == split]
        firsts = accumulate((_length(shard) for shard in shards), initial=0)
        splits[split] = list(zip(shards, firsts, strict=False))
        for shard, first in splits[split]:
            gone = missing == "skip" and not shard.file.exists()
            numbers = range(first, first + _length(shard))
            (skipped if gone else ids).extend(f"{split}/{i:06d}" for i in numbers)
    roles = assign_roles(structure, fields)
    upright = orientation or "upright"
    return "rlds", RldsReader(structure, roles, splits, tuple(ids), upright, tuple(skipped))


def _length(shard: Shard) -> int:
    return len(record_index(shard.file)) if shard.length is None else shard.length


@dataclass(frozen=True)
class _Episode:
    """One record, and how its arrays are read."""

    id: str
    shard: Path
    record: int

    @property
    def where(self) -> str:
        return f"'{self.shard}', {self.id} (record {self.record})"

    def example(self) -> Example:
        return _records.get(self.shard, self.record, self.where)

    def count(self, steps: Mapping[str, Field]) -> int:
        """The number of steps: the values of the first field that tells it."""
        example = self.example()
        for path, field in steps.items():
            name = f"{STEPS}/{path}"
            if name not in example.spans or None in field.shape:
                continue
            if field.kind in ("image", "text") and not (field.kind == "text" and field.shape):
                return len(self._parsed(example.pieces, name))
            if field.kind == "tensor" and field.encoding.lower() in ("none", ""):
                per_step = math.prod(n or 1 for n in field.shape)
                return len(self._parsed(example.numbers, name)) // per_step
        raise StrapError(
            f"{self.where}: none of the fields of {FEATURES} is in the record; it holds: "
            f"{', '.join(sorted(example.spans)[:12])}"
        )

    def instructions(self, paths: Sequence[str], structure: Structure) -> list[str]:
        """The language strings that are not empty; a step's field is read at the first step."""
        example = self.example()
        found: list[str] = []
        for path in paths:
            name = f"{STEPS}/{path}" if path in structure.steps else path
            values = self._parsed(example.texts, name) if name in example.spans else []
            text = values[0].decode("utf-8", "replace").strip() if values else ""
            if text and text not in found:
                found.append(text)
        return found

    def attributes(self, fields: Mapping[str, Field]) -> dict[str, Any]:
        """What the record stores once: file paths and the like."""
        example = self.example()
        found: dict[str, Any] = {}
        for path, field in fields.items():
            if path in example.spans and field.kind == "text":
                texts = [t.decode("utf-8", "replace") for t in self._parsed(example.texts, path)]
                found[path] = texts[0] if len(texts) == 1 else texts
            elif path in example.spans and field.kind == "tensor" and not field.shape:
                numbers = self._parsed(example.numbers, path)
                found[path] = numbers[0].item() if len(numbers) == 1 else numbers.tolist()
        return found

    def numbers(self, fields: Sequence[Field], length: int, *, flat: bool = True) -> LazyArray:
        """Number fields side by side, [length, …]; `flat=False` gives a scalar field a column."""
        shapes = [self._shape(field, length) for field in fields]
        if len(fields) > 1 or not flat:
            shapes = [shape or (1,) for shape in shapes]
        last = sum(shape[-1] for shape in shapes) if len(shapes) > 1 else 0
        shape = (length, last) if last else (length, *shapes[0])
        dtypes = [_dtype(field) for field in fields]
        dtype = np.result_type(*dtypes) if len(dtypes) > 1 else dtypes[0]

        def read(start: int, stop: int) -> Array:
            parts = [
                self._tensor(field, (length, *part))[start:stop].astype(dtype, copy=False)
                for field, part in zip(fields, shapes, strict=True)
            ]
            return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

        return LazyArray(shape, dtype, read)

    def camera(self, field: Field, length: int) -> LazyArray:
        """Pictures of a camera, uint8 [length h w 3]; only those asked for are decoded."""
        name = f"{STEPS}/{field.path}"
        height, width = field.shape[:2]
        if (height is None or width is None) and length:
            begin, end = self._pieces(name, length)[0]
            height, width = picture_size(self.example().data[begin:end], f"{self.where}, '{name}'")
        shape = (height or 0, width or 0, 3)

        def read(start: int, stop: int) -> Array:
            pieces = self._pieces(name, length)
            data = self.example().data
            chosen = (data[a:b] for a, b in pieces[start:stop])
            where = f"{self.where}, '{name}'"
            return decode_pictures(chosen, max(stop - start, 0), shape, where, start)

        return LazyArray((length, *shape), np.dtype(np.uint8), read)

    def _shape(self, field: Field, length: int) -> tuple[int, ...]:
        if None not in field.shape:
            return tuple(int(n or 0) for n in field.shape)
        known = math.prod(n for n in field.shape if n is not None)
        values = len(self._parsed(self.example().numbers, self._name(field)))
        free = values // (known * length) if known * length else 0
        return tuple(free if n is None else n for n in field.shape)

    def _tensor(self, field: Field, shape: tuple[int, ...]) -> Array:
        name = self._name(field)
        values = self._parsed(self.example().numbers, name)
        if values.size != math.prod(shape):
            raise StrapError(
                f"{self.where}: '{name}' has {values.size} values, {list(shape)} need "
                f"{math.prod(shape)}; {FEATURES} does not describe this record"
            )
        array: Array = values.reshape(shape)
        return array

    def _pieces(self, name: str, length: int) -> list[tuple[int, int]]:
        example = self.example()
        if name not in example.spans:
            raise StrapError(f"{self.where} has no '{name}', which {FEATURES} lists")
        pieces: list[tuple[int, int]] = self._parsed(example.pieces, name)
        if len(pieces) != length:
            raise StrapError(f"{self.where}: '{name}' has {len(pieces)} pictures of {length} steps")
        return pieces

    def _name(self, field: Field) -> str:
        name = f"{STEPS}/{field.path}"
        if name not in self.example().spans:
            raise StrapError(f"{self.where} has no '{name}', which {FEATURES} lists")
        return name

    def _parsed(self, parse_field: Any, name: str) -> Any:
        try:
            return parse_field(name)
        except ValueError as error:
            raise StrapError(f"{self.where}: '{name}' cannot be parsed: {error}") from error


def _dtype(field: Field) -> np.dtype[Any]:
    try:
        return np.dtype(field.dtype)
    except TypeError:
        return np.dtype(np.float32)  # bfloat16 and the like lie as float32 in the record


class _Records:
    """The records read last, bounded by their bytes; one lock, since readers may share threads."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Path, int, int], Example] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, shard: Path, record: int, where: str) -> Example:
        key = (shard, record, _mtime(shard))
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        try:
            example = parse(read_record(shard, record))
        except (ValueError, UnicodeDecodeError) as error:
            raise StrapError(f"{where} cannot be parsed: {error}") from error
        with self._lock:
            self._kept[key] = example
            held = sum(len(kept.data) for kept in self._kept.values())
            while len(self._kept) > 1 and held > KEPT_BYTES:
                held -= len(self._kept.popitem(last=False)[1].data)
        return example


def _mtime(shard: Path) -> int:
    try:
        return shard.stat().st_mtime_ns
    except OSError:
        return 0  # reading the record says that it is missing


_records = _Records()
