"""The options of the features that a retrieval compares."""

from __future__ import annotations

from dataclasses import dataclass

from strap.embeddings import Dtype
from strap.encoders.language import TEXT_ENCODER
from strap.errors import StrapError
from strap.features.fusion import LANGUAGE, WeightedFeature
from strap.retrieval import METHODS, Method

AUTO = "auto"
"""given in place of features to fuse: choose them on the target's demonstrations"""


@dataclass(frozen=True)
class FeatureOptions:
    """The features by which the frames of target and prior are compared."""

    encoder: str = ""
    """the encoder's name; empty: the encoder of the existing stores"""
    cameras: tuple[str, ...] = ()
    """the cameras to compare; empty: those of a named store, else the agent view or all; br, fr:
    one at most"""
    dtype: Dtype = "float16"
    """the number format of new stores"""
    fuse: tuple[str, ...] = ()
    """features to fuse with the encoder's, as texts for `strap.features.fusion`; or `auto` alone:
    those that `strap.features.fusion_weights` chooses"""
    learning_steps: int | None = None
    """br, fr: optimiser steps of their features; None: their default"""
    text_encoder: str = TEXT_ENCODER
    """the encoder of instructions that are fused"""

    @property
    def fuses_instructions(self) -> bool:
        """Whether instructions are fused, or might be under `auto`."""
        names = [WeightedFeature.parse(text).name for text in self.fuse]
        return AUTO in names or LANGUAGE in names

    def require_judgeable(self, method: Method, segmentation: str, metric: str) -> None:
        """Raise if `auto` is requested but cannot choose features under the other options."""
        if AUTO not in self.fuse:
            return
        rule = None
        if len(self.fuse) > 1:
            rule = f"cannot be combined with {' '.join(text for text in self.fuse if text != AUTO)}"
        elif METHODS[method].features == "none":
            rule = f"chooses features to compare, but method '{method}' compares none"
        elif segmentation == "full":
            rule = "searches segments of demonstrations, but the queries are whole demonstrations"
        elif metric != "l2":
            rule = f"uses the metric l2, but the metric is {metric}"
        if rule:
            raise StrapError(f"--fuse auto {rule}: name what to fuse, as in --fuse gripper=0.5")
