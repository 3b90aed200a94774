"""An unfinished shard: rows are appended, and a journal records to which trajectories they belong.

    STORE/partial/000007/
      lock         held by its writer; if nobody holds it, the writer is dead
      journal      claims, begun trajectories, rows with their checksums, complete trajectories
      CAMERA.npy   128 bytes of header, then rows

A group of trajectories is begun together; its rows arrive camera by camera, any number at a time:

    row        0 ....... 90 ........ 170 ...... 260
    group      | demo_0  | demo_1    | demo_2   |
    camera 0   ##################################    all rows are written
    camera 1   ###############                       demo_0 is complete, demo_1 is begun

A trajectory becomes an entry when its rows of every camera are written. If a writer is killed, the
next one reads its journal and continues with the next row.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import numpy as np

from strap.atomic import explain_write_errors
from strap.errors import StrapError
from strap.locks import Lock, try_lock
from strap.store.journal import Line, pack, read_journal, unpack
from strap.store.layout import (
    HEADER_BYTES,
    PARTIAL,
    SHARDS,
    Entry,
    Shard,
    StoreConfig,
    next_name,
    npy_header,
    parse_entry,
    shard_files,
    slug,
    write_shard,
)
from strap.types import Array


@dataclass(frozen=True)
class PendingTrajectory:
    """The description of a trajectory whose rows are being written."""

    id: str
    length: int
    instruction: str
    stamp: str


class PartialShard:
    """An unfinished shard, locked by this process."""

    def __init__(self, store: Path, config: StoreConfig, name: str, lock: Lock) -> None:
        self.store, self.config, self.name = store, config, name
        self.folder = store / PARTIAL / name
        self.entries: list[Entry] = []
        self.begun: list[PendingTrajectory] = []
        """the trajectories of the current group that are not complete"""
        self.done = [0] * len(config.cameras)
        """the number of rows written, for each camera"""
        self._checksums: list[list[int]] = [[] for _ in config.cameras]
        """[camera][begun trajectory] CRC-32 of its rows so far"""
        self._lock = lock
        self._data: list[IO[bytes]] = []
        self._journal: IO[bytes] | None = None

    @classmethod
    def create(cls, store: Path, config: StoreConfig) -> PartialShard:
        """Create a new shard; the caller holds the store's lock."""
        name = next_name(store)
        lock = try_lock(store / PARTIAL / name / "lock")
        assert lock is not None
        partial = cls(store, config, name, lock)
        partial._open(journal_end=0)
        return partial

    @classmethod
    def take_over(cls, store: Path, config: StoreConfig, name: str) -> PartialShard | None:
        """Take over the unfinished shard of a dead writer; return None if its writer is alive.

        None is also returned for a shard that was published already. The caller holds the store's
        lock.
        """
        with _explain_errors(store / PARTIAL / name):
            lock = try_lock(store / PARTIAL / name / "lock")
        if lock is None:
            return None
        partial = cls(store, config, name, lock)
        if (store / SHARDS / f"{name}.json").is_file():  # killed between `publish` and `remove`
            partial.remove()
            return None
        with _explain_errors(partial.folder):
            partial._undo_publication()
            partial._open(journal_end=partial._replay_journal())
        partial._log({"release": True})  # trajectories that were only claimed are free again
        partial.claim([e.id for e in partial.entries] + [b.id for b in partial.begun])
        return partial

    @property
    def rows(self) -> int:
        """The number of rows of complete trajectories."""
        return self.entries[-1].stop if self.entries else 0

    @property
    def nbytes(self) -> int:
        """The number of bytes of complete trajectories."""
        return self.rows * self.config.row_bytes * len(self.config.cameras)

    def claim(self, ids: Sequence[str]) -> None:
        """Record that this writer embeds these trajectories."""
        self._log({"claim": list(ids)})

    def begin(self, group: Sequence[PendingTrajectory]) -> None:
        """Begin the next trajectories, whose rows follow each other."""
        self._begin(list(group))
        self._log({"begin": [asdict(one) for one in group]})

    def append(self, camera: int, vectors: Array) -> None:
        """Append the next rows [n d] of a camera; they can belong to several trajectories."""
        data = self._convert(camera, vectors).reshape(-1).view(np.uint8).data
        first, count = self.done[camera], len(vectors)
        with explain_write_errors(self._file(camera)):
            _write_all(self._data[camera], data)
        self._add_to_checksums(camera, data)
        self._log({"rows": [camera, first, count, zlib.crc32(data)]})

    @property
    def next_is_whole(self) -> bool:
        """Whether every row of the first begun trajectory is written."""
        return bool(self.begun) and min(self.done) >= self.rows + self.begun[0].length

    def complete(self, fingerprint: str) -> Entry:
        """Turn the first begun trajectory, whose rows are all written, into an entry."""
        entry = self._next_entry(fingerprint)
        self._complete(entry)
        self._log({"entry": asdict(entry)})
        return entry

    def _next_entry(self, fingerprint: str) -> Entry:
        one, checksums = self.begun[0], tuple(each[0] for each in self._checksums)
        return Entry(
            one.id, self.rows, one.length, one.instruction, fingerprint, one.stamp, checksums
        )

    def drop_group(self) -> None:
        """Delete the begun trajectories and their rows."""
        self._drop()
        self._truncate_files()
        self._log({"drop": True})

    def publish(self) -> Shard | None:
        """Make a shard of the complete trajectories; return None if there are none."""
        if not self.entries:
            return None
        if self.begun:
            self.drop_group()
        names = shard_files(self.name, self.config)
        shard = Shard(self.name, names, self.rows, tuple(self.entries))
        with explain_write_errors(self.store / SHARDS):
            (self.store / SHARDS).mkdir(exist_ok=True)
            for camera, handle in enumerate(self._data):
                handle.seek(0)
                _write_all(handle, memoryview(npy_header(self.config, self.rows)))
                os.fsync(handle.fileno())
                self._file(camera).replace(self.store / SHARDS / names[camera])
        write_shard(self.store, shard)
        return shard

    def remove(self) -> None:
        """Delete the folder and its files; the caller holds the store's lock."""
        self._close_files()
        with _explain_errors(self.folder):
            for file in sorted(self.folder.iterdir(), key=lambda file: file.name == "lock"):
                file.unlink()
            self.folder.rmdir()
        self._lock.release()

    def close(self) -> None:
        """Close the files and release the lock; the next writer can take the shard over."""
        self._close_files()
        self._lock.release()

    def _file(self, camera: int) -> Path:
        return self.folder / f"{slug(self.config.cameras[camera])}.npy"

    def _open(self, *, journal_end: int) -> None:
        with explain_write_errors(self.folder):
            for camera in range(len(self.config.cameras)):
                descriptor = os.open(self._file(camera), os.O_RDWR | os.O_CREAT, 0o666)
                handle = os.fdopen(descriptor, "r+b", buffering=0)
                self._data.append(handle)
                if os.fstat(descriptor).st_size < HEADER_BYTES:
                    _write_all(handle, memoryview(npy_header(self.config, 0)))
            journal = os.open(self.folder / "journal", os.O_RDWR | os.O_CREAT, 0o666)
            os.ftruncate(journal, journal_end)
            self._journal = os.fdopen(journal, "r+b", buffering=0)
            self._journal.seek(journal_end)
            self._truncate_files()

    def _truncate_files(self) -> None:
        """Truncate the data files after the last valid row."""
        for handle, rows in zip(self._data, self.done, strict=True):
            handle.truncate(HEADER_BYTES + rows * self.config.row_bytes)
            handle.seek(0, os.SEEK_END)

    def _close_files(self) -> None:
        for handle in self._data:
            handle.close()
        if self._journal:
            self._journal.close()
        self._data, self._journal = [], None

    def _undo_publication(self) -> None:
        """Move back the files of a publication that was killed before it wrote the JSON file."""
        for camera, name in enumerate(shard_files(self.name, self.config)):
            moved = self.store / SHARDS / name
            if moved.is_file():
                moved.replace(self._file(camera))

    def _replay_journal(self) -> int:
        """Apply the journal up to its last valid line; return the position after that line."""
        content = read_journal(self.folder / "journal")
        data = [_map_bytes(self._file(camera)) for camera in range(len(self.config.cameras))]
        end = 0
        for line, position in unpack(content):
            if not self._apply_line(line, data):
                break
            end = position
        return end

    def _apply_line(self, line: Line, data: Sequence[memoryview]) -> bool:
        """Apply a line of the journal; return False if the data files contradict it."""
        if "begin" in line:
            group = [PendingTrajectory(**one) for one in line["begin"]]
            known = {entry.id for entry in self.entries}
            if self.begun or len({one.id for one in group} - known) < len(group):
                return False
            self._begin(group)
        elif "rows" in line:
            camera, first, count, crc = line["rows"]
            if camera >= len(data) or first != self.done[camera] or first + count > self._end:
                return False
            width = self.config.row_bytes
            rows = data[camera][HEADER_BYTES + first * width :][: count * width]
            if len(rows) < count * width or zlib.crc32(rows) != crc:
                return False
            self._add_to_checksums(camera, rows)
        elif "entry" in line:
            entry = parse_entry(line["entry"], len(line["entry"]["checksums"]))
            if not self.next_is_whole or entry != self._next_entry(entry.fingerprint):
                return False
            self._complete(entry)
        elif "drop" in line:
            self._drop()
        return True

    @property
    def _end(self) -> int:
        """The row after the last begun trajectory."""
        return self.rows + sum(one.length for one in self.begun)

    def _begin(self, group: list[PendingTrajectory]) -> None:
        self.begun = group
        self._checksums = [[0] * len(group) for _ in self.config.cameras]

    def _add_to_checksums(self, camera: int, data: memoryview) -> None:
        """Add the next rows of a camera to the checksums of their trajectories."""
        width, at = self.config.row_bytes, self.done[camera]
        stop, offset = at + len(data) // width, self.rows
        for index, one in enumerate(self.begun):
            low, high = max(at, offset), min(stop, offset + one.length)
            if low < high:
                rows = data[(low - at) * width : (high - at) * width]
                self._checksums[camera][index] = zlib.crc32(rows, self._checksums[camera][index])
            offset += one.length
        self.done[camera] = stop

    def _complete(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.begun.pop(0)
        for checksums in self._checksums:
            checksums.pop(0)

    def _drop(self) -> None:
        self._begin([])
        self.done = [self.rows] * len(self.config.cameras)

    def _convert(self, camera: int, vectors: Array) -> Array:
        """Return vectors in the store's dtype; raise if they overflow."""
        dtype = np.dtype(self.config.dtype).newbyteorder("<")
        with np.errstate(over="ignore"):  # reported below, with the trajectory's id
            stored = np.ascontiguousarray(vectors, dtype)
        bad = np.flatnonzero(~np.isfinite(stored).all(axis=1))
        if bad.size:
            row, offset = self.done[camera] + int(bad[0]), self.rows
            for one in self.begun:
                offset += one.length
                if row < offset:
                    break
            raise StrapError(
                f"trajectory '{one.id}': an embedding is too large for {self.config.dtype}; embed "
                "with --dtype float32"
            )
        return stored

    def _log(self, line: Line) -> None:
        assert self._journal is not None
        with explain_write_errors(self.folder / "journal"):
            _write_all(self._journal, memoryview(pack([line])))


@contextmanager
def _explain_errors(folder: Path) -> Iterator[None]:
    """Turn an `OSError` from the folder's files into an error that says what to do."""
    try:
        yield
    except OSError as error:
        raise StrapError(
            f"cannot continue the unfinished shard '{folder}' ({error}): delete that folder and "
            "embed again; only that shard is embedded again"
        ) from error


def _write_all(handle: IO[bytes], data: memoryview) -> None:
    """Write all of the data: one call on an unbuffered file can write only a part."""
    while len(data):
        data = data[handle.write(data) :]


def _map_bytes(file: Path) -> memoryview:
    """Return the bytes of a file, memory-mapped; empty if the file is missing or empty."""
    if not file.is_file() or not file.stat().st_size:
        return memoryview(b"")
    return np.memmap(file, np.uint8, mode="r").data
