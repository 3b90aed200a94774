"""Train policies: a frame cache, windows to draw from it, and the training loop."""

from __future__ import annotations

from strap.training.cache import FrameCache, open_cache
from strap.training.loop import Trained, train
from strap.training.settings import TrainingSettings, training_preset

__all__ = ["FrameCache", "Trained", "TrainingSettings", "open_cache", "train", "training_preset"]
