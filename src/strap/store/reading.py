"""Reading a store: memory-mapped vectors by trajectory, with their checksums verified."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from strap.cpus import count_cpus
from strap.datasets.base import natural_sort_key
from strap.errors import StrapError, unknown
from strap.store.layout import (
    SHARDS,
    Entry,
    Shard,
    StoreConfig,
    StoreSource,
    list_shards,
    missing_shards,
    read_identity,
    read_manifest,
    read_shard,
)
from strap.store.verification import damage_message, is_sound, load_rows, verify_shard
from strap.types import Array

READ_BYTES = 1 << 20


@dataclass(frozen=True, repr=False)
class EmbeddingStore:
    """Embeddings by trajectory: `store[id]` is an array [t d]; ids are in natural order."""

    path: Path
    config: StoreConfig
    shards: Mapping[str, Shard]
    places: Mapping[str, tuple[str, Entry]]
    """id -> (shard name, entry), in natural order of the ids"""
    manifest: Mapping[str, Any]
    """empty while the store is not complete"""
    cameras: tuple[str, ...] = ()
    """the cameras whose vectors are averaged when reading"""
    source: StoreSource = field(default_factory=StoreSource)
    """the dataset's path when the store was created, and how it was read"""
    _maps: dict[tuple[str, str], Array] = field(default_factory=dict, compare=False)
    _checked: set[tuple[str, ...]] = field(default_factory=set, compare=False)
    """verified shards (name, camera) and single trajectories (name, camera, id)"""

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Trajectory ids in natural order."""
        return tuple(self.places)

    @property
    def dim(self) -> int:
        """The length of a vector."""
        return self.config.dim

    @property
    def frames(self) -> int:
        """The total number of frames."""
        return sum(entry.length for _, entry in self.places.values())

    @property
    def dataset(self) -> str:
        """The path of the dataset that was embedded."""
        return str(self.manifest.get("dataset", self.source.dataset))

    @property
    def complete(self) -> bool:
        """Whether the whole dataset, or selection, is embedded."""
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

    @property
    def nbytes(self) -> int:
        """The size on disk of the vectors of the cameras in use, in bytes."""
        rows = sum(shard.frames for shard in self.shards.values())
        return rows * self.config.row_bytes * len(self.cameras)

    def entry(self, trajectory_id: str) -> Entry:
        """Return the entry of a trajectory: its length, instruction and fingerprint."""
        if trajectory_id not in self.places:
            raise StrapError(
                f"store '{self.path}' has no trajectory '{trajectory_id}': embed the dataset that "
                f"holds it (the store has {len(self)}"
                + (f", {self.ids[0]} to {self.ids[-1]})" if self.places else ")")
            )
        return self.places[trajectory_id][1]

    def __getitem__(self, trajectory_id: str) -> Array:
        """Return a trajectory's embeddings [t d], averaged over the cameras in use."""
        return average([self.of_camera(trajectory_id, camera) for camera in self.cameras])

    def of_camera(self, trajectory_id: str, camera: str) -> Array:
        """Return a trajectory's embeddings [t d] from one camera; verify them the first time."""
        entry = self.entry(trajectory_id)
        shard = self.shards[self.places[trajectory_id][0]]
        shard_camera = (shard.name, camera)
        if not {shard_camera, (*shard_camera, entry.id)} & self._checked:
            self._check(shard, camera, entry)
            self._checked.add((*shard_camera, entry.id))
        return self._map(shard, camera)[entry.offset : entry.stop]

    def shard_frames(self, shard: Shard) -> Array:
        """Return all rows [frames d] of a shard, averaged over the cameras in use.

        With one camera, it is a memory map. The rows of current entries are verified the first
        time.
        """
        maps = [self._map(shard, camera) for camera in self.cameras]
        for camera in self.cameras:
            if (shard.name, camera) not in self._checked:
                self._check_all(shard, camera)
                self._checked.add((shard.name, camera))
        return average(maps)

    def read_ahead(self, shard: Shard) -> None:
        """Read a shard's files into the page cache, so that the next reader need not wait."""
        buffer = bytearray(READ_BYTES)
        for camera in self.cameras:
            # Errors are ignored here: `shard_frames` reports them.
            with suppress(OSError), self._file(shard, camera).open("rb", buffering=0) as handle:
                while handle.readinto(buffer):
                    pass

    def release_pages(self, shard: Shard) -> None:
        """Release the mapped memory of a shard; its files stay in the page cache."""
        for camera in self.cameras:
            rows = self._maps.get((shard.name, camera))
            pages = getattr(rows, "_mmap", None)
            if pages is not None and hasattr(mmap, "MADV_DONTNEED"):
                pages.madvise(mmap.MADV_DONTNEED)

    def files(self, name: str) -> list[Path]:
        """Return the absolute paths of a shard's files, for the cameras in use."""
        shard = self.shards[name]
        return [self._file(shard, camera).resolve() for camera in self.cameras]

    def current_entries(self, shard: Shard) -> list[Entry]:
        """Return the shard's entries that are not replaced by a later shard."""
        return [e for e in shard.entries if self.places.get(e.id, ("", e))[0] == shard.name]

    def current_spans(self, shard: Shard) -> Iterator[list[Entry]]:
        """Yield the runs of current entries whose rows are contiguous."""
        span: list[Entry] = []
        for entry in self.current_entries(shard):
            if span and span[-1].stop != entry.offset:
                yield span
                span = []
            span.append(entry)
        if span:
            yield span

    def verify(self) -> list[str]:
        """Verify every byte; return a message for each damage."""
        found = (verify_shard(self.path, self.config, shard) for shard in self.shards.values())
        return [damage.message for damages in found for damage in damages]

    def _map(self, shard: Shard, camera: str) -> Array:
        key = (shard.name, camera)
        if key not in self._maps:
            self._maps[key] = load_rows(self._file(shard, camera), shard.frames, self.config)
        return self._maps[key]

    def _file(self, shard: Shard, camera: str) -> Path:
        return self.path / SHARDS / shard.files[self.config.cameras.index(camera)]

    def _check_all(self, shard: Shard, camera: str) -> None:
        """Verify all current entries, in threads; it takes a fraction of the time to read them."""
        current = self.current_entries(shard)
        with ThreadPoolExecutor(min(4, count_cpus())) as threads:
            list(threads.map(lambda entry: self._check(shard, camera, entry), current))

    def _check(self, shard: Shard, camera: str, entry: Entry) -> None:
        if not is_sound(self._map(shard, camera), entry, self.config.cameras.index(camera)):
            raise StrapError(damage_message(self.path, self.config, shard, camera, entry))


