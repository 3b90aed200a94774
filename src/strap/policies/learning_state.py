"""Save and restore a model in training: its weights and the state of its optimiser, as tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""AdamW's state of a parameter"""


def collect_learning(
    model: nn.Module, optimizer: torch.optim.Optimizer, prefix: str
) -> dict[str, Tensor]:
    """Return the weights, their names prefixed, and the optimiser's state of each parameter."""
    tensors = {f"{prefix}.{name}": value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{key}.{name}"] = torch.as_tensor(value)
    return tensors


def restore_learning(
    tensors: Mapping[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer, prefix: str
) -> None:
    """Restore a model and its optimiser from the tensors of `collect_learning`."""
    model.load_state_dict(strip_prefix(tensors, prefix))
    for name, parameter in model.named_parameters():
        if f"optimizer.step.{name}" in tensors:  # frozen parameters have no state
            moments = {key: tensors[f"optimizer.{key}.{name}"] for key in MOMENTS}
            optimizer.state[parameter] = {
                key: _place_beside(parameter, value) for key, value in moments.items()
            }


def _place_beside(parameter: Tensor, value: Tensor) -> Tensor:
    """Return a moment on its parameter's device, in the parameter's memory format."""
    like = parameter if value.shape == parameter.shape else value
    return torch.empty_like(like, dtype=value.dtype, device=parameter.device).copy_(value)


def strip_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names have a prefix, under their names without it."""
    found = [name for name in tensors if name.startswith(f"{prefix}.")]
    return {name.removeprefix(f"{prefix}."): tensors[name] for name in found}
