"""Sketches of a store: a short vector beside each frame's, from which most of it is ruled out.

    STORE/sketches/NAME/           "64x4-CAMERAS": 64 numbers for 4 frames, of averaged cameras
      basis.npy, mean.npy          the directions; found once, from a sample of the store
      SHARD.npy                    [rows size] int16, trajectories as in the shard
      SHARD.scales.npy             [rows 3] float32: what an integer is worth, how far what the
                                   sketch stands for may be from it, its squared norm
      SHARD.json                   written last: version, checksums of the rows it was made from

They are made by `strap store sketch`, used where they are there, and never change a result: a
trajectory of a shard without sketches (or with those of other rows) is looked at in full.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

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
from strap.dtw.sketches import SAMPLE, Sketcher
from strap.dtw.types import Block
from strap.errors import StrapError
from strap.store import EmbeddingStore
from strap.store.layout import Shard
from strap.types import Array

VERSION = 2
LONGEST = 256  # numbers in a usual sketch
MOST_FRAMES = 6  # that a sketch stands for: the ways through a block double with each


class Kind(NamedTuple):
    """How long sketches are, and how many frames each stands for."""

    size: int
    every: int = 1

    def __str__(self) -> str:
        return f"{self.size}x{self.every}"

    @classmethod
    def parse(cls, text: str) -> Kind:
        """From `64x4`, or `64`."""
        try:
            return cls(*map(int, text.split("x", 1)))
        except ValueError as error:
            raise StrapError(
                f"'{text}' is no kind of sketch: give numbers in a sketch, or numbers and the "
                "frames that it stands for, as in 64x4"
            ) from error


def usual_kinds(dim: int) -> list[Kind]:
    """Those that pay for vectors of so many numbers: a fifth of a 1280-d one, and less."""
    long = max(2, min(LONGEST, 2 ** ((dim // 3).bit_length() - 1 if dim >= 3 else 1)))
    return [Kind(max(2, long // 4), 4), Kind(long, 2), Kind(long)]


@dataclass(frozen=True)
class StoreSketches:
    """The sketches of one store's shards, of one length."""

    store: EmbeddingStore
    folder: Path
    sketcher: Sketcher
    shards: tuple[str, ...]
    """those that have sketches"""

    def blocks(self, number: Callable[[str], int]) -> Iterator[tuple[Block, Array]]:
        """Sketches that lie end to end, and their scales; `number` gives a global index."""
        for name in self.shards:
            rows, scales = self._rows[name]
            for run in self.store.live_runs(self.store.shards[name]):
                borders = [self._places[run[0].id][1], *(self._places[e.id][2] for e in run)]
                here = slice(borders[0], borders[-1])
                ids = np.array([number(e.id) for e in run])
                yield Block(rows[here], np.array(borders) - borders[0], ids), scales[here]

    def fetch(self, key: str) -> tuple[Array, Array]:
        """A trajectory's sketches [m size], and their scales [m 3]."""
        shard, first, last = self._places[key]
        rows, scales = self._rows[shard]
        return rows[first:last], scales[first:last]

    @cached_property
    def _places(self) -> dict[str, tuple[str, int, int]]:
        """Trajectory id -> shard, first row, row after the last; of live ones."""
        found = {}
        for name in self.shards:
            shard = self.store.shards[name]
            ends = np.cumsum([e.length // self.sketcher.every for e in shard.entries]).tolist()
            places = {e.offset: p for e, p in zip(shard.entries, pairwise([0, *ends]), strict=True)}
            for entry in self.store.live_entries(shard):
                found[entry.id] = name, *places[entry.offset]
        return found

    @cached_property
    def _rows(self) -> dict[str, tuple[Array, Array]]:
        return {
            name: (
                _mapped(self.folder / f"{name}.npy"),
                _mapped(self.folder / f"{name}.scales.npy"),
            )
            for name in self.shards
        }

    @property
    def missing(self) -> list[str]:
        """Trajectories without a sketch."""
        return [key for key in self.store.ids if key not in self._places]


def sketch_store(
    store: EmbeddingStore,
    *,
    kinds: Sequence[Kind | tuple[int, int]] = (),
    progress: Progress = silent,
) -> list[StoreSketches]:
    """Make the sketches that a store still lacks.

    Args:
        store: the store; the cameras it was opened with are averaged.
        kinds: numbers in a sketch, and frames it stands for. By default 64 numbers for 4 frames,
            which are compared with everything, then 256 for 2 frames and 256 for one, with what
            is left each time; fewer numbers for vectors of less than 768.
        progress: called with (what, shards done, of how many).
    """
    wanted = [Kind(*kind) for kind in kinds] or usual_kinds(store.dim)
    for kind in wanted:
        if not 2 <= kind.size <= store.dim:
            raise StrapError(f"size is {kind.size}: it must be at least 2 and at most {store.dim}")
        if not 1 <= kind.every <= MOST_FRAMES:
            raise StrapError(
                f"a sketch can't stand for {kind.every} frames: at least 1, at most {MOST_FRAMES}"
            )
    if not len(store):
        raise StrapError(f"store '{store.path}' is empty: embed a dataset into it first")
    _forget_old(store)
    shards = store.shards.values()
    longest: Sketcher | None = None
    for turn, kind in enumerate(sorted(wanted, reverse=True)):
        folder = store.path / "sketches" / f"{kind}-{_cameras(store)}"
        with writing(folder):
            sketcher = _sketcher(store, folder, kind, longest)
            longest = longest or sketcher
            for done, shard in enumerate(shards):
                progress("sketching", turn * len(shards) + done, len(wanted) * len(shards))
                if not _is_current(folder, shard.name, _made_from(shard)):
                    _sketch_shard(store, folder, shard, sketcher)
    progress("sketching", len(wanted) * len(shards), len(wanted) * len(shards))
    return open_sketches(store)


def open_sketches(store: EmbeddingStore) -> list[StoreSketches]:
    """A store's sketches, those compared in the least time first; without those of other rows."""
    made = {shard.name: _made_from(shard) for shard in store.shards.values()}
    found = []
    for folder in (store.path / "sketches").glob(f"*x*-{_cameras(store)}"):
        sketcher = _read_sketcher(folder, store.dim)
        if sketcher is not None:
            names = tuple(name for name, own in made.items() if _is_current(folder, name, own))
            found.append(StoreSketches(store, folder, sketcher, names))
    return sorted(found, key=lambda own: own.sketcher.size / own.sketcher.every**2)


def _forget_old(store: EmbeddingStore) -> None:
    """Remove what earlier versions wrote: kinds without their number of frames."""
    for folder in (store.path / "sketches").glob("*-*"):
        if folder.is_dir() and folder.name.split("-")[0].isdigit():
            shutil.rmtree(folder)


def _cameras(store: EmbeddingStore) -> str:
    return fingerprint_json(sorted(store.cameras))[:8]


def _sketcher(store: EmbeddingStore, folder: Path, kind: Kind, longer: Sketcher | None) -> Sketcher:
    """The directions of these sketches; where they are not known yet, the first of longer ones."""
    known = _read_sketcher(folder, store.dim)
    if known is not None:
        return known
    if longer is not None:
        sketcher = longer.shorter(*kind)
    else:
        each = max(1, len(store) * 16 // SAMPLE)
        sample = np.concatenate([_some(store[key]) for key in store.ids[::each]])[:SAMPLE]
        sketcher = Sketcher.fit(sample, size=kind.size, every=kind.every)
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
    return Sketcher(mean, basis, Kind.parse(folder.name.split("-")[0]).every)


def _made_from(shard: Shard) -> Mapping[str, object]:
    entries = [[e.id, e.offset, e.length, list(e.checksums)] for e in shard.entries]
    return {"version": VERSION, "rows": fingerprint_json(entries)}


def _is_current(folder: Path, shard: str, made_from: Mapping[str, object]) -> bool:
    note = folder / f"{shard}.json"
    return note.is_file() and read_json(note) == made_from


def _sketch_shard(store: EmbeddingStore, folder: Path, shard: Shard, sketcher: Sketcher) -> None:
    frames = store.shard_frames(shard)
    made = [sketcher(frames[entry.offset : entry.stop]) for entry in shard.entries]
    rows, scales = (np.concatenate(parts) for parts in zip(*made, strict=True))
    _save(folder / f"{shard.name}.npy", rows)
    _save(folder / f"{shard.name}.scales.npy", scales)
    write_json(folder / f"{shard.name}.json", _made_from(shard))


def _mapped(path: Path) -> Array:
    """A file's array, as a plain one: slices of `np.memmap` take longer than a small search."""
    # Private and writable, though nobody writes: compiled loops take other arrays as another type.
    return np.asarray(np.load(path, mmap_mode="c", allow_pickle=False))


def _save(path: Path, array: Array) -> None:
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.save(file, array, allow_pickle=False)
