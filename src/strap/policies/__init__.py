"""Policies: language-conditioned transformer and diffusion, how they are kept and how they act."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from strap.policies.acting import Policy, load_policy
from strap.policies.batch import Batch
from strap.policies.checkpoints import Checkpoint, build_policy, load_checkpoint
from strap.policies.inputs import Observation
from strap.policies.settings import Interface, PolicySettings, policy_preset

__all__ = [
    "Batch",
    "Checkpoint",
    "Interface",
    "Observation",
    "Policy",
    "PolicySettings",
    "Trainable",
    "build_policy",
    "load_checkpoint",
    "load_policy",
    "policy_preset",
]


class Trainable(Protocol):
    """What a module of one's own needs for `strap.training.train`; it is an `nn.Module` besides.

    To act through `load_policy` too, it has `observation(images, proprioception, language)`, which
    turns frames [b h …] into vectors [b h f], and `predict(features, generators)`, which turns
    those into actions [b c a].
    """

    def loss(self, batch: Batch) -> Tensor:
        """A scalar to make smaller, averaged over the batch's valid actions."""

    def state_dict(self) -> dict[str, Any]:
        """As every `nn.Module` has it."""
