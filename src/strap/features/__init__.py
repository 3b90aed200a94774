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
from strap.features.fusion import fuse, fuse_scaled
from strap.features.fusion_weights import choose_fusion
from strap.progress import Progress
from strap.provenance import fingerprint_json
from strap.retrieval import METHODS, Catalogue, Method
from strap.store import EmbeddingStore, slug
from strap.types import Segment

if TYPE_CHECKING:
    from strap.representations import Representation

__all__ = ["FeatureOptions", "PreparedFeatures", "embed_beside", "prepare_features"]

AUTO = "auto"
"""instead of features to fuse: choose them on the target's demonstrations"""


@dataclass(frozen=True)
class FeatureOptions:
    """What the frames of both datasets are compared by."""

    encoder: str = ""
    cameras: tuple[str, ...] = ()
    dtype: Dtype = "float16"
    fuse: tuple[str, ...] = ()
    """what is compared besides the encoder's features, as `strap.features.fusion` takes it; or
    `auto` alone: what `strap.features.fusion_weights` chooses"""
    learning_steps: int | None = None
    """br, fr: optimiser steps of their features; None: as many as they take by default"""

    def require_judgeable(self, method: Method, segmentation: str, metric: str) -> None:
        """Raise where `auto` is asked for and the demonstrations cannot tell what to fuse."""
        if AUTO not in self.fuse:
            return
        rule = None
        if len(self.fuse) > 1:
            rule = f"stands alone, without {' '.join(text for text in self.fuse if text != AUTO)}"
        elif METHODS[method].features == "none":
            rule = f"chooses features to compare, but method '{method}' compares none"
        elif segmentation == "full":
            rule = "searches segments of demonstrations, but the queries are whole ones"
        elif metric != "l2":
            rule = f"judges by l2, but the metric is {metric}"
        if rule:
            raise StrapError(f"--fuse auto {rule}: name what to fuse, as in --fuse gripper=0.5")


@dataclass(frozen=True)
class PreparedFeatures:
    """The trajectories that a method compares, with their features."""

    target: Catalogue
    priors: list[Catalogue]
    fusion_reason: str | None = None
    """what was fused and why, where that was chosen here"""


def prepare_features(
    target: Dataset,
    priors: Sequence[Dataset],
    method: Method,
    options: FeatureOptions,
    folder: Path,
    *,
    queries: Sequence[Segment],
    steps: str,
    device: str,
    progress: Progress,
) -> PreparedFeatures:
    """Return the target's and the priors' trajectories with the features that a method compares.

    Args:
        target: the demonstrations of the new task.
        priors: the datasets to retrieve from.
        method: which method compares them.
        options: what they are compared by.
        folder: where stores and learned features are kept and looked for.
        queries: the target's segments, on which features to fuse are chosen.
        steps: the moves a warping path may make.
        device: where networks run.
        progress: called with (what, done, total).
    """
    datasets = [target, *priors]
    kind = METHODS[method].features
    reason = None
    if kind == "none":
        catalogues = [Catalogue.of_dataset(dataset) for dataset in datasets]
    else:
        if kind == "encoder":
            stores = _encode(datasets, method, options, folder, device, progress)
        else:
            stores = _learn(datasets, kind, options.learning_steps, folder, device, progress)
        if AUTO in options.fuse:
            choice = choose_fusion(stores, datasets, queries, steps)
            reason = choice.reason
            if choice.features:
                stores = fuse_scaled(stores, datasets, choice.features, choice.ratios, folder)
        elif options.fuse:
            stores = fuse(stores, datasets, options.fuse, folder)
        catalogues = [
            Catalogue.of_store(store, dataset.ids)
            for store, dataset in zip(stores, datasets, strict=True)
        ]
    return PreparedFeatures(catalogues[0], catalogues[1:], reason)


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
