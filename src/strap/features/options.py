"""What the frames of two datasets are compared by."""

from __future__ import annotations

from dataclasses import dataclass

from strap.embeddings import Dtype


@dataclass(frozen=True)
class FeatureOptions:
    """What the frames of both datasets are compared by."""

    encoder: str = ""
    """empty: that of the stores which are there"""
    cameras: tuple[str, ...] = ()
    """empty: those of a store that was named, else the agent view or all"""
    dtype: Dtype = "float16"
    """of stores that are made"""
    fuse: tuple[str, ...] = ()
    """what is compared besides the encoder's features, as `strap.features.fusion` takes it"""
    learning_steps: int | None = None
    """br, fr: optimiser steps of their features; None: as many as they take by default"""
