"""Datasets on disk: `open_dataset(path)` detects the format."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from strap.datasets.base import Dataset, Reader, natural_sort_key
from strap.datasets.formats import find_opener
from strap.datasets.hub import fetch_snapshot, find_hub_name, find_snapshot
from strap.datasets.untrusted import explain_read_errors
from strap.errors import StrapError, unknown
from strap.progress import Progress, silent
from strap.types import Orientation

__all__ = ["Dataset", "OpenOptions", "Reader", "is_opening", "natural_sort_key", "open_dataset"]

OPENING_ARGUMENTS = {"format", "orientation", "missing", "fields"}
"""arguments of `open_dataset` that change how a dataset is read"""


@dataclass(frozen=True)
class OpenOptions:
    """The options of how a dataset is read, for what cannot be detected."""

    format: str | None = None
    """the format, instead of detecting it: lerobot, rlds, zarr, libero, robomimic"""
    orientation: Orientation | None = None
    """how images are stored, `upright` or `flipped` (bottom row first); by default as the format
    says (LIBERO: flipped)"""
    missing: Literal["error", "skip"] = "error"
    """episodes whose video or shard is missing: raise an error when they are read, or skip them"""
    camera: tuple[str, ...] = ()
    """RLDS: the fields of a step that are cameras, if their type does not show it"""
    language: tuple[str, ...] = ()
    """RLDS: the field (or fields) of a step with the instruction"""
    action: tuple[str, ...] = ()
    """RLDS: the fields of a step that make up the action"""

    def open(self, path: str | Path, progress: Progress = silent) -> Dataset:
        """Open a dataset with these options."""
        return open_dataset(path, **self.arguments(), progress=progress)

    def arguments(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, as arguments of `open_dataset`."""
        roles = {"camera": self.camera, "language": self.language, "action": self.action}
        return _changed_arguments(self.format, self.orientation, self.missing, roles)


def _changed_arguments(
    format: str | None,
    orientation: str | None,
    missing: str,
    fields: Mapping[str, str | Sequence[str]] | None,
) -> dict[str, Any]:
    """Return the arguments that differ from their defaults, as values for JSON."""
    named = {
        role: [paths] if isinstance(paths, str) else list(paths)
        for role, paths in (fields or {}).items()
        if paths
    }
    chosen = {"format": format, "orientation": orientation, "fields": named}
    chosen["missing"] = None if missing == "error" else missing
    return {name: value for name, value in chosen.items() if value}


def is_opening(value: object) -> bool:
    """Return whether a value read from a file has the form of `Dataset.opening`."""
    if not isinstance(value, dict) or not value.keys() <= OPENING_ARGUMENTS:
        return False
    fields = value.get("fields", {})
    if not isinstance(fields, dict) or not all(isinstance(p, list) for p in fields.values()):
        return False
    texts = [text for name, text in value.items() if name != "fields"]
    texts += [path for paths in fields.values() for path in paths]
    return all(isinstance(text, str) for text in texts)


def open_dataset(
    path: str | Path,
    *,
    format: str | None = None,
    orientation: Orientation | None = None,
    missing: Literal["error", "skip"] = "error",
    fields: Mapping[str, str | Sequence[str]] | None = None,
    progress: Progress = silent,
) -> Dataset:
    """Open a dataset on disk or on the Hugging Face hub, and detect its format.

    Opening lists the trajectories and reads no frames.

    Args:
        path: robomimic or LIBERO HDF5 (a file or a folder of them), a LeRobot folder (v2.1 or
            v3.0), an RLDS/TFDS folder, or a Zarr replay buffer as diffusion_policy and UMI write
            it. If the path does not exist, `owner/name` or `owner/name@revision` is a LeRobot
            dataset on the Hugging Face hub: its `meta/` is fetched now, other files when they are
            read.
        format: the format, instead of detecting it (`lerobot`, `rlds`, `zarr`, `libero`,
            `robomimic`).
        orientation: how images are stored, `upright` or `flipped` (bottom row first); by default
            as the format says (LIBERO: flipped).
        missing: how to treat episodes whose video or shard is missing: `error` raises when they
            are read, `skip` leaves them out and warns how many were skipped.
        fields: RLDS: the fields of a step for `camera`, `position`, `language`, `action`.
        progress: called with (what, megabytes fetched, total megabytes) while `meta/` is fetched.
    """
    # The hub's name is looked for before the path is expanded: ./owner/name is a path.
    hub_name = find_hub_name(path)
    path = fetch_snapshot(hub_name, progress).path if hub_name else Path(path).expanduser()
    if not path.exists() and (removed := find_snapshot(path)):
        raise StrapError(
            f"'{path}' is no longer in the hub's cache: fetch it again, with `strap inspect "
            f"{removed.name}`"
        )
    if not path.exists():
        raise StrapError(f"no such dataset: '{path}'; check the path")
    if orientation not in (None, "upright", "flipped"):
        raise unknown("orientation", orientation, ("upright", "flipped"))
    if missing not in ("error", "skip"):
        raise unknown("treatment of missing episodes", missing, ("error", "skip"))
    name, opener = find_opener(path, format)
    options: dict[str, Any] = {"orientation": orientation}
    if "missing" in inspect.signature(opener).parameters:
        options["missing"] = missing
    if fields:
        if "fields" not in inspect.signature(opener).parameters:
            raise StrapError(
                f"'{path}' is {name}: fields can be named only for RLDS, but {', '.join(fields)} "
                "was given; leave it out"
            )
        options["fields"] = fields
    with explain_read_errors(path, name):
        found, reader = opener(path, **options)
    if summary := getattr(reader, "summary", ""):
        warnings.warn(f"'{path}': {summary}", stacklevel=2)
    return Dataset(path, found, reader, _changed_arguments(format, orientation, missing, fields))
