"""The trajectories that a retrieval may use, and which of them a query must not match."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from strap.datasets import Dataset
from strap.dtw import SearchStatistics
from strap.errors import StrapError
from strap.progress import Progress, silent
from strap.retrieval.options import MatchOptions
from strap.search import Execution, StoreSearcher
from strap.store import EmbeddingStore
from strap.types import Array, ContentHasher, Match, Matches, Segment


@dataclass(frozen=True)
class CatalogueEntry:
    """What is known of a trajectory without looking at its frames."""

    length: int
    instruction: str
    fingerprint: str
    """two trajectories with one fingerprint are the same recording"""
    actions: str = ""
    """a hash of its actions, by which recordings of other cameras or file formats are the same;
    empty where they never change or were not looked at"""


@dataclass(frozen=True)
class Catalogue:
    """The trajectories of one dataset that take part in a retrieval."""

    dataset: str
    """the dataset's path, as matches name it"""
    trajectories: Mapping[str, CatalogueEntry]
    store: EmbeddingStore | None = None
    """their features; it may hold further trajectories, which take no part"""
    source: Dataset | None = None
    """what says their instructions; None: the entries do"""
    _instructions: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

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
        entries = {}
        for t in dataset:
            actions = t.actions[:]
            fingerprint = ContentHasher(t).finish(actions)
            entries[t.id] = CatalogueEntry(
                t.length, t.instruction, fingerprint, _hash_actions(actions)
            )
        return cls(dataset.name, entries)

    def instruction(self, key: str) -> str:
        """Return a trajectory's instruction."""
        if self.source is None:
            return self.trajectories[key].instruction
        if key not in self._instructions:
            self._instructions[key] = self.source[key].instruction
        return self._instructions[key]


def list_catalogues(
    datasets: Sequence[Dataset], stores: Sequence[EmbeddingStore] | None = None
) -> list[Catalogue]:
    """Return the catalogues of the target and of each prior.

    A store's fingerprints are of the cameras that it holds. So the actions of the demonstrations
    are read, and those of prior trajectories as long as one of them.

    Args:
        datasets: the target and the priors.
        stores: their features, in the same order; None where nothing is compared.
    """
    if stores is None:
        return [Catalogue.of_dataset(dataset) for dataset in datasets]
    found = [
        replace(Catalogue.of_store(store, dataset.ids, dataset.name), source=dataset)
        for store, dataset in zip(stores, datasets, strict=True)
    ]
    target = found[0].trajectories.values()
    lengths = {entry.length for entry in target}
    known = {entry.fingerprint for entry in target}
    return [
        _with_actions(catalogue, dataset, lengths, known if catalogue is not found[0] else set())
        for catalogue, dataset in zip(found, datasets, strict=True)
    ]


def _with_actions(
    catalogue: Catalogue, dataset: Dataset, lengths: set[int], known: set[str]
) -> Catalogue:
    """Return the catalogue with the actions of trajectories that are so long and not known."""
    entries = dict(catalogue.trajectories)
    keys = [k for k, e in entries.items() if e.length in lengths and e.fingerprint not in known]
    dataset.select(keys).fetch(cameras=())
    for key in keys:
        entries[key] = replace(entries[key], actions=_hash_actions(dataset[key].actions[:]))
    return replace(catalogue, trajectories=entries)


def _hash_actions(actions: Array) -> str:
    """Return a hash of actions [t a], the same for any number format; empty where all are one."""
    values = np.asarray(actions, np.float32) + 0.0  # −0 becomes 0
    if (values == values[:1]).all():
        return ""
    return hashlib.blake2b(values.tobytes(), digest_size=16).hexdigest()


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
        by_content: dict[str, set[tuple[int, str]]] = {}
        for index, prior in enumerate(self.priors):
            for key, entry in prior.trajectories.items():
                for content in {entry.fingerprint, entry.actions}:
                    by_content.setdefault(content, set()).add((index, key))
        by_content.pop("", None)
        copies = {
            key: by_content.get(entry.fingerprint, set()) | by_content.get(entry.actions, set())
            for key, entry in self.target.trajectories.items()
        }
        if self.options.shared == "all":
            return [absent.union(*copies.values()) for _ in self.queries]
        return [absent | copies[query.trajectory_id] for query in self.queries]

    def match(self, query: Segment, prior: int, found: Segment, cost: float, rank: int) -> Match:
        """Return a match with a segment of the prior of that number."""
        catalogue = self.priors[prior]
        instruction = catalogue.instruction(found.trajectory_id)
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
