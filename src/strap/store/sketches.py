"""Sketches of a store: short vectors with which a search rules out most trajectories.

    STORE/sketches/NAME/           "64x4-CAMERAS": 64 numbers for 4 frames, of averaged cameras
      basis.npy, mean.npy          the directions, fitted once to a sample of the store
      SHARD.npy                    [rows size] int16, trajectories in the shard's order
      SHARD.scales.npy             [rows 3] float32: scale of the integers, radius around the
                                   sketch of what it stands for, its squared norm
      SHARD.json                   version, checksums of the shard, the directions and both
                                   files; written last

`strap store sketch` makes them. A search uses them if every trajectory has valid ones; they never
change a result. Sketches of other rows or of damaged directions are not valid.
"""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from strap.atomic import explain_write_errors, read_json, write_array, write_json
from strap.dtw.sketches.sketcher import SAMPLE_FRAMES, SketchBlock, Sketcher
from strap.dtw.types import Ints
from strap.errors import StrapError, printable
from strap.progress import Progress, silent
from strap.provenance import fingerprint_json
from strap.store.layout import Entry, Shard
from strap.store.reading import EmbeddingStore
from strap.types import Array

SKETCH_VERSION = 3
MIDDLE_SIZE, LONGEST_SIZE = 256, 512  # the largest sizes of the usual kinds
SIZE_STEP = 128  # numbers that are multiplied together
MAPPED_BYTES = 2**31  # smaller stores keep their sketches mapped after a search
SUFFIXES, DTYPES = ("", ".scales"), ("int16", "float32")  # of a shard's files
MAX_EVERY = 6  # frames per sketch, at most: each one doubles the work to compute a radius


_opened: dict[int, tuple[Mapping[Path, tuple[int, int]], list[StoreSketches]]] = {}
"""id(store), while the store is in use -> its sketches, and the times of their files"""


class SketchKind(NamedTuple):
    """The size of sketches, and the number of frames that each one stands for."""

    size: int
    every: int = 1

    def __str__(self) -> str:
        return f"{self.size}x{self.every}"

    @classmethod
    def parse(cls, text: str) -> SketchKind:
        """Return the kind with a name such as `64x4` or `64`."""
        try:
            return cls(*map(int, text.split("x", 1)))
        except ValueError as error:
            raise StrapError(
                f"'{text}' is not a kind of sketch: give its size in numbers, as in 64, or its "
                "size and the number of frames that it summarises, as in 64x4"
            ) from error


