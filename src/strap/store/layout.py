"""The layout of a store: its configuration, the formats of its files, and their names."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from strap.atomic import read_json, write_json
from strap.datasets import is_opening
from strap.errors import StrapError, printable
from strap.locks import hold_lock
from strap.store.parsing import (
    parse_list,
    parse_number,
    parse_object,
    parse_text,
    parse_texts,
    require_keys,
)

STORE_VERSION = 2
HEADER_BYTES = 128
SHARD_BYTES = 128 << 20
"""a shard of at least this size is finished; large enough to be read at disk speed"""
SHARDS, PARTIAL = "shards", "partial"
DTYPES = ("float16", "float32", "float64")


@dataclass(frozen=True)
class StoreConfig:
    """The encoder and the format of a store's vectors; only equal ones can be compared."""

    encoder: Mapping[str, Any]
    dtype: str
    dim: int
    cameras: tuple[str, ...]

    @property
    def row_bytes(self) -> int:
        """The number of bytes of one vector."""
        return self.dim * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Entry:
    """One trajectory in a shard."""

    id: str
    offset: int
    """its first row"""
    length: int
    instruction: str
    fingerprint: str
    """a hash of the content that was embedded"""
    stamp: str
    """changes if its files or its orientation change"""
    checksums: tuple[int, ...]
    """CRC-32 of its rows, one per camera"""

    @property
    def stop(self) -> int:
        """The row after its last row."""
        return self.offset + self.length


@dataclass(frozen=True)
class Shard:
    """Concatenated trajectories, in one file per camera."""

    name: str
    files: tuple[str, ...]
    frames: int
    """the number of rows of each file"""
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class StoreSource:
    """The dataset that a store was made from."""

    dataset: str = ""
    """its absolute path"""
    opening: Mapping[str, Any] | None = None
    """the arguments of `open_dataset`; None: unknown, in stores of older versions"""


UNKNOWN = StoreSource()


def create_store(path: Path, config: StoreConfig, source: StoreSource = UNKNOWN) -> None:
    """Write `store.json` of an empty store."""
    identity = {
        "format": "strap-store",
        "version": STORE_VERSION,
        **asdict(config),
        "dataset": source.dataset,
        **({} if source.opening is None else {"opening": dict(source.opening)}),
    }
    write_json(path / "store.json", identity)


def begin_store(path: Path, config: StoreConfig, source: StoreSource) -> None:
    """Create an empty store if the folder is empty or missing; keep a store that exists."""
    if (path / "store.json").is_file():
        return
    if _has_other_files(path):
        raise StrapError(
            f"'{path}' exists and is not an embedding store; choose another output folder"
        )
    with hold_lock(path / "lock"):  # another writer might be creating it at the same moment
        if not (path / "store.json").is_file():
            for leftover in path.glob(".*.tmp"):
                leftover.unlink()
            create_store(path, config, source)


def _has_other_files(path: Path) -> bool:
    if not path.exists():
        return False
    if not path.is_dir():
        return True
    names = [file.name for file in path.iterdir()]
    others = [n for n in names if n != "lock" and not (n.startswith(".") and n.endswith(".tmp"))]
    return bool(others) and not (path / "store.json").is_file()  # might be created just now


def read_identity(path: Path) -> tuple[StoreConfig, StoreSource]:
    """Read `store.json`: the configuration, and the dataset that the store was made from."""
    file = path / "store.json"
    raw = read_json(file)
    try:
        parse_object(raw, "it")
        if raw.get("format") != "strap-store" or raw.get("version") != STORE_VERSION:
            raise StrapError(
                f"'{path}' is a store of version {raw.get('version')!r}, but this version of strap "
                f"reads {STORE_VERSION}: embed again into a new folder, or use the version of "
                "strap that made it"
            )
        return _parse_config(raw), _parse_source(raw)
    except ValueError as error:
        raise StrapError(
            f"'{file}' is damaged ({error}): restore that file from a copy, or embed again into a "
            "new folder"
        ) from error


def _parse_config(raw: Mapping[str, Any]) -> StoreConfig:
    for name in ("encoder", "dtype", "dim", "cameras"):
        if name not in raw:
            raise ValueError(f"it has no '{name}'")
    if raw["dtype"] not in DTYPES:
        raise ValueError(f"dtype is not one of {', '.join(DTYPES)}")
    cameras = parse_texts(raw["cameras"], "cameras")
    if not cameras or len(set(map(slug, cameras))) < len(cameras):
        raise ValueError("it has no cameras, or the same one twice")
    encoder = parse_object(raw["encoder"], "encoder")
    return StoreConfig(encoder, raw["dtype"], parse_number(raw["dim"], "dim", least=1), cameras)


def _parse_source(raw: Mapping[str, Any]) -> StoreSource:
    opening = raw.get("opening")
    if opening is not None and not is_opening(opening):
        raise ValueError("opening does not say how the dataset was read")
    return StoreSource(parse_text(raw.get("dataset", ""), "dataset"), opening)


def slug(camera: str) -> str:
    """Return a camera's name in the form that file names use."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", camera)


def shard_files(name: str, config: StoreConfig) -> tuple[str, ...]:
    """Return the names of a shard's data files, one per camera."""
    return tuple(f"{name}.{slug(camera)}.npy" for camera in config.cameras)


