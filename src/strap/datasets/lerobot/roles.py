"""Which feature of a LeRobot dataset is what, by its name."""

from __future__ import annotations

import numpy as np

from strap.datasets.image_arrays import is_image_array
from strap.datasets.lerobot.layout import BOOKKEEPING, Feature, Layout
from strap.datasets.state_names import is_state_name
from strap.errors import StrapError, unknown

ACTIONS = ("action", "actions")
OBSERVATION_PREFIX = "observation."


def is_array(feature: Feature) -> bool:
    """Return whether a feature is numbers, and not LeRobot's own numbering of frames."""
    return feature.is_numeric and feature.name not in BOOKKEEPING


def is_image_column(feature: Feature) -> bool:
    """Return whether a feature is pictures that lie as numbers in the table."""
    return is_array(feature) and is_image_array(
        feature.name, feature.shape, np.dtype(feature.dtype)
    )


def find_action(layout: Layout, name: str | None) -> str:
    """Return the feature with the actions: the one of that name, else `action` or `actions`."""
    numeric = [f.name for f in layout.features.values() if is_array(f)]
    if name is not None and name not in numeric:
        raise StrapError(f"'{layout.root}': {unknown('action feature', name, numeric)}")
    found = name or next((a for a in ACTIONS if a in numeric), None)
    if found is None:
        raise StrapError(
            f"'{layout.root}' has no feature 'action'; name one of its features with action=…: "
            f"{', '.join(numeric) or 'none'}"
        )
    return found


def find_states(layout: Layout, action: str) -> frozenset[str]:
    """Return the features that are proprioception: rows of numbers named `observation.…`.

    Where none has such a name, those with a name like `state`, `ee_pos` or `joint_positions`.
    """
    features = layout.features.values()
    rows = [f for f in features if is_array(f) and len(f.shape) == 1 and f.name != action]
    observed = [f.name for f in rows if f.name.startswith(OBSERVATION_PREFIX)]
    return frozenset(observed or [f.name for f in rows if is_state_name(f.name)])
