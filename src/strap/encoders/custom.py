"""Encoders that users write: a function, or an encoder in an importable module."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from strap.encoders.base import Encoder, check_images
from strap.errors import StrapError
from strap.types import Array


@dataclass(frozen=True)
class FunctionEncoder:
    """An encoder made of a function from images to vectors.

    >>> FunctionEncoder(lambda images: images.mean(axis=(1, 2)), name="mean colour").dim
    3
    """

    function: Callable[[Array], Any]
    """uint8 [n h w 3], upright -> [n d]"""
    name: str
    """identifies the vectors in stores: change it when the function changes"""
    batch: int = 64
    """the number of images in one call"""

    @cached_property
    def dim(self) -> int:
        """Length of a vector, measured by encoding one black image."""
        return int(self.encode(np.zeros((1, 64, 64, 3), np.uint8)).shape[1])

    @property
    def config(self) -> Mapping[str, Any]:
        """The name, which is all that identifies the encoder."""
        return {"name": self.name}

    def encode(self, images: Array) -> npt.NDArray[np.float32]:
        """Return the vectors, float32 [n dim], of upright images, uint8 [n h w 3]."""
        check_images(images)
        vectors = np.asarray(self.function(images), np.float32)
        if vectors.ndim != 2 or len(vectors) != len(images):
            raise StrapError(
                f"encoder '{self.name}' gave shape {vectors.shape} for {len(images)} images: it "
                "must give one vector per image, [n d]"
            )
        return vectors


def import_encoder(name: str) -> Encoder:
    """Return the encoder `module:name`; a function becomes a `FunctionEncoder`.

    The module can also be in the working directory.
    """
    module, _, attribute = name.partition(":")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise StrapError(
            f"cannot import encoder '{name}' ({error}): give it as module:name, with the module "
            "in the working directory or installed"
        ) from error
    if isinstance(found, type):
        found = found()
    if isinstance(found, Encoder):
        return found
    if callable(found):
        return FunctionEncoder(found, name)
    raise StrapError(
        f"'{name}' is a {type(found).__name__}: give a function, or a class with dim, config and "
        "encode"
    )
