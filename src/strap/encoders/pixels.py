"""An encoder without a model: the small grey image itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from strap.encoders.base import check_images
from strap.types import Array


@dataclass(frozen=True)
class PixelEncoder:
    """An encoder for tests and first tries: the grey image, area-averaged to `size`×`size`."""

    size: int = 16

    @property
    def dim(self) -> int:
        """Length of a vector, size²."""
        return self.size * self.size

    @property
    def config(self) -> Mapping[str, Any]:
        """The name and the size."""
        return {"name": "pixels", "size": self.size}

    def encode(self, images: Array) -> npt.NDArray[np.float32]:
        """Return grey levels from 0 to 1, float32 [n size²], of images, uint8 [n h w 3]."""
        check_images(images)
        count, height, width, _ = images.shape
        luma = np.array([0.299, 0.587, 0.114], np.float32) / 255
        # Two matrix products: the rows first, then columns and colours at once.
        rows = area_weights(height, self.size)
        columns = (area_weights(width, self.size)[:, :, None] * luma).reshape(self.size, -1)
        small = rows @ images.reshape(count, height, -1).astype(np.float32) @ columns.T
        return small.reshape(count, self.dim).astype(np.float32, copy=False)


def area_weights(old: int, new: int) -> npt.NDArray[np.float32]:
    """Return weights [new old] that average, for each new pixel, the old pixels it covers."""
    edges = np.linspace(0, old, new + 1)
    left, right = np.arange(old), np.arange(old) + 1
    overlap = np.minimum(edges[1:, None], right) - np.maximum(edges[:-1, None], left)
    return np.asarray(np.clip(overlap, 0, None) * (new / old), np.float32)
