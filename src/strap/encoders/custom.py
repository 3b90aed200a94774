"""Encoders of one's own: a function, or anything in a module that can be imported."""

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

from strap.encoders.base import Encoder
from strap.errors import StrapError
from strap.types import Array


@dataclass(frozen=True)
class FunctionEncoder:
    """A function from images to vectors as an encoder.

    >>> FunctionEncoder(lambda images: images.mean(axis=(1, 2)), name="mean colour").dim
    3
    """

    function: Callable[[Array], Any]
    """uint8 [n h w 3], upright -> [n d]"""
    name: str
    """what tells its vectors from others': change it when the function changes"""
    batch: int = 64
    """how many images it is given at a time"""

    @cached_property
    def dim(self) -> int:
        """Length of a vector, found by encoding one black image."""
        return int(self.encode(np.zeros((1, 64, 64, 3), np.uint8)).shape[1])

    @property
    def config(self) -> Mapping[str, Any]:
        """The name."""
        return {"name": self.name}

    def encode(self, images: Array) -> npt.NDArray[np.float32]:
        """Return the vectors, float32 [n dim], of upright images, uint8 [n h w 3]."""
        vectors = np.asarray(self.function(images), np.float32)
        if vectors.ndim != 2 or len(vectors) != len(images):
            raise StrapError(
                f"encoder '{self.name}' gave shape {vectors.shape} for {len(images)} images: it "
                "must give one vector per image, [n d]"
            )
        return vectors


def import_encoder(name: str) -> Encoder:
    """Return the encoder that `module:name` is, or the function there as one.

    The module is looked for in the working directory too.
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
