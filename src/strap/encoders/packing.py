"""Linear layers with weights packed for the CPU; only here are mkldnn's private operators used."""

from __future__ import annotations

import torch
from torch import Tensor, nn

OPERATORS = ("_is_mkldnn_bf16_supported", "_reorder_linear_weight", "_linear_pointwise")


def packs_bfloat16() -> bool:
    """Return whether this torch has the operators and this CPU supports them in bfloat16."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if not all(hasattr(torch.ops.mkldnn, name) for name in OPERATORS):
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class PackedLinear(nn.Module):
    """A frozen linear layer whose weights are stored in the order that the CPU's matrix units read.

    `nn.Linear` reorders bfloat16 weights again in every call.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach())
        self.bias = None if layer.bias is None else layer.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs [… o] of inputs [… i]."""
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.weight, self.bias, "none", [], ""
        )
        return product


def pack_linear(model: nn.Module) -> None:
    """Replace every linear layer in a frozen model by a packed one."""
    for module in model.modules():
        for name, child in module.named_children():
            if type(child) is nn.Linear:
                setattr(module, name, PackedLinear(child))
