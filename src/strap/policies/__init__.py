"""Language-conditioned transformer and diffusion policies: checkpoints, acting, settings."""

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
    """The methods that `strap.training.train` needs from your own `nn.Module`.

    To act through `load_policy` as well, the module needs two more methods:
    `observation(images, proprioception, language)` turns frames [b h …] into vectors [b h f], and
    `predict(features, generators)` turns these vectors into actions [b c a].
    """

    def loss(self, batch: Batch) -> Tensor:
        """Return the scalar to minimise, averaged over the batch's valid actions."""

    def state_dict(self) -> dict[str, Any]:
        """Return the parameters and buffers, as every `nn.Module` does."""
