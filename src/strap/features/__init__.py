"""The features that a retrieval method compares, as stores; what is missing is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from strap.datasets import Dataset
from strap.features.fusion import fuse
from strap.features.options import FeatureOptions
from strap.features.stores import Source, encoder_stores, naming
from strap.progress import Progress
from strap.provenance import fingerprint_json
from strap.retrieval import METHODS, Catalogue, Method
from strap.store import EmbeddingStore, slug

if TYPE_CHECKING:
    from strap.representations import Representation

__all__ = ["FeatureOptions", "Source", "prepare_features"]


def prepare_features(
    target: Source,
    priors: Sequence[Source],
    method: Method,
    options: FeatureOptions,
    folder: Path,
    *,
    device: str,
    progress: Progress,
) -> tuple[Catalogue, list[Catalogue]]:
    """Return the target's and the priors' trajectories with the features that a method compares.

    Args:
        target: the demonstrations of the new task.
        priors: the datasets to retrieve from.
        method: which method compares them.
        options: what they are compared by.
        folder: where stores and learned features are kept and looked for.
        device: where networks run.
        progress: called with (what, done, total).
    """
    sources = [target, *priors]
    datasets = [source.dataset for source in sources]
    kind = METHODS[method].features
    if kind == "none":
        catalogues = [Catalogue.of_dataset(dataset) for dataset in datasets]
    else:
        if kind == "encoder":
            stores = encoder_stores(sources, options, folder, device=device, progress=progress)
        else:
            stores = _learn(datasets, kind, options.learning_steps, folder, device, progress)
        if options.fuse:
            stores = fuse(stores, datasets, options.fuse, folder)
        catalogues = [
            Catalogue.of_store(store, dataset.ids, dataset.name)
            for store, dataset in zip(stores, datasets, strict=True)
        ]
    return catalogues[0], catalogues[1:]


def _learn(
    datasets: Sequence[Dataset],
    kind: Literal["br", "fr"],
    steps: int | None,
    folder: Path,
    device: str,
    progress: Progress,
) -> list[EmbeddingStore]:
    """Train the method's features on the priors, whole, and embed every dataset by them."""
    from strap.representations import RepresentationSettings, train_representation

    settings = RepresentationSettings()
    if steps is not None:
        settings = replace(settings, steps=steps)
    whole = [prior.whole for prior in datasets[1:]]
    identity = [kind, asdict(settings), *([d.name, d.fingerprint()] for d in whole)]
    out = folder / f"{kind}-{fingerprint_json(identity)[:12]}"
    learned = train_representation(kind, whole, out, settings, device=device, progress=progress)
    return [_embed_by(learned, dataset, folder, progress) for dataset in datasets]


def _embed_by(
    learned: Representation, dataset: Dataset, folder: Path, progress: Progress
) -> EmbeddingStore:
    identity = [dataset.name, dict(learned.config), dataset[dataset.ids[0]].orientation]
    name = f"{slug(dataset.path.stem)}-{learned.kind}-{fingerprint_json(identity)[:12]}"
    return learned.embed(dataset, folder / name, progress=naming(progress, dataset))
