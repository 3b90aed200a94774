"""Frames as float16 vectors on a device: what the lower bounds are computed from."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
import triton

from strap.dtw import validation
from strap.dtw.batching import Batch, as_floats
from strap.dtw.gpu import bound_kernels
from strap.dtw.types import Floats, Frames, Name

U = 2.0**-24  # the unit roundoff of float32
ALIGNED = 8  # float16 numbers in 16 bytes, in which tensor descriptors count
CHUNK_FRAMES = 2**14  # rounded at a time
EXPONENT = 8  # rounded frames of ordinary size lie around 2⁸: far from both ends of float16
MIN_GAIN = 1.25  # how much shorter centered vectors must be to be worth rounding the queries


@dataclass(frozen=True, eq=False)
class Quantization:
    """How frames and queries are moved, scaled and rounded to float16 on one device.

    Greek letters are those of the proof in `bounds`, which holds for any mean and scale.
    """

    metric: str
    mean: torch.Tensor  # [d'] float64: μ, padded with zeros
    shift: torch.Tensor  # [d'] float64: μ', where the mean lies among the quantized frames
    scale: float  # σ
    is_rounded: bool  # whether frames are rounded, or are float16 already
    balance: float  # τ

    @property
    def dim(self) -> int:
        """Dimensions with padding: d'."""
        return len(self.mean)

    @property
    def product_error(self) -> float:
        """The largest error of a product and its sum as a share of the norms' product: g."""
        return (self.dim + 16) * 2.0**-22 + 4 * U

    @cached_property
    def constants(self) -> torch.Tensor:
        """What kernels need: [4] float64 σ, gτ, |μ'| and the unit of costs; sent once.

        They are a tensor since Triton passes Python's floats as float32.
        """
        unit = self.scale**2 if self.metric == "cosine" else self.scale
        share = self.product_error * self.balance
        numbers = self.scale, share, float(self.shift.norm()), unit
        return torch.tensor(numbers, dtype=torch.float64, device=self.mean.device)


