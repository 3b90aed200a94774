"""Verification of a shard's files: header, size and checksums."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from strap.errors import StrapError
from strap.store.layout import HEADER_BYTES, SHARDS, Entry, Shard, StoreConfig, npy_header
from strap.types import Array


@dataclass(frozen=True)
class Damage:
    """A damaged trajectory or shard."""

    shard: str
    entry: Entry | None
    """the trajectory; None: the whole shard"""
    message: str


def verify_shard(path: Path, config: StoreConfig, shard: Shard) -> Iterator[Damage]:
    """Read every byte of a shard and yield its damages."""
    for index, camera in enumerate(config.cameras):
        try:
            rows = load_rows(path / SHARDS / shard.files[index], shard.frames, config)
        except StrapError as error:
            yield Damage(shard.name, None, str(error))
            continue
        for entry in shard.entries:
            if not is_sound(rows, entry, index):
                message = damage_message(path, config, shard, camera, entry)
                yield Damage(shard.name, entry, message)


def is_sound(rows: Array, entry: Entry, camera: int) -> bool:
    """Return whether a trajectory's rows have the checksum in its entry."""
    return zlib.crc32(rows[entry.offset : entry.stop].data) == entry.checksums[camera]


def damage_message(path: Path, config: StoreConfig, shard: Shard, camera: str, entry: Entry) -> str:
    """Return a message that names the damaged file and rows, and what to do."""
    file = shard.files[config.cameras.index(camera)]
    return (
        f"store '{path}': '{file}' is damaged at trajectory '{entry.id}' (rows {entry.offset} to "
        f"{entry.stop - 1}): run `strap store verify {path} --drop` and embed again; only the "
        "damaged vectors are computed again"
    )


def load_rows(file: Path, frames: int, config: StoreConfig) -> Array:
    """Return a shard's file as a memory map [frames dim]; check its header and size."""
    remedy = "delete the .json beside it and embed again; only that shard is embedded again"
    try:
        with file.open("rb") as handle:
            header, size = handle.read(HEADER_BYTES), file.stat().st_size
    except OSError as error:
        raise StrapError(f"cannot read shard '{file}' ({error}): {remedy}") from error
    if header != npy_header(config, frames):
        shape = (frames, config.dim)
        raise StrapError(
            f"shard '{file}' holds {_describe_contents(file)}, not {config.dtype} {shape}: {remedy}"
        )
    if size != HEADER_BYTES + frames * config.row_bytes:
        raise StrapError(f"shard '{file}' is cut off or has bytes after its last row: {remedy}")
    return np.memmap(file, np.dtype(config.dtype), "r", HEADER_BYTES, (frames, config.dim))


def _describe_contents(file: Path) -> str:
    """Return what a file with an unexpected header contains, for the message."""
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except Exception:  # NumPy's header parser can raise anything
        return "a damaged header"
    return f"{array.dtype} {array.shape}"