def usual_kinds(dim: int) -> list[SketchKind]:
    """Return the three usual kinds for vectors of `dim` numbers; the longest has about 0.4·dim."""
    middle = max(2, min(MIDDLE_SIZE, 2 ** ((dim // 3).bit_length() - 1 if dim >= 3 else 1)))
    long = max(middle, min(LONGEST_SIZE, round(0.4 * dim / SIZE_STEP) * SIZE_STEP))
    return [SketchKind(max(2, middle // 4), 4), SketchKind(middle, 2), SketchKind(long)]


@dataclass(frozen=True, eq=False)
class ShardSpan:
    """Current trajectories that are contiguous in a shard."""

    shard: str
    entries: Sequence[Entry]
    first: int
    """the first one's index among the shard's entries"""


@dataclass(frozen=True, eq=False)
class StoreSketches:
    """The sketches of one kind of a store."""

    folder: Path
    sketcher: Sketcher
    shards: Mapping[str, Shard]
    """all shards of the store"""
    sketched: tuple[str, ...]
    """names of the shards that have valid sketches"""
    spans: Sequence[ShardSpan]
    """the spans of all shards of the store"""
    stays_mapped: bool
    _mapped: dict[str, tuple[Array, Array, Ints]] = field(default_factory=dict)
    _checked: set[str] = field(default_factory=set)
    """shards whose checksums were verified"""

    def blocks(self, ids: Sequence[Ints]) -> Iterator[SketchBlock]:
        """Yield the sketches of each span; `ids` are the global indices of each span.

        All shards must have valid sketches.
        """
        files = self._mapped if self.stays_mapped else {}
        for span, indices in zip(self.spans, ids, strict=True):
            if span.shard not in files:
                files[span.shard] = self._open(span.shard)
            rows, scales, borders = files[span.shard]
            offsets = borders[span.first : span.first + len(span.entries) + 1]
            part = slice(int(offsets[0]), int(offsets[-1]))
            yield SketchBlock(rows[part], scales[part], offsets - offsets[0], indices)

    def _open(self, name: str) -> tuple[Array, Array, Ints]:
        """Return a shard's sketches, their scales, and the first row of each trajectory."""
        lengths = [0, *(entry.length for entry in self.shards[name].entries)]
        borders = np.cumsum(np.array(lengths) // self.sketcher.every)
        files = [self.folder / f"{name}{suffix}.npy" for suffix in SUFFIXES]
        widths = (self.sketcher.size, 3)
        parts = [
            _map_file(f, (borders[-1], w), d) for f, w, d in zip(files, widths, DTYPES, strict=True)
        ]
        if name not in self._checked:
            known = read_json(self.folder / f"{name}.json")["checksums"]
            for file, part, checksum in zip(files, parts, known, strict=True):
                if _checksum(part) != checksum:
                    raise StrapError(_damage_message(file, "its checksum does not fit"))
            self._checked.add(name)
        return parts[0], parts[1], borders

    @property
    def missing(self) -> list[str]:
        """The ids of the trajectories without valid sketches."""
        return [e.id for s in self.spans if s.shard not in self.sketched for e in s.entries]


def sketch_store(
    store: EmbeddingStore,
    *,
    kinds: Sequence[SketchKind | tuple[int, int]] = (),
    progress: Progress = silent,
) -> list[StoreSketches]:
    """Make the sketches that a store lacks.

    Args:
        store: the store; sketches are of the mean over the cameras with which it was opened.
        kinds: (size, frames per sketch) of each kind. By default 64 numbers for 4 frames, which
            bound all trajectories, then 256 for 2 frames and 512 for one, which bound those that
            remain each time; fewer numbers for vectors of less than 1,280.
        progress: called with (what, shards done, total).
    """
    wanted = [SketchKind(*kind) for kind in kinds] or usual_kinds(store.dim)
    for kind in wanted:
        if not 2 <= kind.size <= store.dim:
            raise StrapError(f"size is {kind.size}: it must be at least 2 and at most {store.dim}")
        if not 1 <= kind.every <= MAX_EVERY:
            raise StrapError(
                f"a sketch cannot summarise {kind.every} frames: give 1 to {MAX_EVERY}"
            )
    if not len(store):
        raise StrapError(f"store '{store.path}' is empty: embed a dataset into it first")
    shards = store.shards.values()
    longest: Sketcher | None = None
    for turn, kind in enumerate(sorted(wanted, reverse=True)):
        folder = store.path / "sketches" / f"{kind}-{_hash_cameras(store)}"
        with explain_write_errors(folder):
            sketcher = _find_sketcher(store, folder, kind, longest)
            longest, directions = longest or sketcher, _checksum_directions(sketcher)
            for done, shard in enumerate(shards):
                progress("sketching", turn * len(shards) + done, len(wanted) * len(shards))
                if not _is_current(folder, shard.name, _identify_rows(shard), directions):
                    _sketch_shard(store, folder, shard, sketcher)
    progress("sketching", len(wanted) * len(shards), len(wanted) * len(shards))
    return open_sketches(store)


def open_sketches(store: EmbeddingStore) -> list[StoreSketches]:
    """Return the valid sketches of a store, the kind that is compared fastest first.

    They are opened again only if their files have changed.
    """
    stamps = {
        file: _stamp_file(file)
        for file in (store.path / "sketches").glob(f"*x*-{_hash_cameras(store)}/*")
        if file.suffix == ".json" or file.name in ("basis.npy", "mean.npy")
    }
    if id(store) not in _opened:
        weakref.finalize(store, _opened.pop, id(store), None)
    elif _opened[id(store)][0] == stamps:
        return list(_opened[id(store)][1])
    _opened[id(store)] = stamps, _read_sketches(store)
    return list(_opened[id(store)][1])


def _read_sketches(store: EmbeddingStore) -> list[StoreSketches]:
    rows = {shard.name: _identify_rows(shard) for shard in store.shards.values()}
    spans = list(_list_spans(store))
    found = []
    for folder in (store.path / "sketches").glob(f"*x*-{_hash_cameras(store)}"):
        sketcher = _read_sketcher(folder, store.dim)
        if sketcher is not None:
            directions = _checksum_directions(sketcher)
            names = tuple(n for n, id_ in rows.items() if _is_current(folder, n, id_, directions))
            stays_mapped = store.nbytes <= MAPPED_BYTES
            kind = StoreSketches(folder, sketcher, store.shards, names, spans, stays_mapped)
            found.append(kind)
    return sorted(found, key=lambda kind: kind.sketcher.size / kind.sketcher.every**2)


def _list_spans(store: EmbeddingStore) -> Iterator[ShardSpan]:
    for name, shard in store.shards.items():
        places = {entry.offset: place for place, entry in enumerate(shard.entries)}
        for entries in store.current_spans(shard):
            yield ShardSpan(name, entries, places[entries[0].offset])


def _hash_cameras(store: EmbeddingStore) -> str:
    return fingerprint_json(sorted(store.cameras))[:8]


def _find_sketcher(
    store: EmbeddingStore, folder: Path, kind: SketchKind, longer: Sketcher | None
) -> Sketcher:
    """Return the folder's sketcher; if it has none, shorten a longer one, or fit a new one."""
    known = _read_sketcher(folder, store.dim)
    if known is not None:
        return known
    if longer is not None:
        sketcher = longer.shorter(*kind)
    else:
        each = max(1, len(store) * 16 // SAMPLE_FRAMES)
        sample = np.concatenate([_spread_frames(store[key]) for key in store.ids[::each]])[
            :SAMPLE_FRAMES
        ]
        sketcher = Sketcher.fit(sample, size=kind.size, every=kind.every)
    folder.mkdir(parents=True, exist_ok=True)
    write_array(folder / "mean.npy", sketcher.mean)
    write_array(folder / "basis.npy", sketcher.basis)
    return sketcher


def _spread_frames(frames: Array) -> Array:
    """Return 16 to 31 frames, evenly spaced, or all if there are fewer."""
    return np.asarray(frames[:: max(1, len(frames) // 16)])


def _read_sketcher(folder: Path, dim: int) -> Sketcher | None:
    if not (folder / "basis.npy").is_file():
        return None
    stamps = (_stamp_file(folder / f"{name}.npy") for name in ("mean", "basis"))
    return _load_sketcher(folder, dim, *stamps)


def _stamp_file(path: Path) -> tuple[int, int]:
    status = path.lstat()  # of a link itself, whose target might not exist
    return status.st_mtime_ns, status.st_ino


@lru_cache(maxsize=8)
def _load_sketcher(folder: Path, dim: int, *_stamps: tuple[int, int]) -> Sketcher | None:
    """Load a sketcher; return None if its files are damaged.

    The cache also keeps the sketcher's `orthonormality_error`, which takes as long as a search.
    """
    try:
        # Mapped, so that a forged header with a huge shape allocates no memory.
        mean, basis = (
            np.array(np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False))
            for name in ("mean", "basis")
        )
    except Exception:  # NumPy's header parser can raise anything
        return None
    if mean.shape != (dim,) or basis.ndim != 2 or len(basis) != dim:
        raise StrapError(
            f"sketches '{folder}' are of {basis.shape}, not of {dim} dimensions: delete that folder"
        )
    if mean.dtype != np.float64 or basis.dtype != np.float32:
        return None
    return Sketcher(mean, basis, SketchKind.parse(folder.name.split("-")[0]).every)


def _identify_rows(shard: Shard) -> Mapping[str, object]:
    """Return the part of a shard's note that says from which rows its sketches are."""
    entries = [[e.id, e.offset, e.length, list(e.checksums)] for e in shard.entries]
    return {"version": SKETCH_VERSION, "rows": fingerprint_json(entries)}


def _checksum_directions(sketcher: Sketcher) -> int:
    return _checksum(sketcher.basis, _checksum(sketcher.mean))


def _is_current(folder: Path, shard: str, rows: Mapping[str, object], directions: int) -> bool:
    """Return whether a shard's sketches are of its rows and of directions with this checksum."""
    try:
        note = read_json(folder / f"{shard}.json")
    except StrapError:
        return False
    expected = {**rows, "directions": directions}
    if not isinstance(note, dict) or {key: note.get(key) for key in expected} != expected:
        return False
    checksums = note.get("checksums")
    return isinstance(checksums, list) and list(map(type, checksums)) == [int] * len(SUFFIXES)


def _sketch_shard(store: EmbeddingStore, folder: Path, shard: Shard, sketcher: Sketcher) -> None:
    frames = store.shard_frames(shard)
    made = [sketcher(frames[entry.offset : entry.stop]) for entry in shard.entries]
    rows, scales = (np.concatenate(parts) for parts in zip(*made, strict=True))
    checksums = []
    for suffix, part in zip(SUFFIXES, (rows, scales), strict=True):
        write_array(folder / f"{shard.name}{suffix}.npy", part)
        checksums.append(_checksum(part))
    directions = _checksum_directions(sketcher)
    note = {**_identify_rows(shard), "directions": directions, "checksums": checksums}
    write_json(folder / f"{shard.name}.json", note)


def _map_file(path: Path, shape: tuple[int, ...], dtype: str) -> Array:
    """Return a memory-mapped file as a plain array: slicing an `np.memmap` is too slow."""
    try:
        # Copy-on-write, since numba would compile again for read-only arrays; nobody writes.
        array = np.asarray(np.load(path, mmap_mode="c", allow_pickle=False))
    except Exception as error:  # NumPy's header parser can raise anything
        raise StrapError(_damage_message(path, f"{type(error).__name__}: {error}")) from error
    if array.shape != shape or array.dtype != dtype:
        raise StrapError(_damage_message(path, f"it holds {array.dtype} {array.shape}"))
    return array


def _checksum(array: Array, before: int = 0) -> int:
    return zlib.crc32(np.ascontiguousarray(array).data, before)


def _damage_message(path: Path, why: str) -> str:
    return (
        f"sketches '{path}' are damaged ({printable(why[:200])}): delete the folder "
        f"'{path.parent}' (searches return the same matches without it) and run `strap store "
        "sketch` again"
    )
