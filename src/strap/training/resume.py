"""The state of an unfinished training as tensors: weights, optimiser moments, random generators."""

from __future__ import annotations

import torch
from torch import Tensor, nn

MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def training_state(
    policy: nn.Module,
    average: nn.Module | None,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
) -> dict[str, Tensor]:
    """Collect everything that `restore_training` needs to go on as if nothing had happened."""
    tensors = {f"policy.{k}": v for k, v in policy.state_dict().items()}
    if average is not None:
        tensors |= {f"average.{k}": v for k, v in average.state_dict().items()}
    for name, parameter in policy.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{key}.{name}"] = torch.as_tensor(value)
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
    policy.load_state_dict(_below(tensors, "policy."))
    if average is not None:
        average.load_state_dict(_below(tensors, "average."))
    for name, parameter in policy.named_parameters():
        state = {}
        for key in MOMENTS:
            value = tensors.get(f"optimizer.{key}.{name}")
            if value is not None:
                # moments lie in memory as their parameter does
                like = parameter if value.shape == parameter.shape else value
                empty = torch.empty_like(like, dtype=value.dtype, device=device)
                state[key] = empty.copy_(value)
        if state:
            optimizer.state[parameter] = state
    torch.set_rng_state(tensors["random.cpu"])
    if device.type == "cuda" and "random.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random.cuda"], device)


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
