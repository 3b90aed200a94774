"""Frame encoders: images in, one vector per frame out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from strap.artifacts import fingerprint_json
from strap.errors import StrapError, unknown
from strap.types import Array


@runtime_checkable
class Encoder(Protocol):
    """Turns upright images into vectors. Anything with these three members is an encoder."""

    @property
    def dim(self) -> int:
        """Length of a vector."""

    @property
    def config(self) -> Mapping[str, Any]:
        """Everything that decides the vectors, JSON-able: stores never mix two configurations."""

    def encode(self, images: Array) -> npt.NDArray[np.float32]:
        """uint8 [n h w 3], upright -> float32 [n dim]."""


@dataclass(frozen=True)
class PixelEncoder:
    """The grey image, area-averaged to `size`×`size`: no model, for tests, docs and first tries."""

    size: int = 16

    @property
    def dim(self) -> int:
        """size²."""
        return self.size * self.size

    @property
    def config(self) -> Mapping[str, Any]:
        """The name and the size."""
        return {"name": "pixels", "size": self.size}

    def encode(self, images: Array) -> npt.NDArray[np.float32]:
        """uint8 [n h w 3] -> float32 [n size²], grey levels between 0 and 1."""
        count, height, width, _ = images.shape
        luma = np.array([0.299, 0.587, 0.114], np.float32) / 255
        # Rows first, then columns and colours in one: two plain matrix products.
        rows = area_weights(height, self.size)
        columns = (area_weights(width, self.size)[:, :, None] * luma).reshape(self.size, -1)
        small = rows @ images.reshape(count, height, -1).astype(np.float32) @ columns.T
        return small.reshape(count, self.dim).astype(np.float32, copy=False)


def area_weights(old: int, new: int) -> npt.NDArray[np.float32]:
    """[new old]: each new pixel is the mean of the stretch of old pixels that it covers."""
    edges = np.linspace(0, old, new + 1)
    left, right = np.arange(old), np.arange(old) + 1
    overlap = np.minimum(edges[1:, None], right) - np.maximum(edges[:-1, None], left)
    return np.asarray(np.clip(overlap, 0, None) * (new / old), np.float32)


ENCODERS: dict[str, Callable[[str], Encoder]] = {"pixels": lambda _device: PixelEncoder()}
"""name -> maker(device)"""


def load_encoder(name: str, *, device: str = "auto") -> Encoder:
    """An encoder by name.

    Args:
        name: `pixels`.
        device: where a model runs: `auto`, `cpu` or `cuda`.
    """
    if name not in ENCODERS:
        raise unknown("encoder", name, ENCODERS)
    return ENCODERS[name](device)


def fingerprint(encoder: Encoder) -> str:
    """A hash of the encoder's configuration."""
    return fingerprint_json(dict(encoder.config))


def checked_encode(encoder: Encoder, images: Array, where: str) -> npt.NDArray[np.float32]:
    """Encode, and refuse vectors that are not finite or not of the promised shape."""
    vectors = np.asarray(encoder.encode(images), np.float32)
    if vectors.shape != (len(images), encoder.dim):
        raise StrapError(
            f"encoder {encoder.config.get('name')!r} gave shape {vectors.shape} for {len(images)} "
            f"images, not {(len(images), encoder.dim)}; its `encode` or `dim` is wrong"
        )
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if bad.size:
        raise StrapError(
            f"{where}: the embedding of frame {bad[0]} is not finite (NaN or infinite); check that "
            "image and the encoder"
        )
    return vectors
