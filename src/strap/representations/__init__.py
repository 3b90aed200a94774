"""Features learned from the prior data itself: BehaviorRetrieval's and FlowRetrieval's."""

from __future__ import annotations

from strap.representations.figures import neighbours_figure, reconstruction_figure
from strap.representations.representation import Representation, open_representation
from strap.representations.settings import Kind, RepresentationSettings
from strap.representations.training import train_representation

__all__ = [
    "Kind",
    "Representation",
    "RepresentationSettings",
    "neighbours_figure",
    "open_representation",
    "reconstruction_figure",
    "train_representation",
]
