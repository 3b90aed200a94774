"""Find the roles of LeRobot features (action, proprioception, camera) by their names."""

from __future__ import annotations

import numpy as np

from strap.datasets.image_arrays import is_image_array
from strap.datasets.lerobot.layout import BOOKKEEPING, Feature, Layout
from strap.datasets.state_names import is_state_name
from strap.errors import StrapError, unknown

ACTIONS = ("action", "actions")
OBSERVATION_PREFIX = "observation."


def is_array(feature: Feature) -> bool:
    """Return whether a feature is numeric and not one of LeRobot's bookkeeping columns."""
    return feature.is_numeric and feature.name not in BOOKKEEPING


def is_image_column(feature: Feature) -> bool:
    """Return whether a feature holds images as numbers in the table."""
    return is_array(feature) and is_image_array(
        feature.name, feature.shape, np.dtype(feature.dtype)
    )


def find_action(layout: Layout, name: str | None) -> str:
    """Return the feature with the actions: `name` if given, else `action` or `actions`."""
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
    """Return the features that are proprioception: vectors named `observation.…`.

    If there are none, return vectors with names such as `state`, `ee_pos` or `joint_positions`.
    """
    features = layout.features.values()
    vectors = [f.name for f in features if is_array(f) and len(f.shape) == 1 and f.name != action]
    observed = [name for name in vectors if name.startswith(OBSERVATION_PREFIX)]
    return frozenset(observed or filter(is_state_name, vectors))
