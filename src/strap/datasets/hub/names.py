"""Recognise names of hub repositories: `owner/name`, or `owner/name@revision`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DEFAULT_REVISION = "main"
FILE_ENDINGS = (".hdf5", ".h5", ".zarr", ".zip")
"""endings of texts that are always paths"""
_PART = r"[A-Za-z0-9][\w.-]{0,95}"
_NAME = re.compile(rf"({_PART}/{_PART})(?:@(\w[\w./-]{{0,199}}))?", re.ASCII)


@dataclass(frozen=True)
class HubName:
    """A dataset's repository and its revision: a branch, a tag or a commit."""

    repo: str
    revision: str = DEFAULT_REVISION

    def __str__(self) -> str:
        return self.repo if self.revision == DEFAULT_REVISION else f"{self.repo}@{self.revision}"


def find_hub_name(path: str | Path) -> HubName | None:
    """Return the repository that a text names; None if it is a path, or a file or folder exists.

    >>> find_hub_name("lerobot/no_such_folder@v2.1")
    HubName(repo='lerobot/no_such_folder', revision='v2.1')
    """
    found = _NAME.fullmatch(str(path))
    if found is None or Path(path).exists():
        return None
    repo, revision = found[1], found[2] or DEFAULT_REVISION
    if "--" in repo or ".." in f"{repo}{revision}" or repo.endswith(FILE_ENDINGS):
        return None
    return HubName(repo, revision)
