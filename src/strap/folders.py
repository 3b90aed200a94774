"""Checks of output paths, and the user's cache folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from strap.errors import StrapError


def require_ending(out: Path, endings: Sequence[str]) -> None:
    """Raise if an output file's name has none of these endings: it could be another kind."""
    if out.suffix.lower() not in endings:
        raise StrapError(f"cannot write '{out}': its name must end in {' or '.join(endings)}")


def require_separate_output(out: Path, inputs: Iterable[Path]) -> None:
    """Raise if an output would replace one of these inputs, or be inside it."""
    place = out.expanduser().resolve()
    for path in inputs:
        if place.is_relative_to(path.expanduser().resolve()):
            raise StrapError(
                f"'{out}' is the input '{path}', or is inside it: choose another --out"
            )


def cache_folder() -> Path:
    """Return the default folder for stores and caches: $STRAP_CACHE, else in the user's cache."""
    if chosen := os.environ.get("STRAP_CACHE"):
        return Path(chosen).expanduser()
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "strap"
