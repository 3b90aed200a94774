"""Type checks of the values in a store's JSON files.

Each function returns the value, or raises a `ValueError` that describes the wrong value.
"""

from __future__ import annotations

from typing import Any

from strap.errors import printable, shorten

MAX_NUMBER = 2**48
"""above all valid numbers of rows, dimensions and checksums"""


def parse_text(value: object, name: str) -> str:
    """Return a text that UTF-8 can encode."""
    if not isinstance(value, str):
        raise ValueError(f"{name} is {_short(value)}, not text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is {_short(value)}, which is not valid text") from error
    return value


def parse_texts(value: object, name: str) -> tuple[str, ...]:
    """Return a list of texts."""
    return tuple(parse_text(item, f"an item of {name}") for item in parse_list(value, name))


def parse_number(value: object, name: str, *, least: int = 0) -> int:
    """Return a whole number of at least `least`."""
    if type(value) is not int or not least <= value < MAX_NUMBER:
        raise ValueError(f"{name} is {_short(value)}, not a whole number from {least} on")
    return value


def parse_list(value: object, name: str) -> list[Any]:
    """Return a list."""
    if not isinstance(value, list):
        raise ValueError(f"{name} is {_short(value)}, not a list")
    return value


def parse_object(value: object, name: str) -> dict[str, Any]:
    """Return a JSON object."""
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {_short(value)}, not an object")
    return value


def require_keys(value: dict[str, Any], names: tuple[str, ...], what: str) -> None:
    """Raise if a key is missing or unknown."""
    if missing := [name for name in names if name not in value]:
        raise ValueError(f"{what} has no '{missing[0]}'")
    if odd := [key for key in value if key not in names]:
        raise ValueError(f"{what} has an unknown key {_short(odd[0])}")


def _short(value: object) -> str:
    text = value if isinstance(value, str) else type(value).__name__
    if isinstance(value, str | int | float):
        text = (
            repr(value)
            if not isinstance(value, int) or abs(value) < MAX_NUMBER
            else "a huge number"
        )
    return printable(shorten(text))
