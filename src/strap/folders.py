"""Places of the user: folders that have a usual one, and where a command writes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from strap.errors import StrapError


def require_ending(out: Path, endings: Sequence[str]) -> None:
    """Raise where a file to write has another ending, and so may be a file of another kind."""
    if out.suffix.lower() not in endings:
        raise StrapError(f"cannot write '{out}': its name must end in {' or '.join(endings)}")


def require_apart(out: Path, inputs: Iterable[Path]) -> None:
    """Raise where an output would replace one of these inputs, or lie inside it."""
    place = out.expanduser().resolve()
    for path in inputs:
        if place.is_relative_to(path.expanduser().resolve()):
            raise StrapError(
                f"'{out}' is, or lies in, what is read ('{path}'): choose another --out"
            )


def cache_folder() -> Path:
    """Return where files go that were given no place: $STRAP_CACHE, else the user's cache."""
    if chosen := os.environ.get("STRAP_CACHE"):
        return Path(chosen).expanduser()
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "strap"