def fit_quantization(
    sample: Frames, dtype: torch.dtype, metric: str, device: torch.device
) -> Quantization:
    """Return a quantization for frames of a dtype.

    Any sample [m d] gives a valid one; one that is like the frames gives tight bounds.
    """
    is_rounded = metric == "cosine" or dtype != torch.float16
    values = as_floats(sample, metric).astype(np.float64, copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = values.mean(axis=0).astype(np.float32).astype(np.float64)
    if not np.isfinite(mean).all():
        mean = np.zeros(values.shape[1])
    moved = values - mean
    balance = 1.0 if is_rounded else _compare_norms(values, moved)
    if not is_rounded and balance < MIN_GAIN:
        # Then queries that are float16 are not rounded either.
        mean, moved, balance = np.zeros_like(mean), values, 1.0
    largest = float(np.abs(moved).max(initial=0.0))
    exponent = EXPONENT - math.frexp(largest)[1] if is_rounded and largest > 0 else 0
    padded = np.zeros((2, ALIGNED * -(-len(mean) // ALIGNED)))
    padded[:, : len(mean)] = mean, 0.0 * mean if is_rounded else mean
    on_device = torch.as_tensor(padded, device=device)
    scale = math.ldexp(1.0, exponent)
    return Quantization(metric, on_device[0], on_device[1], scale, is_rounded, balance)


def _compare_norms(values: Floats, moved: Floats) -> float:
    """Return how much shorter vectors [m d] are after they were moved."""
    before, after = np.linalg.norm(values, axis=1).mean(), np.linalg.norm(moved, axis=1).mean()
    return float(np.clip(before / after, 1.0, 64.0)) if after > 0 else 1.0


@dataclass(frozen=True, eq=False)
class QuantizedBatch:
    """Trajectories on one device, end to end, with what their lower bounds need."""

    ids: list[int]
    lengths: list[int]
    frames: torch.Tensor  # [F d] as they came: for the exact alignment
    quantized: torch.Tensor  # [F d'] float16: b'
    offsets: torch.Tensor  # [t + 1] int64
    beta: torch.Tensor  # [F] float32: β
    errors: torch.Tensor  # [F] float32: |e|; [1] where all are 0
    largest_norm: float  # the largest |b' − μ'|

    def requantize(self, frames: torch.Tensor, quantization: Quantization) -> QuantizedBatch:
        """Return the batch after its frames were sent once more: what comes of norms is kept."""
        quantized, errors = _quantize_frames(frames, quantization)
        return replace(self, frames=frames, quantized=quantized, errors=errors)


def quantize_batch(
    batch: Batch, frames: torch.Tensor, quantization: Quantization, name: Name
) -> QuantizedBatch:
    """Quantize a batch whose frames [F d] are on the device; raises on numbers that are invalid."""
    device, total = frames.device, len(frames)
    quantized, errors = _quantize_frames(frames, quantization)
    centered = torch.empty(total, dtype=torch.float64, device=device)
    plain = torch.empty(total, dtype=torch.float64, device=device)
    bound_kernels.compute_squared_norms[(triton.cdiv(total, 16),)](
        quantized, quantization.shift, centered, plain, total, quantization.dim,
        ROWS=16, BLOCK=128, num_warps=4,
    )  # fmt: skip
    share = quantization.product_error / quantization.balance
    beta = (1 - 4 * U - 1e-12) * centered - share * plain
    largest_square = float(centered.max())
    is_unusual = not math.isfinite(largest_square) or bool(torch.isinf(errors).any())
    if is_unusual or quantization.metric == "cosine":
        for index, trajectory in zip(batch.ids, batch.frames, strict=True):
            validation.check_numbers(trajectory, name(index), quantization.metric)
    lengths = [len(trajectory) for trajectory in batch.frames]
    offsets, largest_norm = torch.as_tensor(batch.offsets, device=device), math.sqrt(largest_square)
    return QuantizedBatch(
        batch.ids, lengths, frames, quantized, offsets, _round_down(beta), errors, largest_norm
    )


def _quantize_frames(
    frames: torch.Tensor, quantization: Quantization
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the float16 vectors b' [F d'] of frames [F d], and |e| [F] ([1] where all are 0)."""
    if quantization.is_rounded:
        return _round_frames(frames, quantization)
    padding = quantization.dim - frames.shape[1]  # rows begin at multiples of 16 bytes
    padded = torch.nn.functional.pad(frames, (0, padding)) if padding else frames
    return padded, torch.zeros(1, device=frames.device)


def _round_frames(
    frames: torch.Tensor, quantization: Quantization
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return frames moved, scaled and rounded, [F d'], and each one's rounding error [F]."""
    total, dim = frames.shape
    quantized = torch.zeros(total, quantization.dim, dtype=torch.float16, device=frames.device)
    errors = torch.empty(total, dtype=torch.float32, device=frames.device)
    for first in range(0, total, CHUNK_FRAMES):
        chunk = slice(first, first + CHUNK_FRAMES)
        values = frames[chunk].to(torch.float64)
        if quantization.metric == "cosine":
            values = values / values.abs().amax(1, keepdim=True)
            values = values / values.norm(dim=1, keepdim=True)
        moved = (values - quantization.mean[:dim]) * quantization.scale
        near = moved.to(torch.float16)
        error = (moved - near.to(torch.float64)).norm(dim=1)
        is_far = ~torch.isfinite(near).all(1) | ~torch.isfinite(error)
        quantized[chunk, :dim] = torch.where(is_far[:, None], 0, near)
        # Normalising here and on the host may differ in the last bits.
        error = error * (1 + 1e-6) + 1e-12 * quantization.scale + 1e-40
        errors[chunk] = torch.where(is_far, torch.inf, error * (1 + 2.0**-22)).to(torch.float32)
    return quantized, errors


def _round_down(values: torch.Tensor) -> torch.Tensor:
    """Return float64 numbers as float32, never above them."""
    singles = values.to(torch.float32)
    below = torch.nextafter(singles, torch.full_like(singles, -torch.inf))
    return torch.where(singles > values, below, singles)
