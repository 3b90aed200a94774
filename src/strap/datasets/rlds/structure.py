"""What `features.json` and `dataset_info.json` say: fields of a step, splits and their shards."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strap.artifacts import read_json
from strap.datasets.base import natural
from strap.errors import StrapError

FEATURES, DATASET_INFO = "features.json", "dataset_info.json"
STEPS = "steps"


@dataclass(frozen=True)
class Field:
    """One leaf of the structure, by its path (`observation/image_0` for a step's)."""

    path: str
    kind: str
    """`image`, `text` or `tensor`"""
    shape: tuple[int | None, ...]
    dtype: str
    encoding: str = "none"


@dataclass(frozen=True)
class Shard:
    """One TFRecord file of a split and how many episodes it holds."""

    split: str
    file: Path
    length: int | None


@dataclass(frozen=True)
class Structure:
    """A TFDS version folder, described."""

    folder: Path
    name: str
    steps: Mapping[str, Field]
    """per-step fields by path under `steps/`"""
    episode: Mapping[str, Field]
    """fields stored once per episode"""
    shards: Sequence[Shard]
    info: Mapping[str, Any]


def find_folder(path: Path) -> Path | None:
    """The version folder: `path`, or the newest version below it, or below its only dataset."""
    if (path / FEATURES).is_file():
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
    """The newest version folder directly below a dataset's folder."""
    versions = [p for p in _folders(path) if (p / FEATURES).is_file()]
    return max(versions, key=lambda p: natural(p.name), default=None)


def _folders(path: Path) -> list[Path]:
    return [p for p in path.iterdir() if p.is_dir()] if path.is_dir() else []


def load_structure(folder: Path) -> Structure:
    """Read the two JSON files."""
    spec = read_json(folder / FEATURES)
    has_info = (folder / DATASET_INFO).is_file()
    info = read_json(folder / DATASET_INFO) if has_info else {}
    top: dict[str, Field] = {}
    steps: dict[str, Field] = {}
    for name, node in _children(spec, folder).items():
        inner = _sequence(node)
        if inner is not None and name == STEPS:
            _flatten(inner, "", steps, folder)
        else:
            _flatten(node, name, top, folder)
    if not steps:
        raise StrapError(
            f"'{folder / FEATURES}' has no sequence '{STEPS}', so it is no RLDS dataset; its "
            f"features: {', '.join(_children(spec, folder)) or 'none'}"
        )
    name = str(info.get("name") or folder.parent.name)
    return Structure(folder, name, steps, top, _shards(folder, name, info), info)


def _children(node: Any, folder: Path) -> Mapping[str, Any]:
    try:
        children = node["featuresDict"]["features"]
        if isinstance(children, dict):
            return children
    except (KeyError, TypeError):
        pass
    raise StrapError(
        f"'{folder / FEATURES}': expected a FeaturesDict ('featuresDict': {{'features': …}}) as "
        "tensorflow-datasets 4 writes it; regenerate the file with a current version"
    )


def _sequence(node: Any) -> Any:
    sequence = node.get("sequence") if isinstance(node, dict) else None
    return sequence.get("feature") if isinstance(sequence, dict) else None


def _flatten(node: Any, path: str, out: dict[str, Field], folder: Path) -> None:
    """Collect the leaves below `node`; nested sequences have no place in an array and are left."""
    if not isinstance(node, dict):
        raise StrapError(f"'{folder / FEATURES}': '{path}' is {node!r}, not a feature")
    if "featuresDict" in node:
        for name, child in _children(node, folder).items():
            _flatten(child, f"{path}/{name}" if path else name, out, folder)
        return
    field = _leaf(node, path, folder)
    if field is not None:
        out[path] = field


def _leaf(node: Mapping[str, Any], path: str, folder: Path) -> Field | None:
    if "image" in node:
        image = node["image"]
        dtype = str(image.get("dtype", "uint8"))
        return Field(path, "image", _shape(image, path, folder), dtype)
    if "text" in node:
        return Field(path, "text", (), "string")
    tensor = node.get("tensor")
    if isinstance(tensor, dict):
        dtype = str(tensor.get("dtype", "float32"))
        kind = "text" if dtype in ("string", "object") else "tensor"
        shape = _shape(tensor, path, folder)
        return Field(path, kind, shape, dtype, str(tensor.get("encoding", "none")))
    if "classLabel" in node:
        return Field(path, "tensor", (), "int64")
    return None


def _shape(node: Mapping[str, Any], path: str, folder: Path) -> tuple[int | None, ...]:
    dimensions = (node.get("shape") or {}).get("dimensions", [])
    try:
        sizes = [int(n) for n in dimensions]
    except (TypeError, ValueError) as error:
        raise StrapError(
            f"'{folder / FEATURES}': the shape of '{path}' is {dimensions!r}; mend the file"
        ) from error
    return tuple(n if n > 0 else None for n in sizes)


def _shards(folder: Path, name: str, info: Mapping[str, Any]) -> list[Shard]:
    shards: list[Shard] = []
    for split in info.get("splits") or []:
        lengths = [int(n) for n in split.get("shardLengths") or []]
        template = split.get("filepathTemplate") or _TEMPLATE
        for i, length in enumerate(lengths):
            file = _shard_name(template, name, split["name"], info, i, len(lengths))
            shards.append(Shard(str(split["name"]), folder / file, length))
    return shards or _shards_found(folder)


_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


def _shard_name(
    template: str, name: str, split: str, info: Mapping[str, Any], index: int, count: int
) -> str:
    values = {
        "DATASET": name,
        "SPLIT": split,
        "FILEFORMAT": str(info.get("fileFormat") or "tfrecord"),
        "SHARD_X_OF_Y": f"{index:05d}-of-{count:05d}",
        "SHARD_INDEX": f"{index:05d}",
        "NUM_SHARDS": f"{count:05d}",
    }
    for key, value in values.items():
        template = template.replace(f"{{{key}}}", value)
    return template


def _shards_found(folder: Path) -> list[Shard]:
    """Shards by their file names, where dataset_info.json does not list them."""
    pattern = re.compile(r".*-(?P<split>[^-.]+)\.[^-]+-\d{5}-of-\d{5}$")
    files = sorted(p for p in folder.iterdir() if pattern.match(p.name))
    if not files:
        raise StrapError(f"'{folder}' lists no shards and holds none; download the records")
    return [Shard(_split_of(pattern, file), file, None) for file in files]


def _split_of(pattern: re.Pattern[str], file: Path) -> str:
    match = pattern.match(file.name)
    return match["split"] if match else "train"
