"""Check the types of numbers and texts in metadata; an error names the value."""

from __future__ import annotations

import json
import reprlib
from collections import Counter
from typing import Any

from strap.errors import StrapError

MAX_WHOLE_NUMBER = (1 << 63) - 1
"""the largest whole number that a table can hold"""

_short = reprlib.Repr()
_short.maxstring = _short.maxlong = 120
_short.maxlevel = 3


def short_repr(value: Any) -> str:
    """Return the repr of a value for an error message, shortened if it is long or nested."""
    return _short.repr(value)


def parse_json(data: bytes) -> Any:
    """Return the content of JSON; raise `ValueError` if an object has the same key twice."""
    return json.loads(data, object_pairs_hook=_require_distinct_keys)


def _require_distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {short_repr(twice)} occurs twice")
    return found


def expect_whole_number(value: Any, what: str, *, least: int = 0) -> int:
    """Return a whole number of at least `least`; `what` names it and its file in the error.

    `3.0` is accepted, because pandas writes whole numbers so; `true`, `"3"` and `3.5` are not.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or not least <= value <= MAX_WHOLE_NUMBER
    ):
        raise StrapError(
            f"{what} is {short_repr(value)}; it must be a whole number of {least} or more: "
            "correct it, or download the file again"
        )
    return value


def expect_text(value: Any, what: str) -> str:
    """Return a string that can be encoded; `what` names it and its file in the error."""
    if not isinstance(value, str):
        raise StrapError(
            f"{what} is {short_repr(value)}; it must be a text: correct it, or download the file "
            "again"
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise StrapError(
            f"{what} is {short_repr(value)}, which is not valid Unicode ({error.reason}): "
            "correct it"
        ) from error
    return value


def expect_texts(value: Any, what: str) -> list[str]:
    """Return a list of texts; a single text becomes a list of one, None an empty list."""
    if value is None:
        return []
    if isinstance(value, list):
        return [expect_text(item, what) for item in value]
    return [expect_text(value, what)]
