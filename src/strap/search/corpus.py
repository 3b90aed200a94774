"""Several stores as one numbered list of trajectories, read shard by shard for `strap.dtw`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from strap import dtw
from strap.dtw import SearchOptions, SearchResult
from strap.dtw.sketches.sketcher import SketchBlock, Sketches
from strap.dtw.types import Excluded, Ints
from strap.progress import Progress, silent
from strap.store import EmbeddingStore
from strap.store.sketches import StoreSketches, open_sketches
from strap.types import Array

SMALL_BYTES = 2**29
"""stores that are smaller in total keep their memory mapped after a search"""
SKETCHED_SHARE = 8
"""a small corpus uses sketches only if k is at most 1/8 of its trajectories"""


@dataclass(frozen=True)
class Corpus:
    """Several stores as one numbered list of trajectories: store by store, ids in natural order.

    The numbers decide ties, so they must not depend on how a store is cut into shards.
    """

    stores: Sequence[EmbeddingStore]
    only: Collection[tuple[int, str]] | None = None
    """the (store, shard) pairs to search; None: all"""
    small_bytes: int = SMALL_BYTES
    uses_sketches: bool = True

    @cached_property
    def shards(self) -> list[tuple[int, str]]:
        """The (store, shard) pairs to search."""
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
        """Whether the stores' memory stays mapped after a search."""
        return sum(store.nbytes for store in self.stores) <= self.small_bytes

    def fetch(self, number: int) -> Array:
        """Return a trajectory's frames [t d]."""
        index, key = self.names[number]
        return self.stores[index][key]

    def describe(self, number: int) -> str:
        """Return a trajectory's name in error messages."""
        index, key = self.names[number]
        return f"trajectory '{key}' of '{self.stores[index].path}'"

    def sketches(self, k: int, progress: Progress) -> list[list[Sketches]]:
        """Return the kinds of sketches of each store, or [] to search without sketches.

        That is the case if a trajectory has none, or if they would not save time: in a small
        corpus with a large k.
        """
        if self.only is not None or not self.uses_sketches:
            return []
        if self.is_small and k * SKETCHED_SHARE > len(self.names):
            return []
        sketches = []
        for index, store in enumerate(self.stores):
            kinds = [kind for kind in open_sketches(store) if not kind.missing]
            if not kinds:
                return []
            numbers = [
                np.array([self.numbers[index, entry.id] for entry in span.entries])
                for span in kinds[0].spans
            ]
            first, *longer = kinds
            counted = partial(self._count_blocks, first, numbers, progress)
            sketches.append(
                [
                    Sketches(first.sketcher, counted),
                    *(Sketches(kind.sketcher, partial(kind.blocks, numbers)) for kind in longer),
                ]
            )
        return sketches

    def _count_blocks(
        self, kind: StoreSketches, numbers: Sequence[Ints], progress: Progress
    ) -> Iterator[SketchBlock]:
        """Yield the blocks of sketches, reporting progress."""
        for block in kind.blocks(numbers):
            progress("searching", int(block.ids[0]), len(self.names))
            yield block

    def blocks(self, progress: Progress) -> Iterator[dtw.Block]:
        """Yield blocks of trajectories, shard by shard.

        While a shard is searched, the next one is read from disk. The memory of searched shards is
        released, so that stores can be much larger than memory; a small corpus keeps it, for the
        next search.
        """
        done = 0
        with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as ahead:
            for number, (index, name) in enumerate(self.shards):
                store = self.stores[index]
                shard = store.shards[name]
                for later, next_name in self.shards[number + 1 : number + 2]:
                    next_store = self.stores[later]
                    ahead.submit(next_store.read_ahead, next_store.shards[next_name])
                frames = store.shard_frames(shard)
                for span in store.current_spans(shard):
                    progress("searching", done, len(self.names))
                    first, last = span[0].offset, span[-1].stop
                    offsets = np.array([*(e.offset - first for e in span), last - first])
                    ids = np.array([self.numbers[index, e.id] for e in span])
                    yield dtw.Block(frames[first:last], offsets, ids)
                    done += len(span)
                # The previous shard too: its last trajectories might be bounded only now.
                finished = [] if self.is_small else self.shards[max(number - 1, 0) : number + 1]
                for earlier, name_before in finished:
                    self.stores[earlier].release_pages(self.stores[earlier].shards[name_before])
        progress("searching", done, len(self.names))


def search_corpus(
    queries: Sequence[Array],
    corpus: Corpus,
    options: SearchOptions,
    exclude: Excluded,
    progress: Progress = silent,
) -> SearchResult:
    """Search a corpus in this process; matches have global trajectory numbers."""
    # Only the CPU backend under l2 uses sketches.
    is_useful = options.metric == "l2" and dtw.resolve_backend(options.backend).name == "cpu"
    sketches = corpus.sketches(options.k, progress) if is_useful else []
    stream = dtw.stream_blocks(corpus.blocks(progress))
    library = dtw.Library(stream, corpus.fetch, corpus.describe, sketches)
    return dtw.search_library(queries, library, options, exclude)
