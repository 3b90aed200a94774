"""The embedding store: one vector per frame and camera, in plain `.npy` shards.

    STORE/
      store.json              what the vectors are: encoder, dtype, dimension, cameras
      shards/NAME.CAMERA.npy  [frames dim], trajectories end to end
      shards/NAME.json        which trajectories lie where, with checksums; written last
      manifest.json           written last: which dataset, which ids, versions

A shard is written to temporary names and moved into place, its JSON last, so a killed writer leaves
whole shards or nothing. Where two shards hold the same trajectory, the later name counts.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from strap.artifacts import read_json, replacing, write_json
from strap.datasets.base import natural
from strap.errors import StrapError, unknown
from strap.types import Array

VERSION = 1


@dataclass(frozen=True)
class StoreConfig:
    """What the vectors of a store are; two stores compare only where this agrees."""

    encoder: Mapping[str, Any]
    dtype: str
    dim: int
    cameras: tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """One trajectory in a shard."""

    id: str
    offset: int
    length: int
    instruction: str
    fingerprint: str
    """of the content that was embedded"""
    stamp: str
    """of the files it came from"""
    checksums: tuple[int, ...]
    """CRC-32 of its rows, camera by camera"""


@dataclass(frozen=True)
class Shard:
    """Trajectories end to end in one file per camera."""

    name: str
    files: tuple[str, ...]
    frames: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, repr=False)
class EmbeddingStore:
    """Embeddings by trajectory: `store[id]` is [t d]; `store.ids` in natural order."""

    path: Path
    config: StoreConfig
    shards: Mapping[str, Shard]
    places: Mapping[str, tuple[str, Entry]]
    """id -> (shard name, entry), in natural order of the ids"""
    manifest: Mapping[str, Any]
    """empty while the store is not complete"""
    cameras: tuple[str, ...] = ()
    """the cameras that are averaged on reading"""
    _maps: dict[tuple[str, str], Array] = field(default_factory=dict, compare=False)

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Trajectory ids in natural order."""
        return tuple(self.places)

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return self.config.dim

    @property
    def frames(self) -> int:
        """How many frames there are in all."""
        return sum(entry.length for _, entry in self.places.values())

    @property
    def dataset(self) -> str:
        """The path of the dataset that was embedded."""
        return str(self.manifest.get("dataset", ""))

    @property
    def complete(self) -> bool:
        """Whether the embedding ran to its end."""
        return bool(self.manifest)

    def __len__(self) -> int:
        return len(self.places)

    def __contains__(self, trajectory_id: object) -> bool:
        return trajectory_id in self.places

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __repr__(self) -> str:
        name = self.config.encoder.get("name")
        return f"EmbeddingStore('{self.path}', {name}, {len(self)} trajectories of {self.dim}-d)"

    def entry(self, trajectory_id: str) -> Entry:
        """Length, instruction and fingerprint of a trajectory."""
        if trajectory_id not in self.places:
            raise StrapError(
                f"store '{self.path}' has no trajectory '{trajectory_id}': embed the dataset that "
                f"holds it (the store has {len(self)}"
                + (f", {self.ids[0]} to {self.ids[-1]})" if self.places else ")")
            )
        return self.places[trajectory_id][1]

    def __getitem__(self, trajectory_id: str) -> Array:
        """The embeddings [t d] of a trajectory, checked by their checksum; cameras averaged."""
        entry = self.entry(trajectory_id)
        shard = self.shards[self.places[trajectory_id][0]]
        rows = []
        for camera in self.cameras:
            part = self._map(shard, camera)[entry.offset : entry.offset + entry.length]
            expected = entry.checksums[self.config.cameras.index(camera)]
            if zlib.crc32(np.ascontiguousarray(part).data) != expected:
                raise self._damaged(shard, camera, entry)
            rows.append(part)
        return average(rows)

    def shard_frames(self, shard: Shard) -> Array:
        """All rows [frames d] of a shard, cameras averaged; a memory map if there is but one."""
        return average([self._map(shard, camera) for camera in self.cameras])

    def live_entries(self, shard: Shard) -> list[Entry]:
        """The shard's entries that no later shard replaces."""
        return [e for e in shard.entries if self.places.get(e.id, ("", e))[0] == shard.name]

    def _map(self, shard: Shard, camera: str) -> Array:
        key = (shard.name, camera)
        if key not in self._maps:
            file = self.path / "shards" / shard.files[self.config.cameras.index(camera)]
            self._maps[key] = _load_shard(file, (shard.frames, self.dim), self.config.dtype)
        return self._maps[key]

    def _damaged(self, shard: Shard, camera: str, entry: Entry) -> StrapError:
        file = shard.files[self.config.cameras.index(camera)]
        return StrapError(
            f"store '{self.path}': '{file}' is damaged at trajectory '{entry.id}' (rows "
            f"{entry.offset} to {entry.offset + entry.length - 1}): delete shards/{shard.name}"
            ".json and embed again; only that shard is made anew"
        )

    def verify(self) -> list[str]:
        """Read everything; the messages of what is damaged (none: the store is sound)."""
        found = []
        for trajectory_id in self.ids:
            try:
                self[trajectory_id]
            except StrapError as error:
                found.append(str(error))
        return found


