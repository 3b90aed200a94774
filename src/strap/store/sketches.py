"""Sketches of a store: a short vector beside each frame's, from which most of it is ruled out.

    STORE/sketches/NAME/           "64x4-CAMERAS": 64 numbers for 4 frames, of averaged cameras
      basis.npy, mean.npy          the directions; found once, from a sample of the store
      SHARD.npy                    [rows size] int16, trajectories as in the shard
      SHARD.scales.npy             [rows 3] float32: scale of the integers, how far what the
                                   sketch stands for may be from it, its squared norm
      SHARD.json                   written last: version, what it was made from, and CRC-32 of the
                                   numbers in both files

They are made by `strap store sketch`, used where they are there, and never change a result: a
trajectory of a shard without sketches (or with those of other rows, or along damaged directions) is
looked at in full.
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

from strap.atomic import read_json, write_array, write_json, writing
from strap.dtw.sketches.sketcher import SAMPLE_FRAMES, SketchBlock, Sketcher
from strap.dtw.types import Ints
from strap.errors import StrapError, printable
from strap.progress import Progress, silent
from strap.provenance import fingerprint_json
from strap.store.layout import Entry, Shard
from strap.store.reading import EmbeddingStore
from strap.types import Array

SKETCH_VERSION = 3
MIDDLE_SIZE, LONGEST_SIZE = 256, 512  # numbers in usual sketches, at most
SIZE_STEP = 128  # numbers that are multiplied together
MAPPED_BYTES = 2**31  # of a store whose sketches stay mapped after a search
ENDS, DTYPES = ("", ".scales"), ("int16", "float32")  # of a shard's files
MAX_EVERY = 6  # frames that a sketch stands for: the ways through a block double with each


_opened: dict[int, tuple[Mapping[Path, tuple[int, int]], list[StoreSketches]]] = {}
"""by the id of a store, as long as that is in use: when files were written, and what they hold"""


class Kind(NamedTuple):
    """How long sketches are, and how many frames each stands for."""

    size: int
    every: int = 1

    def __str__(self) -> str:
        return f"{self.size}x{self.every}"

    @classmethod
    def parse(cls, text: str) -> Kind:
        """Return the kind that `64x4`, or `64`, names."""
        try:
            return cls(*map(int, text.split("x", 1)))
        except ValueError as error:
            raise StrapError(
                f"'{text}' is no kind of sketch: give numbers in a sketch, or numbers and the "
                "frames that it stands for, as in 64x4"
            ) from error


def usual_kinds(dim: int) -> list[Kind]:
    """Return the kinds that pay for vectors of so many numbers: two fifths of 1280, and less."""
    middle = max(2, min(MIDDLE_SIZE, 2 ** ((dim // 3).bit_length() - 1 if dim >= 3 else 1)))
    long = max(middle, min(LONGEST_SIZE, round(0.4 * dim / SIZE_STEP) * SIZE_STEP))
    return [Kind(max(2, middle // 4), 4), Kind(middle, 2), Kind(long)]


@dataclass(frozen=True, eq=False)
class ShardSpan:
    """Trajectories in use that lie end to end in a shard."""

    shard: str
    entries: Sequence[Entry]
    first: int
    """entries of the shard before them"""


@dataclass(frozen=True, eq=False)
class StoreSketches:
    """The sketches of one store's shards, of one kind."""

    folder: Path
    sketcher: Sketcher
    shards: Mapping[str, Shard]
    """all of the store's"""
    sketched: tuple[str, ...]
    """names of the shards that have sketches"""
    spans: Sequence[ShardSpan]
    """all of the store's, whichever have sketches"""
    stays_mapped: bool
    _mapped: dict[str, tuple[Array, Array, Ints]] = field(default_factory=dict)
    _checked: set[str] = field(default_factory=set)
    """shards whose sketches have the checksums they were written with"""

    def blocks(self, ids: Sequence[Ints]) -> Iterator[SketchBlock]:
        """Yield sketches that lie end to end; `ids` are the global indices of each span.

        All shards must have sketches.
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
        """Return a shard's sketches, their scales, and where each trajectory begins."""
        lengths = [0, *(entry.length for entry in self.shards[name].entries)]
        borders = np.cumsum(np.array(lengths) // self.sketcher.every)
        files = [self.folder / f"{name}{end}.npy" for end in ENDS]
        widths = (self.sketcher.size, 3)
        parts = [
            _mapped(f, (borders[-1], w), d) for f, w, d in zip(files, widths, DTYPES, strict=True)
        ]
        if name not in self._checked:
            known = read_json(self.folder / f"{name}.json")["checksums"]
            for file, part, checksum in zip(files, parts, known, strict=True):
                if _checksum(part) != checksum:
                    raise StrapError(_damaged(file, "its checksum does not fit"))
            self._checked.add(name)
        return parts[0], parts[1], borders

    @property
    def missing(self) -> list[str]:
        """Trajectories without a sketch."""
        return [e.id for s in self.spans if s.shard not in self.sketched for e in s.entries]


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
            which are compared with everything, then 256 for 2 frames and 512 for one, with what
            is left each time; fewer numbers for vectors of less than 1,280.
        progress: called with (what, shards done, of how many).
    """
    wanted = [Kind(*kind) for kind in kinds] or usual_kinds(store.dim)
    for kind in wanted:
        if not 2 <= kind.size <= store.dim:
            raise StrapError(f"size is {kind.size}: it must be at least 2 and at most {store.dim}")
        if not 1 <= kind.every <= MAX_EVERY:
            raise StrapError(
                f"a sketch can't stand for {kind.every} frames: at least 1, at most {MAX_EVERY}"
            )
    if not len(store):
        raise StrapError(f"store '{store.path}' is empty: embed a dataset into it first")
    shards = store.shards.values()
    longest: Sketcher | None = None
    for turn, kind in enumerate(sorted(wanted, reverse=True)):
        folder = store.path / "sketches" / f"{kind}-{_cameras(store)}"
        with writing(folder):
            sketcher = _sketcher(store, folder, kind, longest)
            longest, along = longest or sketcher, _checksum_directions(sketcher)
            for done, shard in enumerate(shards):
                progress("sketching", turn * len(shards) + done, len(wanted) * len(shards))
                if not _is_current(folder, shard.name, _made_from(shard), along):
                    _sketch_shard(store, folder, shard, sketcher)
    progress("sketching", len(wanted) * len(shards), len(wanted) * len(shards))
    return open_sketches(store)


def open_sketches(store: EmbeddingStore) -> list[StoreSketches]:
    """Return a store's sketches, those compared in the least time first; of its rows alone.

    They are opened once for a store, as long as their files stay as they are.
    """
    stamps = {
        file: _written(file)
        for file in (store.path / "sketches").glob(f"*x*-{_cameras(store)}/*")
        if file.suffix == ".json" or file.name in ("basis.npy", "mean.npy")
    }
    if id(store) not in _opened:
        weakref.finalize(store, _opened.pop, id(store), None)
    elif _opened[id(store)][0] == stamps:
        return list(_opened[id(store)][1])
    _opened[id(store)] = stamps, _read_sketches(store)
    return list(_opened[id(store)][1])


def _read_sketches(store: EmbeddingStore) -> list[StoreSketches]:
    made = {shard.name: _made_from(shard) for shard in store.shards.values()}
    spans = list(_list_spans(store))
    found = []
    for folder in (store.path / "sketches").glob(f"*x*-{_cameras(store)}"):
        sketcher = _read_sketcher(folder, store.dim)
        if sketcher is not None:
            along = _checksum_directions(sketcher)
            names = tuple(n for n, note in made.items() if _is_current(folder, n, note, along))
            stays_mapped = store.nbytes <= MAPPED_BYTES
            kind = StoreSketches(folder, sketcher, store.shards, names, spans, stays_mapped)
            found.append(kind)
    return sorted(found, key=lambda kind: kind.sketcher.size / kind.sketcher.every**2)


def _list_spans(store: EmbeddingStore) -> Iterator[ShardSpan]:
    for name, shard in store.shards.items():
        places = {entry.offset: place for place, entry in enumerate(shard.entries)}
        for entries in store.current_spans(shard):
            yield ShardSpan(name, entries, places[entries[0].offset])


def _cameras(store: EmbeddingStore) -> str:
    return fingerprint_json(sorted(store.cameras))[:8]


def _sketcher(store: EmbeddingStore, folder: Path, kind: Kind, longer: Sketcher | None) -> Sketcher:
    """Return the directions of these sketches; where none are known, the first of longer ones."""
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
    """Return frames spread over a trajectory."""
    return np.asarray(frames[:: max(1, len(frames) // 16)])


def _read_sketcher(folder: Path, dim: int) -> Sketcher | None:
    if not (folder / "basis.npy").is_file():
        return None
    return _load_sketcher(folder, dim, *(_written(folder / f"{n}.npy") for n in ("mean", "basis")))


def _written(path: Path) -> tuple[int, int]:
    status = path.lstat()  # not of what a link leads to: that may be nowhere
    return status.st_mtime_ns, status.st_ino


@lru_cache(maxsize=8)
def _load_sketcher(folder: Path, dim: int, *_stamps: tuple[int, int]) -> Sketcher | None:
    """Load directions, kept between searches: their products take as long as a search.

    None where they are no directions: then there are no sketches.
    """
    try:
        # Mapped, so that a header that claims more than there is takes no memory.
        mean, basis = (
            np.array(np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False))
            for name in ("mean", "basis")
        )
    except Exception:  # NumPy lets whatever its parser meets escape
        return None
    if mean.shape != (dim,) or basis.ndim != 2 or len(basis) != dim:
        raise StrapError(
            f"sketches '{folder}' are of {basis.shape}, not of {dim} dimensions: delete that folder"
        )
    if mean.dtype != np.float64 or basis.dtype != np.float32:
        return None
    return Sketcher(mean, basis, Kind.parse(folder.name.split("-")[0]).every)


def _made_from(shard: Shard) -> Mapping[str, object]:
    entries = [[e.id, e.offset, e.length, list(e.checksums)] for e in shard.entries]
    return {"version": SKETCH_VERSION, "rows": fingerprint_json(entries)}


def _checksum_directions(sketcher: Sketcher) -> int:
    return _checksum(sketcher.basis, _checksum(sketcher.mean))


def _is_current(folder: Path, shard: str, made_from: Mapping[str, object], along: int) -> bool:
    """Return whether a shard's sketches are of its rows, along the directions of that checksum."""
    try:
        note = read_json(folder / f"{shard}.json")
    except StrapError:
        return False
    expected = {**made_from, "directions": along}
    if not isinstance(note, dict) or {key: note.get(key) for key in expected} != expected:
        return False
    checksums = note.get("checksums")
    return isinstance(checksums, list) and list(map(type, checksums)) == [int] * len(ENDS)


def _sketch_shard(store: EmbeddingStore, folder: Path, shard: Shard, sketcher: Sketcher) -> None:
    frames = store.shard_frames(shard)
    made = [sketcher(frames[entry.offset : entry.stop]) for entry in shard.entries]
    rows, scales = (np.concatenate(parts) for parts in zip(*made, strict=True))
    checksums = []
    for end, part in zip(ENDS, (rows, scales), strict=True):
        write_array(folder / f"{shard.name}{end}.npy", part)
        checksums.append(_checksum(part))
    along = _checksum_directions(sketcher)
    note = {**_made_from(shard), "directions": along, "checksums": checksums}
    write_json(folder / f"{shard.name}.json", note)


def _mapped(path: Path, shape: tuple[int, ...], dtype: str) -> Array:
    """Return a file's array, as a plain one: slices of `np.memmap` take longer than a search."""
    try:
        # Private and writable, though nobody writes: compiled loops take others as another type.
        array = np.asarray(np.load(path, mmap_mode="c", allow_pickle=False))
    except Exception as error:  # NumPy lets whatever its parser meets escape
        raise StrapError(_damaged(path, f"{type(error).__name__}: {error}")) from error
    if array.shape != shape or array.dtype != dtype:
        raise StrapError(_damaged(path, f"it holds {array.dtype} {array.shape}"))
    return array


def _checksum(array: Array, before: int = 0) -> int:
    return zlib.crc32(np.ascontiguousarray(array).data, before)


def _damaged(path: Path, why: str) -> str:
    return (
        f"sketches '{path}' are damaged ({printable(why[:200])}): delete the folder "
        f"'{path.parent}', without which searches find the same, and run `strap store sketch` again"
    )
