"""Sketches of a store: a short vector beside each frame's, from which most of it is ruled out.

    STORE/sketches/NAME/           NAME says how long sketches are and which cameras they average
      basis.npy, mean.npy          the directions; found once, from a sample of the store
      SHARD.npy                    [frames size] float16, rows as in the shard
      SHARD.errors.npy             [entries] float32: the largest rounding error in each trajectory
      SHARD.json                   written last: version, checksums of the rows it was made from

They are made by `strap store sketch`, used where they are there, and never change a result: a
trajectory of a shard without sketches (or with those of other rows) is looked at in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from strap.artifacts import (
    Progress,
    fingerprint_json,
    read_json,
    replacing,
    silent,
    write_json,
    writing,
)
from strap.dtw.sketches import SAMPLE, SIZES, Sketcher
from strap.dtw.types import Block
from strap.errors import StrapError
from strap.store import EmbeddingStore, Entry
from strap.store.layout import Shard
from strap.types import Array

VERSION = 1


@dataclass(frozen=True)
class StoreSketches:
    """The sketches of one store's shards, of one length."""

    store: EmbeddingStore
    folder: Path
    sketcher: Sketcher
    shards: tuple[str, ...]
    """those that have sketches"""

    def blocks(self, number: Callable[[str], int]) -> Iterator[Block]:
        """Sketches that lie end to end; `number` gives a trajectory's global index."""
        for name in self.shards:
            for run in self.store.live_runs(self.store.shards[name]):
                first, last = run[0].offset, run[-1].stop
                offsets = np.array([*(e.offset - first for e in run), last - first])
                ids = np.array([number(e.id) for e in run])
                yield Block(self._rows[name][first:last], offsets, ids)

    def fetch(self, key: str) -> Array:
        """A trajectory's sketches [m size]."""
        shard, entry = self._places[key]
        return self._rows[shard][entry.offset : entry.stop]

    @cached_property
    def _places(self) -> dict[str, tuple[str, Entry]]:
        entries = ((name, self.store.live_entries(self._shard(name))) for name in self.shards)
        return {entry.id: (name, entry) for name, own in entries for entry in own}

    @cached_property
    def _rows(self) -> dict[str, Array]:
        return {
            name: np.load(self.folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            for name in self.shards
        }

    def errors(self) -> Mapping[str, float]:
        """The largest rounding error of each sketched trajectory."""
        found = {}
        for name in self.shards:
            shard = self.store.shards[name]
            values = np.load(self.folder / f"{name}.errors.npy", allow_pickle=False)
            found.update({e.id: float(v) for e, v in zip(shard.entries, values, strict=True)})
        return found

    @property
    def missing(self) -> list[str]:
        """Trajectories without a sketch."""
        return [key for key in self.store.ids if key not in self._places]

    def _shard(self, name: str) -> Shard:
        return self.store.shards[name]


def sketch_store(
    store: EmbeddingStore, *, sizes: Sequence[int] = (), progress: Progress = silent
) -> list[StoreSketches]:
    """Make the sketches that a store still lacks.

    Args:
        store: the store; the cameras it was opened with are averaged.
        sizes: numbers in a sketch. Short ones are compared with everything, long ones with what
            those leave. By default 64 and 256, a twentieth and a fifth of a 1280-d vector; those
            that are no shorter than half a vector are left out.
        progress: called with (what, shards done, of how many).
    """
    for size in sizes:
        if not 2 <= size <= store.dim:
            raise StrapError(f"size is {size}: it must be at least 2 and at most {store.dim}")
    if not len(store):
        raise StrapError(f"store '{store.path}' is empty: embed a dataset into it first")
    shards = store.shards.values()
    sizes = sizes or [size for size in SIZES if 2 * size < store.dim] or [max(2, store.dim // 4)]
    longest: Sketcher | None = None
    for turn, size in enumerate(sorted(sizes, reverse=True)):
        folder = store.path / "sketches" / _name(store, size)
        with writing(folder):
            sketcher = _sketcher(store, folder, size, longest)
            longest = longest or sketcher
            for done, shard in enumerate(shards):
                progress("sketching", turn * len(shards) + done, len(sizes) * len(shards))
                if not _is_current(folder, shard):
                    _sketch_shard(store, folder, shard, sketcher)
    progress("sketching", len(sizes) * len(shards), len(sizes) * len(shards))
    return open_sketches(store)


def open_sketches(store: EmbeddingStore) -> list[StoreSketches]:
    """A store's sketches, the shortest first; where some are of other rows, without those."""
    folders = sorted(
        (store.path / "sketches").glob(f"*-{_cameras(store)}"),
        key=lambda folder: int(folder.name.split("-")[0]),
    )
    found = []
    for folder in folders:
        sketcher = _read_sketcher(folder, store.dim)
        if sketcher is not None:
            names = tuple(s.name for s in store.shards.values() if _is_current(folder, s))
            found.append(StoreSketches(store, folder, sketcher, names))
    return found


def _cameras(store: EmbeddingStore) -> str:
    return fingerprint_json(sorted(store.cameras))[:8]


def _name(store: EmbeddingStore, size: int) -> str:
    return f"{size}-{_cameras(store)}"


def _sketcher(store: EmbeddingStore, folder: Path, size: int, longer: Sketcher | None) -> Sketcher:
    """The directions of these sketches; where they are not known yet, the first of longer ones."""
    known = _read_sketcher(folder, store.dim)
    if known is not None:
        return known
    if longer is not None:
        sketcher = longer.shorter(size)
    else:
        every = max(1, len(store) * 16 // SAMPLE)
        sample = [_some(store[key]) for key in store.ids[::every]]
        sketcher = Sketcher.fit(np.concatenate(sample)[:SAMPLE], size=size)
    folder.mkdir(parents=True, exist_ok=True)
    _save(folder / "mean.npy", sketcher.mean)
    _save(folder / "basis.npy", sketcher.basis)
    return sketcher


def _some(frames: Array) -> Array:
    """Frames spread over a trajectory."""
    return np.asarray(frames[:: max(1, len(frames) // 16)])


def _read_sketcher(folder: Path, dim: int) -> Sketcher | None:
    if not (folder / "basis.npy").is_file():
        return None
    return _load_sketcher(folder, dim, *(_written(folder / f"{n}.npy") for n in ("mean", "basis")))


def _written(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_ino


@lru_cache(maxsize=8)
def _load_sketcher(folder: Path, dim: int, *_stamps: tuple[int, int]) -> Sketcher:
    """Kept between searches, as long as the files stay: its products take as long as a search."""
    mean = np.load(folder / "mean.npy", allow_pickle=False)
    basis = np.load(folder / "basis.npy", allow_pickle=False)
    if mean.shape != (dim,) or basis.ndim != 2 or len(basis) != dim:
        raise StrapError(
            f"sketches '{folder}' are of {basis.shape}, not of {dim} dimensions: delete that folder"
        )
    return Sketcher(mean, basis)


def _made_from(shard: Shard) -> dict[str, Any]:
    entries = [[e.id, e.offset, e.length, list(e.checksums)] for e in shard.entries]
    return {"version": VERSION, "rows": fingerprint_json(entries)}


def _is_current(folder: Path, shard: Shard) -> bool:
    note = folder / f"{shard.name}.json"
    return note.is_file() and read_json(note) == _made_from(shard)


def _sketch_shard(store: EmbeddingStore, folder: Path, shard: Shard, sketcher: Sketcher) -> None:
    rows, errors = sketcher(store.shard_frames(shard))
    largest = [errors[e.offset : e.stop].max() for e in shard.entries]
    _save(folder / f"{shard.name}.npy", rows)
    _save(folder / f"{shard.name}.errors.npy", np.array(largest, np.float32))
    write_json(folder / f"{shard.name}.json", _made_from(shard))


def _save(path: Path, array: Array) -> None:
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.save(file, array, allow_pickle=False)
