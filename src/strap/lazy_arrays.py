"""Recorded arrays whose rows are read when they are indexed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class LazyArray:
    """A recorded array whose rows are read when they are indexed. Its first axis is time.

    `array[10:20]` reads only these ten rows; `array[:]` reads all.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[int, int], npt.NDArray[Any]] = field(repr=False)
    """(start, stop) -> [stop-start, …]"""

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: int | slice) -> npt.NDArray[Any]:
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step < 0:
                return self.read(0, len(self))[key]
            return self.read(start, max(start, stop))[::step]
        index = key + len(self) if key < 0 else key
        if not 0 <= index < len(self):
            raise IndexError(f"frame {key} of {len(self)}")
        row: npt.NDArray[Any] = self.read(index, index + 1)[0]
        return row

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        return np.asarray(self.read(0, len(self)), dtype=dtype)


def lazy(array: npt.NDArray[Any]) -> LazyArray:
    """Wrap an array in memory as a LazyArray."""
    return LazyArray(array.shape, array.dtype, lambda start, stop: array[start:stop])
