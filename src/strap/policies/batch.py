"""One batch of training windows, as tensors."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """Windows of b clips: h frames seen, c actions to come."""

    images: dict[str, Tensor]
    """camera -> uint8 crops [b h s s 3], or with frozen vision feature maps [b h p c]"""
    proprioception: Tensor
    """[b h d], the keys concatenated in the interface's order"""
    language: Tensor
    """[b l]"""
    actions: Tensor
    """[b c a]"""
    valid: Tensor
    """[b c], False where the trajectory has no such action"""
