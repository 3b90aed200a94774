"""One batch of training windows, as tensors."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """A batch of b windows, each with h observed frames and c actions to predict."""

    images: dict[str, Tensor]
    """camera -> uint8 crops [b h s s 3]; with frozen vision: feature maps [b h p c]"""
    proprioception: Tensor
    """[b h d], the keys concatenated in the order of the interface"""
    language: Tensor
    """[b l]"""
    actions: Tensor
    """[b c a]"""
    valid: Tensor
    """[b c], False for actions before or after the clip"""
