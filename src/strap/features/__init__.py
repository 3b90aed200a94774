"""The features that a retrieval method compares, as stores; what is missing is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from strap.datasets import Dataset
from strap.embeddings import Dtype, choose_cameras, embed
from strap.encoders import Encoder, load_encoder
from strap.errors import StrapError
from strap.features.fusion import fuse
from strap.progress import Progress
from strap.provenance import fingerprint_json
from strap.retrieval import METHODS, Catalogue, Method
from strap.store import EmbeddingStore, slug

if TYPE_CHECKING:
    from strap.representations import Representation

__all__ = ["FeatureOptions", "embed_beside", "prepare_features"]


@dataclass(frozen=True)
class FeatureOptions:
    """What the frames of both datasets are compared by."""

    encoder: str = ""
    cameras: tuple[str, ...] = ()
    dtype: Dtype = "float16"
    fuse: tuple[str, ...] = ()
    """what is compared besides the encoder's features, as `strap.features.fusion` takes it"""
    learning_steps: int | None = None
    """br, fr: optimiser steps of their features; None: as many as they take by default"""


def prepare_features(
    target: Dataset,
    priors: Sequence[Dataset],
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
    datasets = [target, *priors]
    kind = METHODS[method].features
    if kind == "none":
        catalogues = [Catalogue.of_dataset(dataset) for dataset in datasets]
    else:
        if kind == "encoder":
            stores = _encode(datasets, method, options, folder, device, progress)
        else:
            stores = _learn(datasets, kind, options.learning_steps, folder, device, progress)
        if options.fuse:
            stores = fuse(stores, datasets, options.fuse, folder)
        catalogues = [
            Catalogue.of_store(store, dataset.ids)
            for store, dataset in zip(stores, datasets, strict=True)
        ]
    return catalogues[0], catalogues[1:]


def _encode(
    datasets: Sequence[Dataset],
    method: Method,
    options: FeatureOptions,
    folder: Path,
    device: str,
    progress: Progress,
) -> list[EmbeddingStore]:
    if not options.encoder:
        raise StrapError(
            f"method '{method}' compares an encoder's features: name one with --encoder "
            "(dinov2-base, clip-vit-b16, efficientnet-lite0, …)"
        )
    encoder = load_encoder(options.encoder, device=device)
    return [embed_beside(folder, dataset, encoder, options, progress) for dataset in datasets]


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
    return learned.embed(dataset, folder / name, progress=_named(progress, dataset))


def embed_beside(
    folder: Path, dataset: Dataset, encoder: Encoder, options: FeatureOptions, progress: Progress
) -> EmbeddingStore:
    """Return the dataset's store in `folder`; what it lacks is embedded."""
    if not len(dataset):
        raise StrapError(f"dataset '{dataset.path}' is empty: it holds no trajectory")
    cameras = choose_cameras(dataset, options.cameras)
    first = dataset[dataset.ids[0]]
    identity = [dataset.name, dict(encoder.config), cameras, options.dtype, first.orientation]
    name = f"{slug(dataset.path.stem)}-{options.encoder.replace('/', '_')}"
    store = folder / f"{name}-{fingerprint_json(identity)[:12]}"
    return embed(
        dataset,
        encoder,
        store,
        cameras=cameras,
        dtype=options.dtype,
        progress=_named(progress, dataset),
    )


def _named(progress: Progress, dataset: Dataset) -> Progress:
    """Return a progress callback that names the dataset too."""

    def named(what: str, done: int, total: int) -> None:
        progress(f"{what} {dataset.path.name}", done, total)

    return named
