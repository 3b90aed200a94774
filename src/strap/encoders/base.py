"""The interface of an encoder, and the check of its vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from strap.errors import StrapError
from strap.types import Array


@runtime_checkable
class Encoder(Protocol):
    """An object that turns upright images into vectors: anything with these three members."""

    @property
    def dim(self) -> int:
        """Length of a vector."""

    @property
    def config(self) -> Mapping[str, Any]:
        """Everything that the vectors depend on, as JSON; one store never mixes two configs."""

    def encode(self, images: Array) -> npt.NDArray[np.float32]:
        """Return the vectors, float32 [n dim], of upright images, uint8 [n h w 3]."""


def check_images(images: Any) -> None:
    """Raise unless images are uint8 [n h w 3]. Arrays and tensors are taken."""
    shape, dtype = tuple(getattr(images, "shape", ())), str(getattr(images, "dtype", "unknown"))
    if len(shape) != 4 or shape[3] != 3 or dtype not in ("uint8", "torch.uint8"):
        raise StrapError(
            f"images have shape {list(shape)} and type {dtype}: encoders need uint8 [n h w 3] from "
            "0 to 255; give a single image as image[None], floats from 0 to 1 as "
            "(255 * images).astype('uint8'), channels first as images.transpose(0, 2, 3, 1)"
        )


def check_vectors(
    encoder: Encoder, vectors: Array, count: int, where: Callable[[int], str]
) -> npt.NDArray[np.float32]:
    """Return the vectors as float32; raise if their shape is wrong or a number is not finite.

    Args:
        encoder: the encoder that made the vectors.
        vectors: its vectors of one batch, [n d].
        count: the number of images in the batch.
        where: names the image at an index of the batch, for messages.
    """
    vectors = np.asarray(vectors, np.float32)
    if vectors.shape != (count, encoder.dim):
        raise StrapError(
            f"encoder {encoder.config.get('name')!r} gave shape {vectors.shape} for {count} "
            f"images, not {(count, encoder.dim)}; its `encode` or `dim` is wrong"
        )
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if bad.size:
        raise StrapError(
            f"{where(int(bad[0]))}: the embedding is not finite (NaN or infinite); check that "
            "image and the encoder"
        )
    return vectors
