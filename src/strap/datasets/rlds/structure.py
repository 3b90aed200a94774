"""Read the structure of a dataset, the fields of a step and of an episode, from `features.json`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from strap.datasets.base import natural_sort_key
from strap.datasets.rlds.description import (
    DATASET_INFO,
    FEATURES,
    expect_integer,
    expect_list,
    expect_name,
    expect_object,
    expect_text,
    read_description,
    value_of,
    wrong_value_error,
)
from strap.datasets.rlds.shards import RecordShard, list_shards
from strap.datasets.untrusted import MAX_FRAME_BYTES, MAX_IMAGE_PIXELS, require_at_most
from strap.errors import StrapError

STEPS_FEATURE = "steps"
MAX_FEATURE_DEPTH = 32
"""the deepest nesting of features"""
MAX_DIMENSIONS = 16
"""the most dimensions of one field"""
MAX_FIELDS = 10_000
"""the most fields of a dataset; the largest in use have about a hundred"""
NUMPY_DTYPES = {
    **{name: name for name in ("bool", "int8", "int16", "int32", "int64")},
    **{name: name for name in ("uint8", "uint16", "uint32", "uint64")},
    **{name: name for name in ("float16", "float32", "float64")},
    "bfloat16": "float32",
}
"""dtype of a numeric field -> the numpy dtype of its values"""
TEXT_DTYPES = ("string", "object")
IMAGE_DTYPES = ("uint8", "uint16", "float32")
"""dtypes of images; camera images are uint8"""
PLAIN_ENCODINGS = ("none", "")
"""encodings of tensors whose values are stored as numbers in the record"""
ENCODINGS = (*PLAIN_ENCODINGS, "bytes", "zlib")
READ_KINDS = ("featuresDict", "tensor", "image", "text", "classLabel")
UNREAD_KINDS = (
    *("sequence", "dataset", "video", "audio", "boundingBox"),
    *("translation", "jsonFeature", "optional"),
)
"""kinds of features that are left out, because they are not arrays with a row per step"""


@dataclass(frozen=True)
class Field:
    """A leaf feature with its path, such as `observation/image_0`."""

    path: str
    kind: str
    """`image`, `text` or `tensor`"""
    shape: tuple[int | None, ...]
    dtype: str
    encoding: str = "none"

    @property
    def is_plain(self) -> bool:
        """Whether the values are stored unencoded in the record, as numbers or bytes."""
        return self.encoding in PLAIN_ENCODINGS


@dataclass(frozen=True)
class Structure:
    """The description of a TFDS version folder."""

    folder: Path
    name: str
    steps: Mapping[str, Field]
    """path under `steps/` -> field stored once per step"""
    episode: Mapping[str, Field]
    """path -> field stored once per episode"""
    shards: Sequence[RecordShard]
    info: Mapping[str, Any]


def find_folder(path: Path) -> Path | None:
    """Return the version folder: `path` itself, or the newest version in it or in its only dataset.

    Return None if there is none.
    """
    if _is_file(path / FEATURES):
        return path
    version = find_version(path)
    if version:
        return version
    below = {p: find_version(p) for p in _folders(path)}
    found = {p: version for p, version in below.items() if version}
    if len(found) > 1:
        names = ", ".join(sorted(p.name for p in found))
        raise StrapError(f"'{path}' holds {len(found)} RLDS datasets: open one of them: {names}")
    return next(iter(found.values()), None)


def find_version(path: Path) -> Path | None:
    """Return the newest version folder in a dataset's folder; None if there is none."""
    versions = [p for p in _folders(path) if _is_file(p / FEATURES)]
    return max(versions, key=lambda p: natural_sort_key(p.name), default=None)


def _is_file(path: Path) -> bool:
    with suppress(OSError):  # a folder without read permission counts as empty
        return path.is_file()
    return False


def _folders(path: Path) -> list[Path]:
    with suppress(OSError):
        return [p for p in path.iterdir() if p.is_dir()]
    return []


def load_structure(folder: Path) -> Structure:
    """Return the structure of a version folder, read from its two JSON files."""
    file = folder / FEATURES
    features = _children(read_description(file), "its content", file)
    info_file = folder / DATASET_INFO
    info = read_description(info_file) if os.path.lexists(info_file) else {}
    inner = _steps(features[STEPS_FEATURE], file) if STEPS_FEATURE in features else None
    steps = {} if inner is None else _by_path(_leaves(inner, "", file), file)
    once = {name: node for name, node in features.items() if inner is None or name != STEPS_FEATURE}
    named = ((expect_name(n, "the name of a feature", file), node) for n, node in once.items())
    episode = _by_path(chain.from_iterable(_leaves(node, n, file) for n, node in named), file)
    if not steps:
        raise StrapError(
            f"'{file}' has no sequence '{STEPS_FEATURE}', so it is not an RLDS dataset; its "
            f"features: {', '.join(features) or 'none'}"
        )
    name = expect_text(value_of(info, "name", ""), "'name'", info_file)
    name = expect_name(name or folder.resolve().parent.name, "'name'", info_file)
    return Structure(folder, name, steps, episode, list_shards(folder, name, info), info)


