"""Which files of a LeRobot dataset are there; links are followed where they lead somewhere."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from strap.datasets.lerobot.layout import INFO, Layout


def rows_without_files(layout: Layout, rows: Sequence[int]) -> frozenset[int]:
    """Return the rows of episodes of which a file is missing; each folder is listed once."""
    videos = [f.name for f in layout.features.values() if f.dtype == "video" and f.is_camera]
    listed: dict[Path, frozenset[str]] = {}

    def is_present(file: Path) -> bool:
        if file.parent not in listed:
            listed[file.parent] = frozenset(_names(file.parent))
        return file.name in listed[file.parent]

    def is_complete(row: int) -> bool:
        files = [layout.data_file(row), *(layout.video_file(row, key) for key in videos)]
        return all(map(is_present, files))

    return frozenset(row for row in rows if not is_complete(row))


def _names(folder: Path) -> list[str]:
    """Names of the files in a folder; links that lead nowhere are none."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_file()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def list_files(root: Path) -> list[Path]:
    """Return every file of meta/, data/, videos/ and images/, hidden ones left out."""
    found = {root / INFO}
    folders = [root / part for part in ("meta", "data", "videos", "images")]
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                elif entry.is_file() and not entry.name.startswith("."):
                    found.add(Path(entry.path))
    return sorted(found)
