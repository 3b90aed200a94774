"""The query parameters of a request, validated: known names, each once, numbers in range."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from strap.errors import shorten, unknown
from strap.view.errors import BadRequestError

MAX_NUMBER = 10**9
MAX_TEXT = 1000
"""maximum length of a parameter in characters"""


class Parameters:
    """The query parameters of a request."""

    def __init__(self, given: Iterable[tuple[str, str]], known: Collection[str]) -> None:
        self._values: dict[str, str] = {}
        for name, value in given:
            if name not in known:
                raise BadRequestError(str(unknown("parameter", shorten(name), known)))
            if name in self._values:
                raise BadRequestError(f"parameter '{name}' is given twice: give it once")
            if len(value) > MAX_TEXT:
                raise BadRequestError(
                    f"parameter '{name}' has {len(value)} characters: the maximum is {MAX_TEXT}"
                )
            self._values[name] = value

    def text(self, name: str) -> str:
        """Return a parameter; raise if it is missing."""
        if name not in self._values:
            raise BadRequestError(f"parameter '{name}' is missing: give it")
        return self._values[name]

    def number(self, name: str, default: int | None = None) -> int:
        """Return a whole number, at least 0; if it is missing, return the default or raise."""
        if default is not None and name not in self._values:
            return default
        text = self.text(name)
        if not re.fullmatch(r"[0-9]{1,10}", text) or int(text) > MAX_NUMBER:
            raise BadRequestError(
                f"parameter '{name}' is '{shorten(text)}': it must be a whole number from 0 to "
                f"{MAX_NUMBER}"
            )
        return int(text)

    def has(self, name: str) -> bool:
        """Return whether a parameter is given."""
        return name in self._values
