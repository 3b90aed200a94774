"""The parameters of a request: known ones, each once, whole numbers within their range."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from strap.errors import shorten, unknown
from strap.view.refusals import BadRequestError

MAX_NUMBER = 10**9
MAX_TEXT = 1000
"""letters of a parameter"""


class Parameters:
    """What follows the question mark of an address."""

    def __init__(self, given: Iterable[tuple[str, str]], known: Collection[str]) -> None:
        self._values: dict[str, str] = {}
        for name, value in given:
            if name not in known:
                raise BadRequestError(str(unknown("parameter", shorten(name), known)))
            if name in self._values:
                raise BadRequestError(f"parameter '{name}' is given twice: give it once")
            if len(value) > MAX_TEXT:
                raise BadRequestError(
                    f"parameter '{name}' has {len(value)} letters: {MAX_TEXT} are the most"
                )
            self._values[name] = value

    def text(self, name: str) -> str:
        """Return a parameter that must be there."""
        if name not in self._values:
            raise BadRequestError(f"parameter '{name}' is missing: give it")
        return self._values[name]

    def number(self, name: str, default: int | None = None) -> int:
        """Return a whole number from 0 on; the default where it is not given and there is one."""
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
