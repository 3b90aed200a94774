"""What an encoder is, and how its answers are checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from strap.errors import StrapError
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
