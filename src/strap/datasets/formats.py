"""The dataset formats: how each is detected, and which module opens it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from strap.errors import StrapError, unknown

FORMATS = {
    "lerobot": ("strap.datasets.lerobot", "is_lerobot", "open_lerobot"),
    "rlds": ("strap.datasets.rlds", "is_rlds", "open_rlds"),
    "zarr": ("strap.datasets.zarr", "is_zarr", "open_zarr"),
    "libero": ("strap.datasets.hdf5", "is_hdf5", "open_hdf5"),
    "robomimic": ("strap.datasets.hdf5", "is_hdf5", "open_hdf5"),
}
"""format name -> (module, detection function, opening function), tried in this order"""

KNOWN_LAYOUTS = (
    "robomimic or LIBERO HDF5 (a .hdf5 file or a folder of them), LeRobot (a folder with "
    "meta/info.json), RLDS (a TFDS folder with features.json) or Zarr (data/ and meta/episode_ends)"
)
MAX_SEARCHED_FOLDERS = 10
"""the most subfolders that are searched for datasets if the folder itself is not one"""


def find_opener(path: Path, format: str | None) -> tuple[str, Callable[..., tuple[str, Any]]]:
    """Return the format's name and the function that opens it."""
    if format is not None and format not in FORMATS:
        raise unknown("format", format, FORMATS)
    name = format or find_format(path)
    if name is None:
        if inner := find_datasets(path):
            names = ", ".join(dataset.name for dataset in inner)
            raise StrapError(
                f"'{path}' is a folder of datasets ({names}): name one of them, for example "
                f"'{inner[0]}'"
            )
        raise StrapError(f"'{path}' is not a dataset that can be read: expected {KNOWN_LAYOUTS}")
    module, _, opener = FORMATS[name]
    return name, getattr(import_module(module), opener)


def find_format(path: Path) -> str | None:
    """Return the name of the format of a dataset on disk, or None."""
    for name, (module, is_format, _) in FORMATS.items():
        if getattr(import_module(module), is_format)(path):
            return name
    return None


def find_datasets(folder: Path) -> list[Path]:
    """Return the datasets among the first `MAX_SEARCHED_FOLDERS` subfolders of a folder."""
    with suppress(OSError):  # the path is a file, or the folder cannot be read
        inner = sorted(path for path in folder.iterdir() if path.is_dir())[:MAX_SEARCHED_FOLDERS]
        return [path for path in inner if find_format(path)]
    return []
