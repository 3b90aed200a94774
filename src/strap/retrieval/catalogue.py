"""The trajectories that a retrieval may use, and which of them a query must not match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strap.datasets import Dataset
from strap.dtw import SearchStatistics
from strap.errors import StrapError
from strap.progress import Progress, silent
from strap.retrieval.options import MatchOptions
from strap.search import Execution, StoreSearcher
from strap.store import EmbeddingStore
from strap.types import ContentHasher, Match, Matches, Segment


@dataclass(frozen=True)
class CatalogueEntry:
    """What is known of a trajectory without looking at its frames."""

    length: int
    instruction: str
    fingerprint: str
    """two trajectories with one fingerprint are the same recording"""


@dataclass(frozen=True)
class Catalogue:
    """The trajectories of one dataset that take part in a retrieval."""

    dataset: str
    """the dataset's path, as matches name it"""
    trajectories: Mapping[str, CatalogueEntry]
    store: EmbeddingStore | None = None
    """their features; it may hold further trajectories, which take no part"""

    @classmethod
    def of_store(
        cls, store: EmbeddingStore, ids: Sequence[str] | None = None, dataset: str | None = None
    ) -> Catalogue:
        """List the trajectories of a store, or these of them; `dataset` is where it lies now."""
        stored = {key: store.entry(key) for key in (store.ids if ids is None else ids)}
        entries = {
            key: CatalogueEntry(entry.length, entry.instruction, entry.fingerprint)
            for key, entry in stored.items()
        }
        return cls(store.dataset if dataset is None else dataset, entries, store)

    @classmethod
    def of_dataset(cls, dataset: Dataset) -> Catalogue:
        """List the trajectories of a dataset; they are told apart by their actions."""
        entries = {
            t.id: CatalogueEntry(t.length, t.instruction, ContentHasher(t).finish())
            for t in dataset
        }
        return cls(dataset.name, entries)


Trajectories = EmbeddingStore | Catalogue


@dataclass(frozen=True)
class Problem:
    """What a retrieval method is given."""

    queries: Sequence[Segment]
    target: Catalogue
    priors: Sequence[Catalogue]
    options: MatchOptions
    execution: Execution | None = None
    progress: Progress = silent
    searcher: StoreSearcher | None = None
    """what searches the stores instead of `search_stores`"""

    def stores(self) -> tuple[EmbeddingStore, list[EmbeddingStore]]:
        """Return the features of the target and of the priors, made by the same encoder."""
        target, *priors = (catalogue.store for catalogue in (self.target, *self.priors))
        if target is None or None in priors:
            raise StrapError(f"method '{self.options.method}' compares features: embed both first")
        found = [store for store in priors if store is not None]
        for prior in found:
            _require_same_encoder(target, prior)
        return target, found

    def hidden(self) -> list[set[tuple[int, str]]]:
        """Return for each query the (prior, trajectory) pairs that it must not match."""
        absent = {
            (index, key)
            for index, prior in enumerate(self.priors)
            if prior.store is not None
            for key in prior.store.ids
            if key not in prior.trajectories
        }
        if self.options.shared == "keep":
            return [absent for _ in self.queries]
        by_fingerprint: dict[str, set[tuple[int, str]]] = {}
        for index, prior in enumerate(self.priors):
            for key, entry in prior.trajectories.items():
                by_fingerprint.setdefault(entry.fingerprint, set()).add((index, key))
        copies = {
            key: by_fingerprint.get(entry.fingerprint, set())
            for key, entry in self.target.trajectories.items()
        }
        if self.options.shared == "all":
            return [absent.union(*copies.values()) for _ in self.queries]
        return [absent | copies[query.trajectory_id] for query in self.queries]

    def match(self, query: Segment, prior: int, found: Segment, cost: float, rank: int) -> Match:
        """Return a match with a segment of the prior of that number."""
        catalogue = self.priors[prior]
        instruction = catalogue.trajectories[found.trajectory_id].instruction
        return Match(query, found, cost, rank, instruction, catalogue.dataset)


@dataclass(frozen=True)
class Retrieved:
    """The matches that are kept, and how they were found."""

    matches: Matches
    statistics: SearchStatistics
    reason: str | None = None
    """why so many are kept, where that was chosen here"""


def as_catalogue(trajectories: Trajectories) -> Catalogue:
    """Return the catalogue of a store; a catalogue is returned as it is."""
    if isinstance(trajectories, EmbeddingStore):
        return Catalogue.of_store(trajectories)
    return trajectories


def _require_same_encoder(target: EmbeddingStore, prior: EmbeddingStore) -> None:
    target_encoder, prior_encoder = target.config.encoder, prior.config.encoder
    if target_encoder != prior_encoder or target.dim != prior.dim:
        raise StrapError(
            f"store '{prior.path}' was made with encoder {dict(prior_encoder)}, but the "
            f"target's store '{target.path}' with {dict(target_encoder)}: embed both with one"
        )
