"""Folders of the user that have a usual place."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return where files go that were given no place: $STRAP_CACHE, else the user's cache."""
    if chosen := os.environ.get("STRAP_CACHE"):
        return Path(chosen).expanduser()
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "strap"
