"""A search that caches its results: a query is searched only once."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from strap.dtw import SearchOptions, SearchStatistics
from strap.progress import Progress, silent
from strap.search import Execution, StoreMatch, StoreSearch, search_stores
from strap.store import EmbeddingStore
from strap.types import Array

EXTRA_MATCHES = 4
"""matches searched in addition to the k requested, so that a slightly larger k is cached too"""


@dataclass(frozen=True)
class FoundMatches:
    """The k cheapest matches of a query, or all if there are fewer."""

    matches: Sequence[StoreMatch]
    k: int

    def has_best(self, k: int) -> bool:
        """Return whether these include the k cheapest matches."""
        return k <= self.k or len(self.matches) < self.k


@dataclass(frozen=True)
class SearchMemory:
    """A `StoreSearcher` that caches its results in memory."""

    found: dict[Hashable, FoundMatches] = field(default_factory=dict)

    def __call__(
        self,
        queries: Sequence[Array],
        stores: Sequence[EmbeddingStore],
        options: SearchOptions,
        *,
        exclude: Sequence[Collection[tuple[int, str]]] | None = None,
        execution: Execution | None = None,
        progress: Progress = silent,
    ) -> StoreSearch:
        """Return for each query its k cheapest matches, as `search_stores` does."""
        hidden = exclude or [()] * len(queries)
        lengths = options.constraints.lengths
        shared = (options.steps, options.metric, options.constraints.per_trajectory)
        place = tuple((id(store), store.cameras) for store in stores)
        keys: list[Hashable] = [
            (place, shared, _digest(query), frozenset(excluded), lengths and lengths[number])
            for number, (query, excluded) in enumerate(zip(queries, hidden, strict=True))
        ]
        missing = [
            number
            for number, key in enumerate(keys)
            if key not in self.found or not self.found[key].has_best(options.k)
        ]
        statistics = SearchStatistics()
        if missing:
            k = options.k + EXTRA_MATCHES
            chosen = lengths and [lengths[number] for number in missing]
            constraints = replace(options.constraints, lengths=chosen)
            searched = search_stores(
                [queries[number] for number in missing],
                stores,
                replace(options, k=k, constraints=constraints),
                exclude=[hidden[number] for number in missing],
                execution=execution,
                progress=progress,
            )
            statistics = searched.statistics
            for number, matches in zip(missing, searched.matches, strict=True):
                self.found[keys[number]] = FoundMatches(matches, k)
        return StoreSearch([list(self.found[key].matches[: options.k]) for key in keys], statistics)


def _digest(query: Array) -> tuple[tuple[int, ...], str, bytes]:
    content = hashlib.blake2b(np.ascontiguousarray(query).data, digest_size=16).digest()
    return query.shape, str(query.dtype), content
