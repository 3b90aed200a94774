"""Exact top-k over embedding stores: feeds their shards to the matcher and names what it finds."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from strap import dtw
from strap.artifacts import Progress, silent
from strap.dtw.sketches import Sketched
from strap.errors import StrapError
from strap.sketches import StoreSketches, open_sketches
from strap.store import EmbeddingStore, Entry
from strap.types import Array


@dataclass(frozen=True)
class Found:
    """One query's best match in one prior trajectory."""

    store: EmbeddingStore
    trajectory_id: str
    start: int
    stop: int
    cost: float


@dataclass(frozen=True)
class _Corpus:
    """Several stores as one numbered list: store by store, ids in natural order.

    The numbering decides ties, so it must not depend on how a store is cut into shards.
    """

    stores: Sequence[EmbeddingStore]

    @cached_property
    def names(self) -> list[tuple[int, str]]:
        return [(index, key) for index, store in enumerate(self.stores) for key in store.ids]

    @cached_property
    def numbers(self) -> dict[tuple[int, str], int]:
        return {name: number for number, name in enumerate(self.names)}

    def fetch(self, number: int) -> Array:
        index, key = self.names[number]
        return self.stores[index][key]

    def describe(self, number: int) -> str:
        index, key = self.names[number]
        return f"trajectory '{key}' of '{self.stores[index].path}'"

    def sketched(self) -> list[Sketched]:
        """The sketches of all stores; none unless every trajectory has one."""
        found = [open_sketches(store) for store in self.stores]
        parts = []
        for index, sketches in enumerate(found):
            if sketches is None or sketches.missing:
                return []
            parts.append(self._sketched(index, sketches))
        return parts

    def _sketched(self, index: int, sketches: StoreSketches) -> Sketched:
        errors = {
            self.numbers[index, key]: error
            for key, error in sketches.errors().items()
            if (index, key) in self.numbers
        }
        blocks = sketches.blocks(lambda key: self.numbers[index, key])
        return Sketched(sketches.sketcher, blocks, errors.__getitem__)

    def blocks(self, progress: Progress) -> Iterator[dtw.Block]:
        done = 0
        for index, store in enumerate(self.stores):
            for shard in store.shards.values():
                frames = store.shard_frames(shard)
                for run in _contiguous(store.live_entries(shard)):
                    progress("searching", done, len(self.names))
                    first, last = run[0].offset, run[-1].offset + run[-1].length
                    offsets = np.array([*(e.offset - first for e in run), last - first])
                    ids = np.array([self.numbers[index, e.id] for e in run])
                    yield dtw.Block(frames[first:last], offsets, ids)
                    done += len(run)
        progress("searching", done, len(self.names))


def _contiguous(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Runs of entries that lie end to end (where none between them was replaced)."""
    run: list[Entry] = []
    for entry in entries:
        if run and run[-1].offset + run[-1].length != entry.offset:
            yield run
            run = []
        run.append(entry)
    if run:
        yield run


def search_stores(
    queries: Sequence[Array],
    stores: Sequence[EmbeddingStore],
    *,
    k: int,
    steps: str = "strap",
    metric: str = "l2",
    backend: str = "auto",
    exclude: Sequence[Collection[tuple[int, str]]] | None = None,
    progress: Progress = silent,
    tally: dtw.Tally | None = None,
) -> list[list[Found]]:
    """For each query its k cheapest matches over all stores, cheapest first, one a trajectory.

    Args:
        queries: arrays [n d].
        stores: what to search; ties go to the earlier store, then to the smaller id.
        k: how many matches per query.
        steps: `strap`, `fmp` or `classic`.
        metric: `l2` or `cosine`.
        backend: `auto`, `gpu`, `cpu` or `reference`.
        exclude: for each query the (store index, trajectory id) pairs it must not match.
        progress: called with (what, trajectories done, of how many).
        tally: filled with how many pairs each bound removed.
    """
    corpus = _Corpus(stores)
    if not corpus.names:
        raise StrapError("the prior is empty: its stores hold no trajectory")
    hidden = None
    if exclude is not None:
        hidden = [{corpus.numbers[name] for name in own} for own in exclude]
    tops = dtw.search_blocks(
        queries,
        corpus.blocks(progress),
        fetch=corpus.fetch,
        k=min(k, len(corpus.names)),
        steps=steps,
        metric=metric,
        backend=backend,
        exclude=hidden,
        name=corpus.describe,
        sketched=corpus.sketched() if metric == "l2" else (),
        tally=tally,
    )
    return [[_found(corpus, top, row) for row in range(len(top))] for top in tops]


def _found(corpus: _Corpus, top: dtw.TopK, row: int) -> Found:
    index, key = corpus.names[int(top.trajectory[row])]
    return Found(
        corpus.stores[index],
        key,
        int(top.start[row]),
        int(top.stop[row]),
        float(top.cost[row]),
    )
