"""Encoders that are torch models, with their device, precision and batch size."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from strap.encoders.base import check_images
from strap.encoders.packing import pack_linear, packs_bfloat16
from strap.encoders.preprocessing import Preprocessing
from strap.errors import StrapError
from strap.types import Array

Precision = Literal["auto", "float32", "bfloat16"]
Features = Callable[[nn.Module, Tensor], Tensor]
"""(model, input [n 3 h w]) -> vectors [n d]"""


@dataclass(frozen=True, eq=False)
class NetworkEncoder:
    """A frozen vision model: preprocessing, forward pass, pooling."""

    name: str
    model: nn.Module
    preprocessing: Preprocessing
    features: Features
    dim: int
    device: torch.device
    weights: str
    """fingerprint of the weights before they were cast to `dtype`"""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """further settings that the vectors depend on (pooling, layer)"""
    batch: int = 256
    """images per forward pass"""
    dtype: torch.dtype = torch.float32
    """number format of the model's weights, see `prepare`"""
    compiled: bool = False
    """run the model through torch.compile; worthwhile for long jobs on a GPU"""

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """Name, weights, pooling and preprocessing; not the device or the precision."""
        preprocessing = {k: v for k, v in asdict(self.preprocessing).items() if v is not None}
        return {
            "name": self.name,
            "weights": self.weights,
            **self.settings,
            "preprocessing": {
                k: list(v) if isinstance(v, tuple) else v for k, v in preprocessing.items()
            },
        }

    @property
    def ahead(self) -> int:
        """How many more batches to `start` before waiting for the first; a GPU needs one queued."""
        return 1 if self.device.type == "cuda" else 0

    @torch.inference_mode()
    def encode(self, images: Array) -> npt.NDArray[np.float32]:
        """Return the vectors, float32 [n dim], of upright images, uint8 [n h w 3]."""
        return self._forward(images).cpu().numpy()

    def gather(self, parts: Sequence[Array]) -> Tensor:
        """Return the images of several arrays [n h w 3] as one tensor for `start`; thread-safe.

        For a GPU the tensor is in page-locked memory, which is copied while the GPU computes.
        """
        count, locked = sum(map(len, parts)), self.device.type == "cuda"
        pixels = torch.empty((count, *parts[0].shape[1:]), dtype=torch.uint8, pin_memory=locked)
        np.concatenate(parts, out=pixels.numpy())
        return pixels

    @torch.inference_mode()
    def start(self, images: Array | Tensor) -> Callable[[], npt.NDArray[np.float32]]:
        """Start to encode images; return a function that waits for the vectors and returns them.

        On a GPU the work is queued, so that the next batch can be read and copied meanwhile. On a
        CPU the work is done when this method returns.
        """
        if self.device.type != "cuda":
            vectors = self._forward(images).cpu().numpy()
            return lambda: vectors
        with torch.cuda.device(self.device):
            vectors_on_gpu = self._forward(images)
            host = torch.empty(vectors_on_gpu.shape, dtype=vectors_on_gpu.dtype, pin_memory=True)
            host.copy_(vectors_on_gpu, non_blocking=True)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record()

        def wait() -> npt.NDArray[np.float32]:
            copied.synchronize()
            return host.numpy()

        return wait

    def _forward(self, images: Array | Tensor) -> Tensor:
        check_images(images)
        starts = range(0, len(images), self.batch)
        parts = [self._forward_batch(images[start : start + self.batch]) for start in starts]
        return torch.cat(parts) if parts else torch.zeros((0, self.dim))

    def _forward_batch(self, images: Array | Tensor) -> Tensor:
        if isinstance(images, Tensor):
            pixels = images
        else:
            pixels = torch.from_numpy(np.ascontiguousarray(images))
        if self.device.type == "cuda":
            # Copies from pinned memory run while the GPU and the caller work.
            pixels = pixels.pin_memory().to(self.device, non_blocking=True)
        prepared = self.preprocessing(pixels, self.dtype)
        if self.compiled and len(prepared) < self.batch:
            # A new shape would be compiled again, so the last batch is filled up.
            rest = prepared[-1:].expand(self.batch - len(prepared), -1, -1, -1)
            filled = torch.cat([prepared, rest]).contiguous(memory_format=torch.channels_last)
            return self._run(filled)[: len(prepared)].float()
        return self._run(prepared).float()

    @cached_property
    def _run(self) -> Callable[[Tensor], Tensor]:
        def run(pixels: Tensor) -> Tensor:
            return self.features(self.model, pixels)

        return torch.compile(run, dynamic=False) if self.compiled else run


def batch_for(device: torch.device) -> int:
    """Return the batch size that fills a GPU, or that fits in a CPU's cache."""
    return 256 if device.type == "cuda" else 8


def choose_dtype(precision: Precision, device: torch.device) -> torch.dtype:
    """Return the number format of weights and activations; `auto`: bfloat16 if that is fast."""
    if precision != "auto":
        return torch.float32 if precision == "float32" else torch.bfloat16
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return torch.bfloat16 if cpu_has_fast_bf16() else torch.float32


def prepare(model: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """Freeze the model and move it to the device, in `dtype` and channels-last layout."""
    model = model.eval().requires_grad_(False).to(device, dtype)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if device.type == "cpu" and dtype == torch.bfloat16 and packs_bfloat16():
        pack_linear(model)
    return model


def all_devices() -> list[str]:
    """Return the names of all GPUs, or else the CPU."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [f"cuda:{index}" for index in range(count)] or ["cpu"]


def choose_device(name: str) -> torch.device:
    """Return the device with a name; `auto` means the GPU if there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise StrapError(f"unknown device '{name}': give auto, cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise StrapError(f"device '{name}' was requested, but torch sees no GPU: use cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise StrapError(
            f"device '{name}': there are {torch.cuda.device_count()} GPUs on this machine"
        )
    return device


def cpu_has_fast_bf16() -> bool:
    """Return whether the CPU has instructions for bfloat16 matrices (AMX, or ARM's BF16)."""
    capability = torch.backends.cpu.get_cpu_capability()
    amx = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)()
    return bool(amx) or "BF16" in capability.upper()


def weights_fingerprint(model: nn.Module) -> str:
    """Return a hash of every weight tensor's name, shape and a sample of its values."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        flat = tensor.detach().reshape(-1)
        stride = max(1, flat.numel() // 64)
        sample = flat[::stride].double().cpu().numpy()
        digest.update(f"{name}{tuple(tensor.shape)}".encode() + sample.tobytes())
    return digest.hexdigest()
