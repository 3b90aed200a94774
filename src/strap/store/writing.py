"""Writing to a store, concurrently with other writers.

Each process fills its own partial shards. A writer takes the store's lock briefly, looks which
trajectories others have finished or claimed, and claims some of the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from strap.locks import hold_lock
from strap.store.journal import claims
from strap.store.layout import (
    PARTIAL,
    Entry,
    Shard,
    StoreConfig,
    list_partials,
    list_shards,
    read_shard,
    write_shard,
)
from strap.store.partial import PartialShard, PendingTrajectory
from strap.types import Array


class Session:
    """One writer of a store: the finished trajectories that it knows, and the shard it fills."""

    def __init__(self, path: Path, config: StoreConfig) -> None:
        self.path, self.config = path, config
        self.partial: PartialShard | None = None
        self.places: dict[str, Entry] = {}
        """the complete trajectories of the store and of this writer's unfinished shards"""
        self._shards: dict[str, Shard] = {}
        self._outstanding: dict[str, None] = {}
        """ids claimed by this writer that are not complete yet, in order"""
        self._stamps: dict[Entry, str] = {}
        """new stamps of entries whose files changed, but not their content"""
        self._adopted: list[PartialShard] = []
        """unfinished shards of dead writers"""
        self.refresh()

    def hold(self) -> AbstractContextManager[None]:
        """Return the store's lock."""
        return hold_lock(self.path / "lock")

    def refresh(self) -> None:
        """Read the JSON files of new shards, and update `places`."""
        files = {file.stem: file for file in list_shards(self.path)}
        self._shards = {
            name: self._shards.get(name) or read_shard(file, self.config)
            for name, file in files.items()
        }
        self.places = {e.id: e for s in self._shards.values() for e in s.entries}
        self.places |= {e.id: e for partial in self._unpublished() for e in partial.entries}

    def _unpublished(self) -> list[PartialShard]:
        return [*self._adopted, *([self.partial] if self.partial else [])]

    def adopt(self) -> list[PartialShard]:
        """Take over the unfinished shards of dead writers, and publish their complete trajectories.

        Return the shards that also have begun trajectories, locked: the caller must `switch` to
        each of them or `discard` it.
        """
        begun = []
        with self.hold():
            for name in list(list_partials(self.path)):
                partial = PartialShard.take_over(self.path, self.config, name)
                if partial is None:
                    continue
                if partial.begun:
                    begun.append(partial)
                else:
                    partial.publish()
                    partial.remove()
            self._adopted += begun
            self.refresh()
        self._outstanding |= dict.fromkeys(one.id for partial in begun for one in partial.begun)
        return begun

    def discard(self, partial: PartialShard) -> None:
        """Publish the complete trajectories of an adopted shard, and delete the begun ones."""
        for one in partial.begun:
            self._outstanding.pop(one.id, None)
        self._adopted.remove(partial)
        partial.drop_group()
        partial.publish()
        with self.hold():
            partial.remove()
            self.refresh()

    def claim(self, seen: Mapping[str, Entry | None]) -> list[str]:
        """Claim the trajectories that are still free, and return their ids.

        `seen` maps ids to the entries that the caller knows. A trajectory is not free if a writer
        (also this one) has claimed it, or if the store has another entry of it by now.
        """
        with self.hold():
            self.refresh()
            busy = self._busy() | self._outstanding.keys()
            free = [k for k, e in seen.items() if k not in busy and self.places.get(k) == e]
            if free:
                self._outstanding |= dict.fromkeys(free)
                self._current().claim(free)
        return free

    def _busy(self) -> set[str]:
        """Return the ids that others have claimed, also dead writers whose shards remain."""
        ours = self.partial.name if self.partial else None
        names = [name for name in list_partials(self.path) if name != ours]
        return set().union(*(claims(self.path / PARTIAL / name / "journal") for name in names))

    def _current(self) -> PartialShard:
        if self.partial is None:
            self.partial = PartialShard.create(self.path, self.config)
        return self.partial

    def switch(self, partial: PartialShard) -> None:
        """Finish the current shard and continue with an adopted one."""
        self._adopted.remove(partial)
        self.flush(successor=partial)

    def begin(self, group: Sequence[PendingTrajectory]) -> None:
        """Begin the next trajectories, whose rows follow each other."""
        if self.partial is None:
            with self.hold():
                self._current()
        assert self.partial is not None
        self.partial.begin(group)

    def append(self, camera: int, vectors: Array) -> None:
        """Append the next rows of a camera."""
        assert self.partial is not None
        self.partial.append(camera, vectors)

    def complete(self, fingerprint: str) -> None:
        """Complete the first begun trajectory, whose rows are all written."""
        assert self.partial is not None
        entry = self.partial.complete(fingerprint)
        self.places[entry.id] = entry
        self._outstanding.pop(entry.id, None)

    def add(self, one: PendingTrajectory, vectors: Sequence[Array], fingerprint: str) -> None:
        """Write one trajectory: vectors [t d] for each camera, in the store's order."""
        self.begin([one])
        for camera, rows in enumerate(vectors):
            self.append(camera, rows)
        self.complete(fingerprint)

    @property
    def nbytes(self) -> int:
        """The size in bytes of the complete trajectories in the current shard."""
        return self.partial.nbytes if self.partial else 0

    def flush(self, *, successor: PartialShard | None = None) -> None:
        """Publish the current shard; remaining claims move to the next shard."""
        old, self.partial = self.partial, successor
        if old is not None:
            old.publish()
        with self.hold():
            if self._outstanding:
                self._current().claim(list(self._outstanding))
            if old is not None:
                old.remove()
            self.refresh()
            if self._stamps:
                self._write_stamps()
                self.refresh()

    def restamp(self, entry: Entry, stamp: str) -> None:
        """Note a new stamp for an entry whose files changed, but not their content."""
        self._stamps[entry] = stamp

    def _write_stamps(self) -> None:
        """Write the new stamps to the shards; the caller holds the store's lock."""
        stamps, self._stamps = self._stamps, {}
        for name, shard in self._shards.items():
            entries = tuple(replace(e, stamp=stamps.get(e, e.stamp)) for e in shard.entries)
            if entries != shard.entries:
                write_shard(self.path, replace(shard, entries=entries))
                self._shards[name] = replace(shard, entries=entries)

    def close(self) -> None:
        """Close all unfinished shards; the next writer can take them over."""
        for partial in self._unpublished():
            partial.close()
        self.partial, self._adopted = None, []
