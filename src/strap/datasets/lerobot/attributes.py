"""The attributes of a LeRobot episode: what is stored once per episode."""

from __future__ import annotations

import math
from typing import Any

from strap.datasets.lerobot.layout import PROVENANCE, Layout


def read_attributes(layout: Layout, row: int) -> dict[str, Any]:
    """Return an episode's tasks, feature names, place in the dataset and provenance."""
    found: dict[str, Any] = {
        "episode_index": int(layout.columns["episode_index"][row]),
        "dataset_from_index": int(layout.columns["dataset_from_index"][row]),
        "feature_names": {
            f.name: labels for f in layout.features.values() if (labels := _labels(f.names))
        },
    }
    if len(layout.columns["tasks"][row]) > 1:
        found["tasks"] = list(layout.columns["tasks"][row])
    provenance = {
        name.removeprefix(PROVENANCE): values[row]
        for name, values in layout.columns.items()
        if name.startswith(PROVENANCE) and not _is_null(values[row])
    }
    return found | ({"provenance": provenance} if provenance else {})


def _labels(names: Any) -> list[str]:
    """Return the names of a feature's columns, also if nested: [[…]], {"motors": […]}.

    Anything other than a list of texts and numbers counts as no names.
    """
    if isinstance(names, dict):
        names = list(names.values())
    while isinstance(names, list) and len(names) == 1 and isinstance(names[0], list):
        names = names[0]
    is_flat = isinstance(names, list) and all(isinstance(n, str | int | float) for n in names)
    return [str(name) for name in names] if is_flat else []


def _is_null(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
