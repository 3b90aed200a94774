"""The trajectories of a retrieval, and which of them a query must not match."""

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
    """What a retrieval knows about a trajectory without reading its frames."""

    length: int
    instruction: str
    fingerprint: str
    """two trajectories with the same fingerprint are the same recording"""
    actions: str = ""
    """a hash of its actions, which identifies the recording across cameras and file formats;
    empty if the actions never change or were not read"""


@dataclass(frozen=True)
class Catalogue:
    """The trajectories of one dataset that take part in a retrieval."""

    dataset: str
    """the dataset's path, as matches name it"""
    trajectories: Mapping[str, CatalogueEntry]
    store: EmbeddingStore | None = None
    """their features; trajectories of the store that are not in `trajectories` are ignored"""
    source: Dataset | None = None
    """the dataset that instructions are read from; None: from the entries"""
    _instructions: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of_store(
        cls, store: EmbeddingStore, ids: Sequence[str] | None = None, dataset: str | None = None
    ) -> Catalogue:
        """Return the catalogue of a store.

        Args:
            store: the features.
            ids: the trajectories to list; None: all.
            dataset: the dataset's current path; None: the path that the store recorded.
        """
        stored = {key: store.entry(key) for key in (store.ids if ids is None else ids)}
        entries = {
            key: CatalogueEntry(entry.length, entry.instruction, entry.fingerprint)
            for key, entry in stored.items()
        }
        return cls(store.dataset if dataset is None else dataset, entries, store)

    @classmethod
    def of_dataset(cls, dataset: Dataset) -> Catalogue:
        """Return the catalogue of a dataset without features; actions identify trajectories."""
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

    A store's fingerprint depends on the cameras in it, so it does not always identify a recording.
    Actions do: they are read for the demonstrations, and for prior trajectories that are as long
    as a demonstration.

    Args:
        datasets: the target and the priors.
        stores: their features, in the same order; None if the method compares no features.
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
    """Return the catalogue with hashes of the actions, where these might identify a recording.

    Args:
        catalogue: the trajectories.
        dataset: the dataset that they are from.
        lengths: read only trajectories of these lengths.
        known: skip trajectories with these fingerprints, which are identified already.
    """
    entries = dict(catalogue.trajectories)
    keys = [k for k, e in entries.items() if e.length in lengths and e.fingerprint not in known]
    dataset.select(keys).fetch(cameras=())
    for key in keys:
        entries[key] = replace(entries[key], actions=_hash_actions(dataset[key].actions[:]))
    return replace(catalogue, trajectories=entries)


def _hash_actions(actions: Array) -> str:
    """Return a hash of actions [t a] that does not depend on their dtype; "" if all rows agree."""
    values = np.asarray(actions, np.float32) + 0.0  # −0 becomes 0
    if (values == values[:1]).all():
        return ""
    return hashlib.blake2b(values.tobytes(), digest_size=16).hexdigest()


Trajectories = EmbeddingStore | Catalogue


@dataclass(frozen=True)
class Problem:
    """The input of a retrieval method."""

    queries: Sequence[Segment]
    target: Catalogue
    priors: Sequence[Catalogue]
    options: MatchOptions
    execution: Execution | None = None
    progress: Progress = silent
    searcher: StoreSearcher | None = None
    """the function that searches the stores; None: `search_stores`"""

    def stores(self) -> tuple[EmbeddingStore, list[EmbeddingStore]]:
        """Return the stores of the target and of the priors; raise if their encoders differ."""
        target, *priors = (catalogue.store for catalogue in (self.target, *self.priors))
        if target is None or None in priors:
            raise StrapError(
                f"method '{self.options.method}' compares features: embed target and prior first"
            )
        found = [store for store in priors if store is not None]
        for prior in found:
            _require_same_encoder(target, prior)
        return target, found

    def excluded(self) -> list[set[tuple[int, str]]]:
        """Return for each query the (prior, trajectory) pairs that it must not match."""
        not_listed = {
            (index, key)
            for index, prior in enumerate(self.priors)
            if prior.store is not None
            for key in prior.store.ids
            if key not in prior.trajectories
        }
        if self.options.shared == "keep":
            return [not_listed for _ in self.queries]
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
            return [not_listed.union(*copies.values()) for _ in self.queries]
        return [not_listed | copies[query.trajectory_id] for query in self.queries]

    def match(self, query: Segment, prior: int, segment: Segment, cost: float, rank: int) -> Match:
        """Return the match of a query with a segment of `self.priors[prior]`."""
        catalogue = self.priors[prior]
        instruction = catalogue.instruction(segment.trajectory_id)
        return Match(query, segment, cost, rank, instruction, catalogue.dataset)


@dataclass(frozen=True)
class Retrieved:
    """The matches that a method kept, and the statistics of its search."""

    matches: Matches
    statistics: SearchStatistics
    reason: str | None = None
    """why this number of matches is kept, if `top_k` is `auto`"""


def as_catalogue(trajectories: Trajectories) -> Catalogue:
    """Return the catalogue of a store; a catalogue is returned as it is."""
    if isinstance(trajectories, EmbeddingStore):
        return Catalogue.of_store(trajectories)
    return trajectories


def _require_same_encoder(target: EmbeddingStore, prior: EmbeddingStore) -> None:
    target_encoder, prior_encoder = target.config.encoder, prior.config.encoder
    if target_encoder != prior_encoder or target.dim != prior.dim:
        raise StrapError(
            f"store '{prior.path}' was made with encoder {dict(prior_encoder)}, but the target's "
            f"store '{target.path}' with {dict(target_encoder)}: embed both with the same encoder"
        )
