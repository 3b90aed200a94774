"""What the frames of two datasets are compared by."""

from __future__ import annotations

from dataclasses import dataclass

from strap.embeddings import Dtype
from strap.encoders.language import TEXT_ENCODER
from strap.errors import StrapError
from strap.features.fusion import LANGUAGE, WeightedFeature
from strap.retrieval import METHODS, Method

AUTO = "auto"
"""instead of features to fuse: choose them on the target's demonstrations"""


@dataclass(frozen=True)
class FeatureOptions:
    """What the frames of both datasets are compared by."""

    encoder: str = ""
    """empty: that of the stores which are there"""
    cameras: tuple[str, ...] = ()
    """empty: those of a store that was named, else the agent view or all; br, fr: one at most"""
    dtype: Dtype = "float16"
    """of stores that are made"""
    fuse: tuple[str, ...] = ()
    """what is compared besides the encoder's features, as `strap.features.fusion` takes it; or
    `auto` alone: what `strap.features.fusion_weights` chooses"""
    learning_steps: int | None = None
    """br, fr: optimiser steps of their features; None: as many as they take by default"""
    text_encoder: str = TEXT_ENCODER
    """what embeds the instructions that are fused"""

    @property
    def fuses_instructions(self) -> bool:
        """Whether instructions are compared, or may be."""
        names = [WeightedFeature.parse(text).name for text in self.fuse]
        return AUTO in names or LANGUAGE in names

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
