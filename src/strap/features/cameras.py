"""The cameras that a run compared; their names can differ between its datasets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strap.datasets import Dataset
from strap.embeddings import choose_cameras


def compared_cameras(manifest: Mapping[str, Any], dataset: Dataset) -> tuple[str, ...]:
    """Return the cameras of a dataset that a run compared.

    If the manifest does not record them, as for fused features, return the cameras that the run's
    options name, or else those that would be chosen by default.

    Args:
        manifest: the run's manifest.
        dataset: the run's target or one of its priors.
    """
    known = dataset[dataset.ids[0]].cameras
    recorded = manifest.get("store_cameras")
    compared = recorded.get(dataset.name) if isinstance(recorded, dict) else None
    if isinstance(compared, list) and compared and set(map(str, compared)) <= set(known):
        return tuple(compared)
    requested = [name for name in manifest["arguments"]["cameras"] if name in known]
    return choose_cameras(dataset, requested)


def corresponding_camera(
    manifest: Mapping[str, Any], target: Dataset, dataset: Dataset, camera: str
) -> str:
    """Return the camera of a dataset to show beside a camera of the target.

    It is the camera that the target's was compared with. If the target's was not compared, it is
    the camera with the same name, or else the first compared one.
    """
    compared = compared_cameras(manifest, dataset)
    pairs = dict(zip(compared_cameras(manifest, target), compared, strict=False))
    if camera in pairs:
        return pairs[camera]
    return camera if camera in dataset[dataset.ids[0]].cameras else compared[0]
