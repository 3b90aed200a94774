"""What was read, as two hashes: how it is laid out, and what it holds."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np


class Digest:
    """Hashes of everything that was read.

    `layout` is of names, numbers, lengths, shapes and dtypes, `content` of the values themselves.
    A change of content alone may be one that a format without checksums can't tell from data; a
    change of layout deserves a look.
    """

    def __init__(self, hidden: str = "") -> None:
        self._layout = hashlib.blake2b(digest_size=16)
        self._content = hashlib.blake2b(digest_size=16)
        self._hidden = hidden

    def layout(self, *values: object) -> None:
        """Names, numbers, lengths, shapes."""
        self._layout.update(self._text(values))

    def content(self, *values: object) -> None:
        """Texts and other values."""
        self._content.update(self._text(values))

    def array(self, name: str, array: Any) -> None:
        """An array with its name."""
        values = np.asarray(array)
        self.layout(name, values.shape, values.dtype.str)
        if values.dtype.hasobject:
            self.content(values.tolist())
        else:
            self._content.update(np.ascontiguousarray(values).tobytes())

    def mapping(self, name: str, values: Mapping[str, Any]) -> None:
        """What a format keeps by name, arrays included."""
        for key in sorted(values, key=str):
            value = values[key]
            if isinstance(value, np.ndarray):
                self.array(f"{name}.{key}", value)
            else:
                self.content(name, key, value)

    @property
    def hashes(self) -> dict[str, str]:
        """Both, as text."""
        return {"layout": self._layout.hexdigest(), "content": self._content.hexdigest()}

    def _text(self, values: object) -> bytes:
        """Where the input lies differs from case to case, and is no part of what was read."""
        text = repr(values)
        if self._hidden:
            text = text.replace(self._hidden, "…")
        return text.encode(errors="surrogatepass")
