"""Stores of the features that a retrieval method compares; missing stores are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from strap.datasets import Dataset
from strap.errors import StrapError
from strap.features.fingerprints import fingerprint_features
from strap.features.fusion import fuse, fuse_scaled
from strap.features.fusion_weights import choose_fusion
from strap.features.options import AUTO, FeatureOptions
from strap.features.sources import (
    RetrievalInput,
    encoder_stores,
    explain_encoder,
    name_dataset,
    reopen_stores,
)
from strap.progress import Progress
from strap.provenance import fingerprint_json
from strap.retrieval import METHODS, Catalogue, Method, list_catalogues
from strap.store import EmbeddingStore, slug
from strap.types import Segment

if TYPE_CHECKING:
    from strap.representations import Representation

__all__ = [
    "FeatureOptions",
    "PreparedFeatures",
    "RetrievalInput",
    "fingerprint_features",
    "prepare_features",
    "reopen_stores",
]


@dataclass(frozen=True)
class PreparedFeatures:
    """The trajectories that a method compares, with their features."""

    target: Catalogue
    priors: list[Catalogue]
    fusion_reason: str | None = None
    """what was fused and why, if the features to fuse are `auto`"""
    encoder_reason: str | None = None
    """which encoder is used and why, if an existing store decides it"""


def prepare_features(
    target: RetrievalInput,
    priors: Sequence[RetrievalInput],
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
        method: the retrieval method.
        options: which features to compare.
        folder: where stores and learned features are searched for and written.
        queries: the target's segments; `auto` chooses the features to fuse on them.
        steps: the moves that a warping path may make.
        device: where networks run.
        progress: called with (what, done, total).
    """
    sources = [target, *priors]
    datasets = [source.dataset for source in sources]
    kind = METHODS[method].features
    reason = encoder_reason = None
    if kind == "none":
        catalogues = list_catalogues(datasets)
    else:
        if kind == "encoder":
            encoder_reason = explain_encoder(sources, options, folder)
            stores = encoder_stores(sources, options, folder, device=device, progress=progress)
        else:
            stores = _learn_features(datasets, kind, options, folder, device, progress)
        if AUTO in options.fuse:
            choice = choose_fusion(
                stores, datasets, queries, steps, text_encoder=options.text_encoder
            )
            reason, chosen = choice.reason, choice.features
            if chosen:
                stores = fuse_scaled(stores, datasets, chosen, choice.ratios, folder)
        elif options.fuse:
            stores = fuse(stores, datasets, options.fuse, folder, text_encoder=options.text_encoder)
        catalogues = list_catalogues(datasets, stores)
    return PreparedFeatures(catalogues[0], catalogues[1:], reason, encoder_reason)


def _learn_features(
    datasets: Sequence[Dataset],
    kind: Literal["br", "fr"],
    options: FeatureOptions,
    folder: Path,
    device: str,
    progress: Progress,
) -> list[EmbeddingStore]:
    """Train the method's representation on the whole priors and embed every dataset with it."""
    from strap.representations import RepresentationSettings, train_representation

    if len(options.cameras) > 1:
        raise StrapError(
            f"method '{kind}' uses one camera, but {len(options.cameras)} are given "
            f"({', '.join(options.cameras)}): name one with --cameras"
        )
    settings = RepresentationSettings(camera=next(iter(options.cameras), None))
    if options.learning_steps is not None:
        settings = replace(settings, steps=options.learning_steps)
    priors = [prior.full_dataset for prior in datasets[1:]]
    data = [[prior.name, prior.fingerprint(), prior.read_as] for prior in priors]
    identity = [kind, asdict(settings), data]
    out = folder / f"{kind}-{fingerprint_json(identity)[:12]}"
    learned = train_representation(kind, priors, out, settings, device=device, progress=progress)
    return [_embed_learned(learned, dataset, folder, progress) for dataset in datasets]


def _embed_learned(
    learned: Representation, dataset: Dataset, folder: Path, progress: Progress
) -> EmbeddingStore:
    identity = [dataset.name, dict(learned.config), dataset.read_as]
    name = f"{slug(Path(dataset.label).stem)}-{learned.kind}-{fingerprint_json(identity)[:12]}"
    return learned.embed(dataset, folder / name, progress=name_dataset(progress, dataset))
