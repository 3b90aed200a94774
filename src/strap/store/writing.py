"""Writing into a store, beside other writers.

Each process fills partial shards of its own. Under the store's lock, held for moments, a writer
looks at what others have finished and claimed, and claims what is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from strap.locks import locked
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
from strap.store.partial import Begun, Partial
from strap.types import Array


class Session:
    """One writer of a store: its view of what is finished, and the shard it is filling."""

    def __init__(self, path: Path, config: StoreConfig) -> None:
        self.path, self.config = path, config
        self.partial: Partial | None = None
        self.places: dict[str, Entry] = {}
        """what is whole, in this writer's unfinished shards too"""
        self._shards: dict[str, Shard] = {}
        self._outstanding: dict[str, None] = {}
        self._stamps: dict[Entry, str] = {}
        """new ones of entries whose files changed and whose content did not"""
        self._adopted: list[Partial] = []
        self.refresh()

    def hold(self) -> AbstractContextManager[None]:
        """Return the store's lock."""
        return locked(self.path / "lock")

    def refresh(self) -> None:
        """Look at the shards again; those known are not read twice."""
        files = {file.stem: file for file in list_shards(self.path)}
        self._shards = {
            name: self._shards.get(name) or read_shard(file, self.config)
            for name, file in files.items()
        }
        self.places = {e.id: e for s in self._shards.values() for e in s.entries}
        self.places |= {e.id: e for partial in self._unpublished() for e in partial.entries}

    def _unpublished(self) -> list[Partial]:
        return [*self._adopted, *([self.partial] if self.partial else [])]

    def adopt(self) -> list[Partial]:
        """Take up what dead writers left: whole trajectories become shards at once.

        Returns those with begun trajectories, locked: `switch` to them, or `discard` them.
        """
        begun = []
        with self.hold():
            for name in list(list_partials(self.path)):
                partial = Partial.take_over(self.path, self.config, name)
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

    def discard(self, partial: Partial) -> None:
        """Keep what is whole of an adopted shard, forget what is begun."""
        for one in partial.begun:
            self._outstanding.pop(one.id, None)
        self._adopted.remove(partial)
        partial.drop_group()
        partial.publish()
        with self.hold():
            partial.remove()
            self.refresh()

    def claim(self, seen: Mapping[str, Entry | None]) -> list[str]:
        """Claim those of these trajectories that fall to this writer, and return them.

        `seen` gives each with the entry the caller knows of; where a writer has claimed it (this
        one included) or put another entry meanwhile, it does not.
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
        """Return what others have claimed; of one that died too, until what it left is adopted."""
        ours = self.partial.name if self.partial else None
        names = [name for name in list_partials(self.path) if name != ours]
        return set().union(*(claims(self.path / PARTIAL / name / "journal") for name in names))

    def _current(self) -> Partial:
        if self.partial is None:
            self.partial = Partial.create(self.path, self.config)
        return self.partial

    def switch(self, partial: Partial) -> None:
        """Finish the shard at hand and go on with an adopted one."""
        self._adopted.remove(partial)
        self.flush(successor=partial)

    def begin(self, group: Sequence[Begun]) -> None:
        """Lay out the rows of the next trajectories."""
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
        """Enter the first begun trajectory."""
        assert self.partial is not None
        entry = self.partial.complete(fingerprint)
        self.places[entry.id] = entry
        self._outstanding.pop(entry.id, None)

    def add(self, one: Begun, vectors: Sequence[Array], fingerprint: str) -> None:
        """Add one whole trajectory: vectors [t d] for each camera of the store, in its order."""
        self.begin([one])
        for camera, rows in enumerate(vectors):
            self.append(camera, rows)
        self.complete(fingerprint)

    @property
    def nbytes(self) -> int:
        """Bytes of whole trajectories in the shard at hand."""
        return self.partial.nbytes if self.partial else 0

    def flush(self, *, successor: Partial | None = None) -> None:
        """Make the shard at hand part of the store; claims go over to the next one."""
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
        """Take note that an entry holds its trajectory as it lies in files of this stamp."""
        self._stamps[entry] = stamp

    def _write_stamps(self) -> None:
        """Write the new stamps into the shards, under the store's lock."""
        stamps, self._stamps = self._stamps, {}
        for name, shard in self._shards.items():
            entries = tuple(replace(e, stamp=stamps.get(e, e.stamp)) for e in shard.entries)
            if entries != shard.entries:
                write_shard(self.path, replace(shard, entries=entries))
                self._shards[name] = replace(shard, entries=entries)

    def close(self) -> None:
        """Leave what is unfinished to the next writer."""
        for partial in self._unpublished():
            partial.close()
        self.partial, self._adopted = None, []
