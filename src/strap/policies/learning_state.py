"""A model that is being trained as tensors: its weights, and the moments of its optimiser."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def collect_learning(
    model: nn.Module, optimizer: torch.optim.Optimizer, prefix: str
) -> dict[str, Tensor]:
    """Return the weights under names with a prefix, and each parameter's moments."""
    tensors = {f"{prefix}.{name}": value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{key}.{name}"] = torch.as_tensor(value)
    return tensors


def restore_learning(
    tensors: Mapping[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer, prefix: str
) -> None:
    """Put back what `collect_learning` took from such a model and its optimiser."""
    model.load_state_dict(strip_prefix(tensors, prefix))
    for name, parameter in model.named_parameters():
        if f"optimizer.step.{name}" in tensors:  # what isn't trained has none
            moments = {key: tensors[f"optimizer.{key}.{name}"] for key in MOMENTS}
            optimizer.state[parameter] = {
                key: _place_beside(parameter, value) for key, value in moments.items()
            }


def _place_beside(parameter: Tensor, value: Tensor) -> Tensor:
    """Return a moment on its parameter's device, in memory as its parameter is."""
    like = parameter if value.shape == parameter.shape else value
    return torch.empty_like(like, dtype=value.dtype, device=parameter.device).copy_(value)


def strip_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names have a prefix, under the rest of their names."""
    found = [name for name in tensors if name.startswith(f"{prefix}.")]
    return {name.removeprefix(f"{prefix}."): tensors[name] for name in found}
