"""How long jobs tell what they have done."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called as (what is being done, how many done, of how many)."""


def silent(what: str, done: int, total: int) -> None:
    """The progress callback that shows nothing."""
