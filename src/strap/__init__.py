"""STRAP: robot sub-trajectory retrieval for augmented policy learning.

Importing this package does not import heavy libraries; each public name imports its own package
when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strap import dtw
    from strap.augmentation import augment
    from strap.datasets import Dataset, open_dataset
    from strap.embeddings import EmbeddingStore, embed, open_store
    from strap.encoders import Encoder, load_encoder
    from strap.errors import StrapError
    from strap.policies import load_policy
    from strap.retrieval import retrieve
    from strap.segments import segment
    from strap.types import Match, Matches, Segment, Trajectory

__version__ = "0.1.0"

_MODULES = {
    "Dataset": "datasets",
    "EmbeddingStore": "embeddings",
    "Encoder": "encoders",
    "Match": "types",
    "Matches": "types",
    "Segment": "types",
    "StrapError": "errors",
    "Trajectory": "types",
    "augment": "augmentation",
    "embed": "embeddings",
    "load_encoder": "encoders",
    "load_policy": "policies",
    "open_dataset": "datasets",
    "open_store": "embeddings",
    "retrieve": "retrieval",
    "segment": "segments",
}

__all__ = [
    "Dataset",
    "EmbeddingStore",
    "Encoder",
    "Match",
    "Matches",
    "Segment",
    "StrapError",
    "Trajectory",
    "__version__",
    "augment",
    "dtw",
    "embed",
    "load_encoder",
    "load_policy",
    "open_dataset",
    "open_store",
    "retrieve",
    "segment",
]


def __getattr__(name: str) -> Any:
    if name == "dtw":
        return import_module("strap.dtw")
    if name not in _MODULES:
        raise AttributeError(f"module 'strap' has no attribute '{name}'")
    return getattr(import_module(f"strap.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
