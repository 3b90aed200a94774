"""Check that a checkpoint's parts fit each other: sizes before allocation, values afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from strap.errors import StrapError, printable
from strap.policies.frozen_vision import CELL
from strap.policies.settings import Interface, PolicySettings

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
REMEDY = "copy it again, or train again"


def require_weights(tensors: Mapping[str, Tensor], policy: nn.Module, file: Path) -> None:
    """Raise unless the file has exactly the policy's weights: names, shapes, kinds of numbers."""
    expected = policy.state_dict()
    found = {k.removeprefix("policy."): v for k, v in tensors.items() if k.startswith("policy.")}
    for name, wanted in expected.items():
        if name not in found:
            raise StrapError(
                f"'{file}' does not fit the policy in config.json: it has no '{name}'; {REMEDY}"
            )
        given = found[name]
        if given.shape != wanted.shape or given.is_floating_point() != wanted.is_floating_point():
            raise StrapError(
                f"'{file}' does not fit the policy in config.json: '{name}' is {_kind(given)}, not "
                f"{_kind(wanted)}; {REMEDY}"
            )
    if odd := [name for name in found if name not in expected]:
        raise StrapError(
            f"'{file}' does not fit the policy in config.json: it has '{printable(odd[0])}', which "
            f"that policy does not have; {REMEDY}"
        )


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def require_numbers(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Raise if a tensor has an unsupported dtype, or holds NaN or infinity."""
    for name, tensor in tensors.items():
        if tensor.dtype not in (*FLOATS, *INTEGERS):
            raise StrapError(
                f"'{file}': '{printable(name)}' is {_kind(tensor)}: weights are numbers of 16 bits "
                f"or more; {REMEDY}"
            )
        bad = tensor.numel() - int(torch.isfinite(tensor).sum())
        if bad:
            raise StrapError(
                f"'{file}': '{printable(name)}' holds {bad} of {tensor.numel()} values that are "
                f"not finite (NaN or infinite): a policy cannot act with them; {REMEDY}"
            )


def require_instructions(
    texts: Sequence[str], vectors: Tensor | None, interface: Interface, file: Path
) -> None:
    """Raise unless each instruction has a vector."""
    shape = (len(texts), interface.language_size)
    if vectors is None or vectors.shape != shape or not vectors.is_floating_point():
        held = "nothing" if vectors is None else _kind(vectors)
        raise StrapError(
            f"'{file}' is damaged: for the {len(texts)} instructions of config.json it holds "
            f"{held}, not vectors {list(shape)}; {REMEDY}"
        )


def require_projection(
    tensors: Mapping[str, Tensor], interface: Interface, settings: PolicySettings, file: Path
) -> None:
    """Raise unless a policy with frozen vision has a projection that fits its feature maps."""
    if settings.vision != "frozen":
        return
    n_cells, channels = interface.map_size
    mean, directions = (tensors.get(f"projection.{name}") for name in ("mean", "directions"))
    fits = mean is not None and directions is not None and mean.ndim == 1
    if not fits or directions.shape != (len(mean), channels):  # type: ignore[union-attr, arg-type]
        raise StrapError(
            f"'{file}' is damaged: its projection of feature maps to {channels} channels is "
            f"missing or of another size; {REMEDY}"
        )
    if interface.image_size % CELL or (interface.image_size // CELL) ** 2 != n_cells:
        raise StrapError(
            f"'{file.with_name('config.json')}' is damaged: images of {interface.image_size} "
            f"pixels a side do not give feature maps of {n_cells} places; {REMEDY}"
        )
