"""Stores as the matcher sees them: numbered trajectories, in blocks read shard by shard."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from strap import dtw
from strap.artifacts import Progress
from strap.dtw import halves
from strap.dtw.sketches import Finer, Sketched
from strap.sketches import StoreSketches, open_sketches
from strap.store import EmbeddingStore
from strap.types import Array

SMALL_BYTES = 2**29
"""of stores, together, that are small"""


@dataclass(frozen=True)
class Corpus:
    """Several stores as one numbered list: store by store, ids in natural order.

    The numbering decides ties, so it must not depend on how a store is cut into shards.
    """

    stores: Sequence[EmbeddingStore]
    only: Collection[tuple[int, str]] | None = None
    """where given, these (store, shard) are searched"""

    @cached_property
    def shards(self) -> list[tuple[int, str]]:
        """The (store, shard) that are searched."""
        every = [(i, name) for i, store in enumerate(self.stores) for name in store.shards]
        return every if self.only is None else [shard for shard in every if shard in self.only]

    @cached_property
    def names(self) -> list[tuple[int, str]]:
        """Number -> (store, trajectory id)."""
        return [(index, key) for index, store in enumerate(self.stores) for key in store.ids]

    @cached_property
    def numbers(self) -> dict[tuple[int, str], int]:
        """(store, trajectory id) -> number."""
        return {name: number for number, name in enumerate(self.names)}

    @property
    def is_small(self) -> bool:
        """Whether the stores stay mapped once they were read."""
        return sum(store.nbytes for store in self.stores) <= SMALL_BYTES

    def fetch(self, number: int) -> Array:
        """A trajectory's frames [t d]."""
        index, key = self.names[number]
        return self.stores[index][key]

    def describe(self, number: int) -> str:
        """What an error message calls a trajectory."""
        index, key = self.names[number]
        return f"trajectory '{key}' of '{self.stores[index].path}'"

    def sketched(self, progress: Progress) -> list[Sketched]:
        """The sketches of all stores; none unless every trajectory has one.

        Nor where they don't pay: a small store on a processor with tile registers.
        """
        if self.only is not None or (self.is_small and halves.usable(self.stores[0].dim)):
            return []
        parts = []
        for index, store in enumerate(self.stores):
            whole = [one for one in open_sketches(store) if not one.missing]
            if not whole:
                return []
            parts.append(self._sketched(index, whole, progress))
        return parts

    def _sketched(self, index: int, sizes: Sequence[StoreSketches], progress: Progress) -> Sketched:
        short = sizes[0]
        errors = short.errors()

        def number(key: str) -> int:
            found = self.numbers[index, key]
            progress("searching", found, len(self.names))
            return found

        def error(found: int) -> float:
            return errors[self.names[found][1]]

        finer = [self._finer(own) for own in sizes[1:]]
        return Sketched(short.sketcher, short.blocks(number), error, finer)

    def _finer(self, sketches: StoreSketches) -> Finer:
        errors = sketches.errors()

        def fetch(found: int) -> tuple[Array, float]:
            key = self.names[found][1]
            return sketches.fetch(key), errors[key]

        return Finer(sketches.sketcher, fetch)

    def blocks(self, progress: Progress) -> Iterator[dtw.Block]:
        """Trajectories that lie end to end, shard by shard.

        The next shard is read ahead from disk, and the memory of one that was left is given back:
        a store may be far larger than memory. A small one is left as it is, for the next search.
        """
        done = 0
        with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as ahead:
            for number, (index, name) in enumerate(self.shards):
                store = self.stores[index]
                shard = store.shards[name]
                for later, following in self.shards[number + 1 : number + 2]:
                    other = self.stores[later]
                    ahead.submit(other.read_ahead, other.shards[following])
                frames = store.shard_frames(shard)
                for run in store.live_runs(shard):
                    progress("searching", done, len(self.names))
                    first, last = run[0].offset, run[-1].stop
                    offsets = np.array([*(e.offset - first for e in run), last - first])
                    ids = np.array([self.numbers[index, e.id] for e in run])
                    yield dtw.Block(frames[first:last], offsets, ids)
                    done += len(run)
                # The one before too: its last trajectories may have been looked at only now.
                over = [] if self.is_small else self.shards[max(number - 1, 0) : number + 1]
                for left, before in over:
                    self.stores[left].let_go(self.stores[left].shards[before])
        progress("searching", done, len(self.names))
