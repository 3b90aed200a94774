"""The GPUs of this machine, and the requirements of the GPU backend."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from strap.errors import StrapError
from strap.extras import install_command

if TYPE_CHECKING:
    import torch


def is_interpreted() -> bool:
    """Return whether Triton's interpreter runs the kernels on the CPU, as in tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def missing() -> str | None:
    """Return the first requirement that the GPU backend lacks here, as a message, or None."""
    for package in ("torch", "triton"):
        if find_spec(package) is None:
            return f"{package} is not installed: {install_command('encoders')} triton"
    if is_interpreted():
        return None
    try:  # before torch, which takes seconds to load
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no NVIDIA driver (libcuda.so.1)"
    import torch

    if not torch.cuda.is_available():
        return "torch sees no GPU: install its CUDA build, or look at nvidia-smi"
    return None


def require_gpu() -> None:
    """Raise if the GPU backend lacks something."""
    lack = missing()
    if lack is not None:
        raise StrapError(f'backend "gpu": {lack}; or use backend "cpu"')


def find_devices(names: Sequence[str] | None = None) -> list[torch.device]:
    """Return the devices with these names, by default all GPUs; raise if there is none."""
    require_gpu()
    import torch

    if names is not None:
        return [torch.device(name) for name in names]
    if is_interpreted():
        return [torch.device("cpu")]
    return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