def average(rows: Sequence[Array]) -> Array:
    """Return the mean over cameras; a single camera's rows are returned unchanged."""
    if len(rows) == 1:
        return rows[0]
    return np.asarray(np.mean([np.asarray(r, np.float32) for r in rows], axis=0))


def is_store(path: Path) -> bool:
    """Return whether the folder is an embedding store, complete or not."""
    return (path / "store.json").is_file()


def open_store(path: str | Path, *, cameras: Sequence[str] | None = None) -> EmbeddingStore:
    """Open a store that `embed` wrote; vectors are memory-mapped, not read.

    Args:
        path: the store's folder.
        cameras: the cameras to average; by default all of the store's.
    """
    path = Path(path).expanduser()
    if not is_store(path):
        raise StrapError(
            f"'{path}' is not an embedding store (it has no store.json): make one with `strap "
            "embed DATASET --out STORE`"
        )
    config, source = read_identity(path)
    for camera in cameras or ():
        if camera not in config.cameras:
            raise StrapError(f"store '{path}': {unknown('camera', camera, config.cameras)}")
    shards = {file.stem: read_shard(file, config) for file in list_shards(path)}
    manifest = read_manifest(path)
    dropped = set(manifest.get("dropped", ()))
    if missing_shards(manifest, shards):
        manifest = {}  # then it is not complete
    places = {e.id: (s.name, e) for s in shards.values() for e in s.entries if e.id not in dropped}
    ordered = {key: places[key] for key in sorted(places, key=natural_sort_key)}
    chosen = tuple(cameras or config.cameras)
    return EmbeddingStore(path, config, shards, ordered, manifest, chosen, source)
