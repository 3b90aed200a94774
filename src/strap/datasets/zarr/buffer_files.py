"""Access the files of a replay buffer, in a folder or in a zip."""

from __future__ import annotations

import json
import zipfile
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from strap.datasets.untrusted import REMEDY, require_at_most
from strap.errors import StrapError

MAX_DOCUMENT_BYTES = 1 << 26
"""the largest JSON file that describes an array or a group"""
ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class BufferFiles(Protocol):
    """The interface to files by key (`data/action/0.0`)."""

    @property
    def path(self) -> Path:
        """The folder or the zip."""

    def folders(self, key: str) -> list[str]:
        """Return the names of the subfolders of a folder, sorted."""

    def size(self, key: str) -> int | None:
        """Return the length in bytes of a file's content; None if there is no such file."""

    def read(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return bytes start … stop−1 of a file."""


@dataclass(frozen=True)
class FolderFiles:
    """A `.zarr` folder."""

    path: Path

    def folders(self, key: str) -> list[str]:
        """Return the names of the folders directly in a folder, sorted; hidden ones left out."""
        folder = self.path / key
        found = (child for child in folder.iterdir() if child.is_dir()) if folder.is_dir() else ()
        return sorted(child.name for child in found if not child.name.startswith("."))

    def size(self, key: str) -> int | None:
        """Return the length of a file in bytes; None if there is no such file."""
        file = self.path / key
        return file.stat().st_size if file.is_file() else None

    def read(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return bytes start … stop−1 of a file."""
        with (self.path / key).open("rb") as stream:
            stream.seek(start)
            return stream.read(-1 if stop is None else stop - start)


@dataclass(frozen=True)
class ZipFiles:
    """A zip of a `.zarr` folder; of members with the same name the last one is read, as in zarr."""

    path: Path

    @cached_property
    def _archive(self) -> zipfile.ZipFile:
        archive = zipfile.ZipFile(self.path)
        for info in archive.infolist():
            self._require_plain(info)
        return archive

    @cached_property
    def _folders(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = defaultdict(set)
        for name in self._archive.namelist():
            *folders, _ = name.split("/")
            for depth, folder in enumerate(folders):
                found["/".join(folders[:depth])].add(folder)
        return found

    def folders(self, key: str) -> list[str]:
        """Return the names of the folders directly in a folder, sorted; hidden ones left out."""
        return sorted(name for name in self._folders.get(key, ()) if not name.startswith("."))

    def size(self, key: str) -> int | None:
        """Return the unpacked length of a member in bytes; None if there is no such member."""
        info = self._archive.NameToInfo.get(key)
        return None if info is None else info.file_size

    def read(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return bytes start … stop−1 of a member."""
        with self._archive.open(key) as stream:
            stream.seek(start)
            return stream.read(-1 if stop is None else stop - start)

    def _require_plain(self, info: zipfile.ZipInfo) -> None:
        path = PurePosixPath(info.filename)
        if path.is_absolute() or ".." in path.parts:
            raise StrapError(
                f"'{self.path}' holds the file {info.filename!a}, which is outside of it: archives "
                "may only name files in them; leave it out"
            )
        if info.compress_type not in ZIP_METHODS or info.flag_bits & 1:
            raise StrapError(
                f"'{self.path}': {info.filename!a} is encrypted or packed with the zip method "
                f"{info.compress_type}; create the zip again, stored or deflated"
            )


def read_document(store: BufferFiles, key: str) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if there is no such file."""
    size = store.size(key)
    if size is None:
        return None
    require_at_most(size, MAX_DOCUMENT_BYTES, f"bytes of JSON in '{key}'", store.path)
    try:
        found = json.loads(store.read(key))
    except (ValueError, RecursionError) as error:
        raise StrapError(f"'{store.path}': '{key}' is not JSON ({error}): {REMEDY}") from error
    if not isinstance(found, dict):
        raise StrapError(f"'{store.path}': '{key}' is not a JSON object: {REMEDY}")
    return found
