"""Datasets on disk: `open_dataset(path)` finds the format by looking."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from strap.datasets.base import Dataset, Reader, natural
from strap.datasets.hub import fetch_snapshot, find_hub_name, find_snapshot
from strap.datasets.untrusted import reading
from strap.errors import StrapError, unknown
from strap.progress import Progress, silent
from strap.types import Orientation

__all__ = ["Dataset", "OpenOptions", "Reader", "is_opening", "natural", "open_dataset"]

FORMATS = {
    "lerobot": ("strap.datasets.lerobot", "is_lerobot", "open_lerobot"),
    "rlds": ("strap.datasets.rlds", "is_rlds", "open_rlds"),
    "zarr": ("strap.datasets.zarr", "is_zarr", "open_zarr"),
    "libero": ("strap.datasets.hdf5", "is_hdf5", "open_hdf5"),
    "robomimic": ("strap.datasets.hdf5", "is_hdf5", "open_hdf5"),
}
"""name -> (module, who says whether a path is one, who opens it), asked in this order"""

EXPECTED = (
    "robomimic or LIBERO HDF5 (a .hdf5 file or a folder of them), LeRobot (a folder with "
    "meta/info.json), RLDS (a TFDS folder with features.json) or Zarr (data/ and meta/episode_ends)"
)
OPENING = {"format", "orientation", "missing", "fields"}
"""arguments of `open_dataset` that say how a dataset is read"""
NAMED = 10
"""how many folders of a folder are looked at, to name the datasets among them"""


@dataclass(frozen=True)
class OpenOptions:
    """How to read a dataset, where looking is not enough."""

    format: str | None = None
    """name the format instead of looking: lerobot, rlds, zarr, libero, robomimic"""
    orientation: Orientation | None = None
    """how images lie on disk, `upright` or `flipped` (bottom row first); by default as the format
    says (LIBERO: flipped)"""
    missing: Literal["error", "skip"] = "error"
    """episodes whose video or shard is absent: an error when they are read, or left out"""
    camera: tuple[str, ...] = ()
    """RLDS: the step's fields that are cameras, where their kind does not tell"""
    language: tuple[str, ...] = ()
    """RLDS: the step's field (or fields) with the instruction"""
    action: tuple[str, ...] = ()
    """RLDS: the step's fields that make the action"""

    def open(self, path: str | Path, progress: Progress = silent) -> Dataset:
        """Open a dataset with these options."""
        return open_dataset(path, **self.arguments(), progress=progress)

    def arguments(self) -> dict[str, Any]:
        """Return what is given, as arguments of `open_dataset`."""
        roles = {"camera": self.camera, "language": self.language, "action": self.action}
        return _given(self.format, self.orientation, self.missing, roles)


def _given(
    format: str | None,
    orientation: str | None,
    missing: str,
    fields: Mapping[str, str | Sequence[str]] | None,
) -> dict[str, Any]:
    """Return the arguments that are no defaults, as JSON has them."""
    named = {
        role: [paths] if isinstance(paths, str) else list(paths)
        for role, paths in (fields or {}).items()
        if paths
    }
    chosen = {"format": format, "orientation": orientation, "fields": named}
    chosen["missing"] = None if missing == "error" else missing
    return {name: value for name, value in chosen.items() if value}


def is_opening(value: object) -> bool:
    """Return whether a value out of a file tells how a dataset was read, as `Dataset.opening`."""
    if not isinstance(value, dict) or not value.keys() <= OPENING:
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
    """Open a dataset: a file or a folder, its format found by looking, or the hub's by its name.

    Opening lists the trajectories and reads no frame.

    Args:
        path: robomimic or LIBERO HDF5 (a file or a folder of them), a LeRobot folder (v2.1 or
            v3.0), an RLDS/TFDS folder, or Zarr as diffusion_policy and UMI write it; where
            nothing lies there, `owner/name` or `owner/name@revision` of a LeRobot dataset on the
            Hugging Face hub, of which `meta/` is fetched now and the rest when it is read.
        format: name the format instead of looking (`lerobot`, `rlds`, `zarr`, `libero`,
            `robomimic`).
        orientation: how images lie on disk, `upright` or `flipped` (bottom row first); by default
            as the format says (LIBERO: flipped).
        missing: what to do about episodes whose video or shard is absent: `error` when they are
            read, or `skip` them (one line says how many).
        fields: RLDS: which fields of a step are `camera`, `position`, `language`, `action`.
        progress: called with (what, megabytes fetched, megabytes in all) while `meta/` is fetched.
    """
    given, path = path, Path(path).expanduser()
    if hub_name := find_hub_name(given):  # as it was written: ./owner/name is a path
        path = fetch_snapshot(hub_name, progress).path
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
    name, opener = _opener(path, format)
    options: dict[str, Any] = {"orientation": orientation}
    if "missing" in inspect.signature(opener).parameters:
        options["missing"] = missing
    if fields:
        if "fields" not in inspect.signature(opener).parameters:
            raise StrapError(
                f"'{path}' is {name}: naming its {', '.join(fields)} field is for RLDS"
            )
        options["fields"] = fields
    with reading(path, name):
        found, reader = opener(path, **options)
    if summary := getattr(reader, "summary", ""):
        warnings.warn(f"'{path}': {summary}", stacklevel=2)
    return Dataset(path, found, reader, _given(format, orientation, missing, fields))


def _opener(path: Path, format: str | None) -> tuple[str, Callable[..., tuple[str, Any]]]:
    if format is not None and format not in FORMATS:
        raise unknown("format", format, FORMATS)
    name = format or _find_format(path)
    if name is None:
        if inner := _datasets_in(path):
            names = ", ".join(dataset.name for dataset in inner)
            raise StrapError(f"'{path}' is a folder of datasets ({names}): name one, '{inner[0]}'")
        raise StrapError(f"'{path}' is no dataset that can be read: expected {EXPECTED}")
    module, _, opener = FORMATS[name]
    return name, getattr(import_module(module), opener)


def _find_format(path: Path) -> str | None:
    for name, (module, is_format, _) in FORMATS.items():
        if getattr(import_module(module), is_format)(path):
            return name
    return None


def _datasets_in(folder: Path) -> list[Path]:
    """Return the folders in a folder that are datasets, of its first `NAMED`."""
    with suppress(OSError):  # a file, or a folder that may not be read: there is nothing to name
        inner = sorted(path for path in folder.iterdir() if path.is_dir())[:NAMED]
        return [path for path in inner if _find_format(path)]
    return []
