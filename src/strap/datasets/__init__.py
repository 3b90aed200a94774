"""Datasets on disk: `open_dataset(path)` finds the format by looking."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from strap.datasets.base import Dataset, Reader, natural
from strap.errors import StrapError, unknown
from strap.types import Orientation

__all__ = ["Dataset", "Reader", "natural", "open_dataset"]

FORMATS = ("libero", "robomimic")


def open_dataset(
    path: str | Path,
    *,
    format: str | None = None,
    orientation: Orientation | None = None,
) -> Dataset:
    """Open a dataset: a file or a folder, its format found by looking.

    Opening lists the trajectories and reads no frame.

    Args:
        path: a robomimic or LIBERO HDF5 file, or a folder of them.
        format: name the format instead of looking (`libero`, `robomimic`).
        orientation: how images lie on disk, `upright` or `flipped` (bottom row first); by default
            as the format says (LIBERO: flipped).
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise StrapError(f"no such dataset: '{path}'; check the path")
    if orientation not in (None, "upright", "flipped"):
        raise unknown("orientation", orientation, ("upright", "flipped"))
    name, reader = _opener(path, format)(path, orientation=orientation)
    return Dataset(path, name, reader)


def _opener(path: Path, format: str | None) -> Callable[..., tuple[str, Any]]:
    from strap.datasets import hdf5

    if format is not None and format not in FORMATS:
        raise unknown("format", format, FORMATS)
    if format is not None or hdf5.is_hdf5(path):
        return hdf5.open_hdf5
    raise StrapError(
        f"'{path}' is no dataset that can be read: expected {_expectations()}; "
        "name the format if its files have unusual names"
    )


def _expectations() -> str:
    return "an HDF5 file (.hdf5, .h5) of robomimic or LIBERO, or a folder of such files"
