"""Which cameras of a run's datasets were compared; they may have other names in each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strap.datasets import Dataset
from strap.embeddings import choose_cameras


def compared_cameras(manifest: Mapping[str, Any], dataset: Dataset) -> tuple[str, ...]:
    """Return the cameras of a dataset that a run compared.

    Where the manifest does not say, as for fused features, they are those that were asked for, or
    would be chosen now.

    Args:
        manifest: the run's.
        dataset: its target or one of its priors.
    """
    known = dataset[dataset.ids[0]].cameras
    told = manifest.get("store_cameras")
    compared = told.get(dataset.name) if isinstance(told, dict) else None
    if isinstance(compared, list) and compared and set(map(str, compared)) <= set(known):
        return tuple(compared)
    asked_for = [name for name in manifest["arguments"]["cameras"] if name in known]
    return choose_cameras(dataset, asked_for)


def corresponding_camera(
    manifest: Mapping[str, Any], target: Dataset, dataset: Dataset, camera: str
) -> str:
    """Return which camera of a dataset is shown beside a camera of the target.

    That is the one it was compared with; else the one of its name; else the first that was
    compared.
    """
    compared = compared_cameras(manifest, dataset)
    pairs = dict(zip(compared_cameras(manifest, target), compared, strict=False))
    if camera in pairs:
        return pairs[camera]
    return camera if camera in dataset[dataset.ids[0]].cameras else compared[0]
