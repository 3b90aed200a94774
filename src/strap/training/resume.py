"""The state of an unfinished training as tensors: weights, optimiser moments, random generators."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from strap.policies.learning_state import collect_learning, restore_learning, strip_prefix


def training_state(
    policy: nn.Module,
    average: nn.Module | None,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
) -> dict[str, Tensor]:
    """Collect everything that `restore_training` needs to go on as if nothing had happened."""
    tensors = collect_learning(policy, optimizer, "policy")
    if average is not None:
        tensors |= {f"average.{k}": v for k, v in average.state_dict().items()}
    tensors["random.cpu"] = torch.get_rng_state()
    if device.type == "cuda":
        tensors["random.cuda"] = torch.cuda.get_rng_state(device)
    return tensors


def restore_training(
    tensors: dict[str, Tensor],
    policy: nn.Module,
    average: nn.Module | None,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
) -> None:
    """Put a state back into the objects that it was taken from."""
    restore_learning(tensors, policy, optimizer, "policy")
    if average is not None:
        average.load_state_dict(strip_prefix(tensors, "average"))
    torch.set_rng_state(tensors["random.cpu"])
    if device.type == "cuda" and "random.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random.cuda"], device)
