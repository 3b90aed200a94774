"""List the files of a LeRobot dataset, and those that are missing; links are followed."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from strap.datasets.lerobot.layout import INFO, Layout


def missing_files(layout: Layout, present: Collection[str] | None = None) -> dict[str, list[int]]:
    """Return the rows of episodes with missing files: `table`, `video of camera front`, … -> rows.

    Args:
        layout: the dataset's layout.
        present: the files of the dataset, as paths relative to its folder; by default each folder
            is listed once.
    """
    listed: dict[Path, frozenset[str]] = {}

    def is_missing(file: Path) -> bool:
        if present is not None:
            return file.relative_to(layout.root).as_posix() not in present
        if file.parent not in listed:
            listed[file.parent] = frozenset(_names(file.parent))
        return file.name not in listed[file.parent]

    rows = range(len(layout.columns["episode_index"]))
    found = {"table": [row for row in rows if is_missing(layout.data_file(row))]}
    for feature in layout.features.values():
        if feature.dtype == "video" and feature.is_camera:
            files = (layout.video_file(row, feature.name) for row in rows)
            what = f"video of camera {feature.camera_name}"
            found[what] = [row for row, file in zip(rows, files, strict=True) if is_missing(file)]
    return found


def _names(folder: Path) -> list[str]:
    """Return the names of the files in a folder, without broken or circular links."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if _is_file(entry)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_file(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):  # a circular link
        return entry.is_file()
    return False


def list_files(layout: Layout) -> list[Path]:
    """Return `meta/info.json` and all files that are not hidden in the dataset's folders."""
    found = {layout.root / INFO}
    folders = [layout.root / name for name in layout.folders]
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                elif entry.is_file() and not entry.name.startswith("."):
                    found.add(Path(entry.path))
    return sorted(found)
