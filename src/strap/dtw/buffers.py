"""Arrays aligned to cache lines, and buffers that each thread reuses."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

LINE_BYTES = 64


def aligned(shape: tuple[int, ...], dtype: type) -> NDArray[Any]:
    """Return an array of zeros whose address is a multiple of 64 bytes, a cache line."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.zeros(size + LINE_BYTES, np.uint8)
    first = -memory.ctypes.data % LINE_BYTES
    return memory[first : first + size].view(dtype).reshape(shape)


class Buffers(threading.local):
    """Buffers of each thread, reused because new memory pages cost more than filling them."""

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[Any]] = {}

    def get(self, key: str, dtype: type, rows: int, columns: int) -> NDArray[Any]:
        """Return the buffer with this key as [rows columns]: zeros at first, then as last left."""
        if key not in self._arrays or self._arrays[key].size < rows * columns:
            self._arrays[key] = aligned((rows * columns,), dtype)
        return self._arrays[key][: rows * columns].reshape(rows, columns)
