"""Representations learned from the prior: those of BehaviorRetrieval and FlowRetrieval.

The settings need no torch; the first use of any other name imports it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from strap.representations.settings import Kind, RepresentationSettings

if TYPE_CHECKING:
    from strap.representations.figures import neighbours_figure, reconstruction_figure
    from strap.representations.representation import Representation, open_representation
    from strap.representations.training import train_representation

_MODULES = {
    "Representation": "representation",
    "neighbours_figure": "figures",
    "open_representation": "representation",
    "reconstruction_figure": "figures",
    "train_representation": "training",
}

__all__ = [
    "Kind",
    "Representation",
    "RepresentationSettings",
    "neighbours_figure",
    "open_representation",
    "reconstruction_figure",
    "train_representation",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'strap.representations' has no attribute '{name}'")
    return getattr(import_module(f"strap.representations.{_MODULES[name]}"), name)
