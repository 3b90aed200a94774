"""Memory that begins with a cache line, and that threads keep for their next task."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

LINE_BYTES = 64


def aligned(shape: tuple[int, ...], dtype: type) -> NDArray[Any]:
    """Return an array of zeros that begins at a multiple of 64 bytes: a cache line."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.zeros(size + LINE_BYTES, np.uint8)
    first = -memory.ctypes.data % LINE_BYTES
    return memory[first : first + size].view(dtype).reshape(shape)


class Buffers(threading.local):
    """Memory kept by each thread: fresh pages cost more than the copy into them."""

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[Any]] = {}

    def get(self, key: str, dtype: type, rows: int, columns: int) -> NDArray[Any]:
        """Return an array [rows columns] with whatever was left in it, 0 at first."""
        if key not in self._arrays or self._arrays[key].size < rows * columns:
            self._arrays[key] = aligned((rows * columns,), dtype)
        return self._arrays[key][: rows * columns].reshape(rows, columns)
