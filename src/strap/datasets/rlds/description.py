"""Check the types of values in TFDS's JSON files; an error names the value."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from strap.datasets.untrusted import read_metadata
from strap.errors import StrapError

FEATURES, DATASET_INFO = "features.json", "dataset_info.json"
MAX_DESCRIPTION_BYTES = 1 << 24
"""the largest size of each of the two JSON files: 16 MiB; DROID's have 30 kB"""
MAX_NAME = 255
"""the longest name of a dataset, a split or a feature, in characters"""


def read_description(file: Path) -> Mapping[str, Any]:
    """Return the object in one of the two JSON files."""
    content = read_metadata(file, limit=MAX_DESCRIPTION_BYTES)
    return expect_object(content, "its content", file)


def value_of(described: Mapping[str, Any], key: str, default: Any) -> Any:
    """Return the value of a key, or the default if it is null or missing, as in protobuf."""
    value = described.get(key)
    return default if value is None else value


def wrong_value_error(value: Any, what: str, expected: str, file: Path) -> StrapError:
    """Return an error for a value that TFDS does not write."""
    return StrapError(
        f"'{file}': {what} is {reprlib.repr(value)}, expected {expected}; correct the file or "
        "download it again"
    )


def expect_object(value: Any, what: str, file: Path) -> Mapping[str, Any]:
    """Return `value`; raise if it is not a JSON object."""
    if not isinstance(value, dict):
        raise wrong_value_error(value, what, "an object", file)
    return value


def expect_list(value: Any, what: str, file: Path) -> Sequence[Any]:
    """Return `value`; raise if it is not a JSON list."""
    if not isinstance(value, list):
        raise wrong_value_error(value, what, "a list", file)
    return value


def expect_text(value: Any, what: str, file: Path) -> str:
    """Return `value`; raise if it is not a JSON string of valid Unicode."""
    if not isinstance(value, str) or any("\ud800" <= c <= "\udfff" for c in value):
        raise wrong_value_error(value, what, "a text", file)
    return value


def expect_name(value: Any, what: str, file: Path) -> str:
    """Return `value`; raise if it is not a text of 1 to `MAX_NAME` characters."""
    name = expect_text(value, what, file)
    if not 1 <= len(name) <= MAX_NAME:
        raise wrong_value_error(value, what, f"a name of 1 to {MAX_NAME} characters", file)
    return name


def expect_integer(value: Any, what: str, file: Path, *, least: int = 0) -> int:
    """Return an integer of at least `least`; protobuf writes 64-bit integers as texts."""
    number: int | None = value if type(value) is int else None
    if isinstance(value, str) and value.isascii() and len(value) <= 20:
        digits = value.removeprefix("-")
        number = int(value) if digits.isdecimal() else None
    if number is None or not least <= number < 1 << 63:
        raise wrong_value_error(value, what, f"a whole number of {least} or more", file)
    return number