def npy_header(config: StoreConfig, frames: int) -> bytes:
    """Return the 128-byte header of a shard's file, in NumPy's format 1.0.

    Its length does not depend on the shape, so that rows can be appended first and counted later.
    """
    descr = np.dtype(config.dtype).newbyteorder("<").str
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': ({frames}, {config.dim}), }}"
    start = b"\x93NUMPY\x01\x00" + (HEADER_BYTES - 10).to_bytes(2, "little")
    return start + text.ljust(HEADER_BYTES - 11).encode() + b"\n"


def write_shard(store: Path, shard: Shard) -> None:
    """Write a shard's JSON file, which makes the shard part of the store."""
    value = asdict(shard)
    write_json(store / SHARDS / f"{shard.name}.json", {**value, "checksum": json_checksum(value)})


def read_shard(file: Path, config: StoreConfig) -> Shard:
    """Read a shard's JSON file; check its checksum and its values."""
    raw = read_json(file)
    try:
        parse_object(raw, "it")
        require_keys(raw, ("name", "files", "frames", "entries", "checksum"), "it")
        if json_checksum(raw) != raw["checksum"]:
            raise ValueError("its checksum does not fit")
        return _parse_shard(raw, file.stem, config)
    except ValueError as error:
        raise StrapError(
            f"shard '{file}' is damaged ({error}): delete that file and embed again; only that "
            "shard is embedded again"
        ) from error


def _parse_shard(raw: Mapping[str, Any], name: str, config: StoreConfig) -> Shard:
    if raw["name"] != name:
        raise ValueError("it holds the name of another shard")
    files = parse_texts(raw["files"], "files")
    if files != shard_files(name, config):
        raise ValueError(f"its files are not {', '.join(shard_files(name, config))}")
    frames = parse_number(raw["frames"], "frames")
    entries = tuple(parse_entry(e, len(files)) for e in parse_list(raw["entries"], "entries"))
    stop, ids = 0, set[str]()
    for entry in entries:
        if entry.offset < stop or entry.id in ids:
            raise ValueError(f"trajectory '{printable(entry.id)}' overlaps one before it")
        stop = entry.stop
        ids.add(entry.id)
    if stop > frames:
        raise ValueError(f"its trajectories go up to row {stop} of {frames}")
    return Shard(name, files, frames, entries)


def parse_entry(raw: object, cameras: int) -> Entry:
    """Return an entry from its JSON, or raise a `ValueError` that names the wrong value."""
    names = ("id", "offset", "length", "instruction", "fingerprint", "stamp", "checksums")
    value = parse_object(raw, "an entry")
    require_keys(value, names, "an entry")
    checksums = tuple(
        parse_number(s, "a checksum") for s in parse_list(value["checksums"], "checksums")
    )
    if len(checksums) != cameras:
        raise ValueError(f"an entry has {len(checksums)} checksums for {cameras} cameras")
    return Entry(
        id=parse_text(value["id"], "an id"),
        offset=parse_number(value["offset"], "an offset"),
        length=parse_number(value["length"], "a length", least=1),
        instruction=parse_text(value["instruction"], "an instruction"),
        fingerprint=parse_text(value["fingerprint"], "a fingerprint"),
        stamp=parse_text(value["stamp"], "a stamp"),
        checksums=checksums,
    )


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the contents of `manifest.json`; {} if there is none."""
    file = path / "manifest.json"
    if not file.is_file():
        return {}
    try:
        manifest = parse_object(read_json(file), "it")
        for name in ("dropped", "unchecked"):
            parse_texts(manifest.get(name, []), name)
        for name in parse_texts(manifest.get("shards", []), "shards"):
            if not re.fullmatch("[0-9]+", name):  # it becomes part of a path
                raise ValueError("a shard's name is not a number")
        parse_text(manifest.get("dataset", ""), "dataset")
    except ValueError as error:
        raise StrapError(
            f"'{file}' is damaged ({error}): delete it and embed again; no vector is computed twice"
        ) from error
    return manifest


def missing_shards(manifest: Mapping[str, Any], present: Iterable[str]) -> list[str]:
    """Return the shards that are in the manifest but not in the store."""
    return sorted(set(manifest.get("shards", ())) - set(present))


def json_checksum(value: Mapping[str, Any]) -> int:
    """Return the CRC-32 of a value's compact JSON with sorted keys, without its own checksum."""
    rest = {key: item for key, item in value.items() if key != "checksum"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return zlib.crc32(text.encode())


def list_shards(store: Path) -> list[Path]:
    """Return the JSON files of the shards, sorted by name."""
    return sorted((store / SHARDS).glob("*.json"))


def list_partials(store: Path) -> Iterator[str]:
    """Yield the names of unfinished shards, of live and of dead writers."""
    folder = store / PARTIAL
    if folder.is_dir():
        yield from sorted(entry.name for entry in folder.iterdir() if entry.is_dir())


def next_name(store: Path) -> str:
    """Return a name for a new shard; the caller holds the store's lock."""
    # Partial shards first: one that is published in between is then found among the shards.
    taken = [*list_partials(store)]
    taken += [file.name.partition(".")[0] for file in (store / SHARDS).glob("*.*")]
    return f"{max((int(name) for name in taken if name.isdecimal()), default=-1) + 1:06d}"
