"""Pack and unpack messages: msgpack with arrays as in openpi's client; no pickles.

An array is {b"__ndarray__": True, b"data": bytes, b"dtype": "|u1", b"shape": [h, w, 3]}. A numpy
scalar is {b"__npgeneric__": True, b"data": 0.5, b"dtype": "<f4"}.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from typing import Any, TypeGuard

import msgpack
import numpy as np

from strap.errors import StrapError, printable, shorten
from strap.types import Array

NUMBERS = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248])")
"""accepted dtypes: numbers, but no objects, text or records"""
MAX_AXES = 8
MAX_ITEMS = 1024
"""largest size of a list or dictionary; longer lists of numbers belong in an array"""
MAX_CONTAINERS = 256
"""largest number of lists, dictionaries and arrays in a message: millions would take seconds"""


def pack(message: Mapping[str, Any]) -> bytes:
    """Return a message as bytes."""
    packed: bytes = msgpack.packb(message, default=_describe_array)
    return packed


def unpack(data: bytes | str) -> dict[str, Any]:
    """Return a client's message; raise if the data is not a valid message."""
    if isinstance(data, str):
        raise StrapError("the message is text: send a binary frame of msgpack")
    counter = itertools.count(1)

    def count(value: Any) -> Any:
        if next(counter) > MAX_CONTAINERS:
            raise StrapError(
                f"the message holds more than {MAX_CONTAINERS} lists and dictionaries: send flat "
                "arrays"
            )
        return _restore_array(value) if isinstance(value, dict) else value

    limits = {"max_array_len": MAX_ITEMS, "max_map_len": MAX_ITEMS}
    try:
        message = msgpack.unpackb(data, object_hook=count, list_hook=count, **limits)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        reason = printable(shorten(str(error) or type(error).__name__))
        raise StrapError(
            f"the message of {len(data)} bytes cannot be read as msgpack ({reason}): send a "
            "dictionary packed as openpi_client.msgpack_numpy does"
        ) from error
    if not isinstance(message, dict) or not all(isinstance(name, str) for name in message):
        raise StrapError(
            f"the message is {type(message).__name__}, not a dictionary with names: send one as "
            '{"prompt": "…", camera: image}'
        )
    return message


def _describe_array(value: Any) -> dict[bytes, Any]:
    if isinstance(value, np.ndarray) and NUMBERS.fullmatch(value.dtype.str):
        shape, dtype = value.shape, value.dtype.str
        return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": dtype, b"shape": shape}
    raise TypeError(f"{type(value).__name__} cannot be sent in a message")


def _restore_array(value: dict[Any, Any]) -> Any:
    if b"__npgeneric__" in value:
        single = value.get(b"data")
        if not isinstance(single, bool | int | float | str):
            raise StrapError(f"a value of numpy holds {type(single).__name__}: send a number")
        return single
    if b"__ndarray__" in value:
        return _read_array(value.get(b"dtype"), value.get(b"shape"), value.get(b"data"))
    return value


def _read_array(dtype: object, shape: object, data: object) -> Array:
    if not isinstance(dtype, str) or not NUMBERS.fullmatch(dtype):
        raise StrapError(
            f"an array has dtype {printable(shorten(repr(dtype)))}: arrays must hold numbers, not "
            "objects or text; send uint8 images and float32 proprioception"
        )
    if not _is_shape(shape):
        raise StrapError(
            f"an array has shape {shorten(repr(shape))}: send up to {MAX_AXES} whole numbers"
        )
    kind, sides = np.dtype(dtype), tuple(shape)
    size = math.prod(sides) * kind.itemsize
    if not isinstance(data, bytes) or len(data) != size:
        held = len(data) if isinstance(data, bytes) else "no"
        raise StrapError(
            f"an array of {dtype} {sides} holds {held} bytes instead of {size}: send it whole"
        )
    if not size:
        return np.zeros(0, kind)
    return np.frombuffer(data, kind).reshape(sides)


def _is_shape(shape: object) -> TypeGuard[list[int]]:
    if not isinstance(shape, list) or len(shape) > MAX_AXES:
        return False
    return all(type(side) is int and side >= 0 for side in shape)