def average(rows: Sequence[Array]) -> Array:
    """The mean over cameras; one camera is passed through untouched."""
    if len(rows) == 1:
        return rows[0]
    return np.asarray(np.mean([np.asarray(r, np.float32) for r in rows], axis=0))


def open_store(path: str | Path, *, cameras: Sequence[str] | None = None) -> EmbeddingStore:
    """Open a store that `embed` wrote; vectors are memory-mapped, not read.

    Args:
        path: the store's folder.
        cameras: average only these of its cameras; by default all of them.
    """
    path = Path(path).expanduser()
    if not (path / "store.json").is_file():
        raise StrapError(
            f"'{path}' is no embedding store (it has no store.json): make one with "
            "`strap embed DATASET --out STORE`"
        )
    config = _read_config(path)
    for camera in cameras or ():
        if camera not in config.cameras:
            raise StrapError(f"store '{path}': {unknown('camera', camera, config.cameras)}")
    shards = {shard.name: shard for shard in _read_shards(path)}
    manifest = read_json(path / "manifest.json") if (path / "manifest.json").is_file() else {}
    dropped = set(manifest.get("dropped", ()))
    places = {e.id: (s.name, e) for s in shards.values() for e in s.entries if e.id not in dropped}
    ordered = {key: places[key] for key in sorted(places, key=natural)}
    return EmbeddingStore(path, config, shards, ordered, manifest, tuple(cameras or config.cameras))


def create_store(path: Path, config: StoreConfig) -> None:
    """Lay down an empty store."""
    identity = {"format": "strap-store", "version": VERSION, **asdict(config)}
    write_json(path / "store.json", identity)


def _read_config(path: Path) -> StoreConfig:
    raw = read_json(path / "store.json")
    if raw.get("format") != "strap-store" or raw.get("version") != VERSION:
        raise StrapError(
            f"'{path}' is a store of version {raw.get('version')!r}; this strap reads {VERSION}: "
            "embed again into a new folder, or use the strap that made it"
        )
    return StoreConfig(raw["encoder"], raw["dtype"], raw["dim"], tuple(raw["cameras"]))


def _read_shards(path: Path) -> Iterator[Shard]:
    for file in sorted((path / "shards").glob("*.json")):
        raw = read_json(file)
        entries = tuple(Entry(**{**e, "checksums": tuple(e["checksums"])}) for e in raw["entries"])
        yield Shard(raw["name"], tuple(raw["files"]), raw["frames"], entries)


def _load_shard(file: Path, shape: tuple[int, int], dtype: str) -> Array:
    try:
        array: Array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise StrapError(
            f"cannot read shard '{file}' ({error}): delete its .json beside it and embed again"
        ) from error
    if array.shape != shape or array.dtype != np.dtype(dtype):
        raise StrapError(
            f"shard '{file}' holds {array.dtype} {array.shape}, not {dtype} {shape}: delete its "
            ".json beside it and embed again"
        )
    return array


@dataclass
class ShardWriter:
    """Collects trajectories and writes them as one shard."""

    path: Path
    config: StoreConfig
    rows: list[list[Array]] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    frames: int = 0

    def add(
        self, vectors: Sequence[Array], *, id: str, instruction: str, fingerprint: str, stamp: str
    ) -> None:
        """Add one trajectory: vectors [t d] for each camera of the store, in its order."""
        with np.errstate(over="ignore"):  # what overflows is reported below, by name
            stored = [np.ascontiguousarray(v, self.config.dtype) for v in vectors]
        if not all(np.isfinite(v).all() for v in stored):
            raise StrapError(
                f"trajectory '{id}': an embedding is too large for {self.config.dtype}; embed with "
                "--dtype float32"
            )
        sums = tuple(zlib.crc32(v.data) for v in stored)
        entry = Entry(id, self.frames, len(stored[0]), instruction, fingerprint, stamp, sums)
        self.rows.append(stored)
        self.entries.append(entry)
        self.frames += entry.length

    @property
    def nbytes(self) -> int:
        """Bytes collected so far."""
        itemsize = np.dtype(self.config.dtype).itemsize
        return self.frames * self.config.dim * len(self.config.cameras) * itemsize

    def flush(self) -> None:
        """Write what was collected as a shard, its JSON last."""
        if not self.entries:
            return
        folder = self.path / "shards"
        number = max((int(f.stem) for f in folder.glob("*.json")), default=-1) + 1
        name = f"{number:06d}"
        files = tuple(f"{name}.{slug(camera)}.npy" for camera in self.config.cameras)
        for index, file in enumerate(files):
            array = np.concatenate([parts[index] for parts in self.rows])
            with replacing(folder / file) as temporary:
                save_npy(temporary, array)
        shard = Shard(name, files, self.frames, tuple(self.entries))
        write_json(folder / f"{name}.json", asdict(shard))
        self.rows, self.entries, self.frames = [], [], 0


def save_npy(file: Path, array: Array) -> None:
    """`numpy.save`, but a full disk is reported as what it is."""
    header = np.lib.format.header_data_from_array_1_0(array)
    with file.open("wb") as handle:
        np.lib.format.write_array_header_1_0(handle, header)
        handle.write(np.ascontiguousarray(array).data)


def slug(camera: str) -> str:
    """A camera's name as part of a file name."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", camera)