def _children(node: Mapping[str, Any], what: str, file: Path) -> Mapping[str, Any]:
    holder = node.get("featuresDict")
    children = holder.get("features") if isinstance(holder, dict) else None
    if holder == {}:  # a dictionary of no features: protobuf leaves empty values out
        return {}
    if not isinstance(children, dict):
        raise StrapError(
            f"'{file}': {what} is not a FeaturesDict ('featuresDict': {{'features': …}}) as "
            "tensorflow-datasets 4 writes it; regenerate the file with a current version"
        )
    return children


def _steps(node: Any, file: Path) -> Any:
    """Return the feature that `steps` is a sequence of; None if it is not a sequence."""
    node = expect_object(node, f"'{STEPS_FEATURE}'", file)
    if "sequence" not in node:
        return None
    sequence = expect_object(node["sequence"], f"the sequence of '{STEPS_FEATURE}'", file)
    return expect_object(sequence.get("feature"), f"the feature of '{STEPS_FEATURE}'", file)


def _leaves(node: Any, path: str, file: Path, depth: int = 0) -> Iterator[Field]:
    """Yield the leaves below `node`, without features of `UNREAD_KINDS`."""
    node = expect_object(node, f"feature '{path}'", file)
    require_at_most(depth, MAX_FEATURE_DEPTH, f"levels of features (at '{path[:80]}')", file)
    kinds = [kind for kind in (*READ_KINDS, *UNREAD_KINDS) if kind in node]
    if len(kinds) != 1:
        expected = f"one of the kinds {', '.join((*READ_KINDS, *UNREAD_KINDS))}"
        raise wrong_value_error(
            sorted(node), f"the description of feature '{path}'", expected, file
        )
    if kinds[0] == "featuresDict":
        for name, child in _children(node, f"feature '{path}'", file).items():
            name = expect_name(name, f"the name of a feature of '{path}'", file)
            yield from _leaves(child, f"{path}/{name}" if path else name, file, depth + 1)
    elif kinds[0] in UNREAD_KINDS:
        expect_object(node[kinds[0]], f"'{kinds[0]}' of '{path}'", file)
    else:
        yield _leaf(kinds[0], node, path, file)


def _by_path(fields: Iterable[Field], file: Path) -> dict[str, Field]:
    """Return path -> field; raise if a path occurs twice, or there are too many fields."""
    found: dict[str, Field] = {}
    for field in fields:
        if field.path in found:
            raise StrapError(f"'{file}': feature '{field.path}' occurs twice; correct the file")
        found[field.path] = field
        require_at_most(len(found), MAX_FIELDS, "fields", file)
    return found


def _leaf(kind: str, node: Mapping[str, Any], path: str, file: Path) -> Field:
    described = expect_object(node[kind], f"'{kind}' of '{path}'", file)
    if kind == "text":
        return Field(path, "text", (), "string")
    if kind == "classLabel":
        return Field(path, "tensor", (), "int64")
    shape = _shape(described, path, file)
    return (_image if kind == "image" else _tensor)(described, shape, path, file)


def _image(
    described: Mapping[str, Any], shape: tuple[int | None, ...], path: str, file: Path
) -> Field:
    dtype = _dtype(described, "uint8", IMAGE_DTYPES, path, file)
    if len(shape) != 3 or 0 in shape or shape[2] not in (None, 1, 2, 3, 4):
        raise wrong_value_error(
            list(shape), f"the shape of '{path}'", "[height, width, 1 to 4 channels]", file
        )
    pixels = math.prod(n or 1 for n in shape[:2])
    require_at_most(pixels, MAX_IMAGE_PIXELS, f"pixels per image of '{path}'", file)
    return Field(path, "image", shape, dtype)


def _dtype(
    described: Mapping[str, Any], default: str, known: Iterable[str], path: str, file: Path
) -> str:
    what = f"the dtype of '{path}'"
    dtype = expect_text(value_of(described, "dtype", default), what, file)
    if dtype not in known:
        raise wrong_value_error(dtype, what, f"one of {', '.join(known)}", file)
    return dtype


def _tensor(
    described: Mapping[str, Any], shape: tuple[int | None, ...], path: str, file: Path
) -> Field:
    dtype = _dtype(described, "", (*NUMPY_DTYPES, *TEXT_DTYPES), path, file)
    encoding = expect_text(value_of(described, "encoding", ""), f"the encoding of '{path}'", file)
    if encoding.lower() not in ENCODINGS:
        raise wrong_value_error(encoding, f"the encoding of '{path}'", "none, bytes or zlib", file)
    values = math.prod(n for n in shape if n is not None)
    require_at_most(values * 8, MAX_FRAME_BYTES, f"bytes per step of '{path}'", file)
    return Field(path, "text" if dtype in TEXT_DTYPES else "tensor", shape, dtype, encoding.lower())


def _shape(described: Mapping[str, Any], path: str, file: Path) -> tuple[int | None, ...]:
    """Return the shape per step; None for a size that varies, which TFDS writes as -1."""
    what = f"the shape of '{path}'"
    shape = expect_object(value_of(described, "shape", {}), what, file)
    dimensions = expect_list(value_of(shape, "dimensions", []), what, file)
    require_at_most(len(dimensions), MAX_DIMENSIONS, f"dimensions of '{path}'", file)
    sizes = [expect_integer(n, what, file, least=-1) for n in dimensions]
    return tuple(None if n == -1 else n for n in sizes)
