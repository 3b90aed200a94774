"""Quantization of frames to float16 on a device, for the lower bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from strap.dtw import validation
from strap.dtw.batching import TrajectoryBatch, as_floats
from strap.dtw.cpu.rounding import U
from strap.dtw.types import Floats, Frames, Name

DIM_MULTIPLE = 8  # float16 numbers in 16 bytes, the granularity of tensor descriptors
CHUNK_FRAMES = 2**14  # frames converted to float64 together
FLOAT16_MAX = 65504.0
EXPONENT = 8  # frames are scaled to about 2⁸: far from both ends of float16's range
MIN_GAIN = 1.25  # centering that shortens vectors less is not worth rounding the queries


@dataclass(frozen=True, eq=False)
class Quantization:
    """The mean and scale with which one device rounds frames and queries to float16.

    Greek letters are those of the proof in `bounds`, which holds for any mean and scale.
    """

    metric: str
    mean: torch.Tensor  # [d'] float64: μ, padded with zeros
    shift: torch.Tensor  # [d'] float64: μ', the mean of the quantized frames
    scale: float  # σ
    is_rounded: bool  # False if frames are float16 already
    balance: float  # τ

    @property
    def dim(self) -> int:
        """The number of dimensions with padding: d'."""
        return len(self.mean)

    @property
    def product_error(self) -> float:
        """The largest error of a product, relative to the product of the norms: g."""
        return (self.dim + 16) * 2.0**-22 + 4 * U

    @cached_property
    def unit(self) -> torch.Tensor:
        """The factor of costs, [] float64; a tensor, since Triton passes floats as float32."""
        unit = self.scale**2 if self.metric == "cosine" else self.scale
        return torch.tensor(unit, dtype=torch.float64, device=self.mean.device)

    @cached_property
    def shift_norm(self) -> float:
        """|μ'|, read from the device once."""
        return float(self.shift.norm())


def fit_quantization(
    sample: Frames, dtype: torch.dtype, metric: str, device: torch.device
) -> Quantization:
    """Return a quantization for frames of a dtype.

    Any sample [m d] gives valid bounds; one that resembles the frames gives tight bounds.
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
        # With mean 0, queries that are float16 are not rounded either.
        mean, moved, balance = np.zeros_like(mean), values, 1.0
    largest = float(np.abs(moved).max(initial=0.0))
    exponent = EXPONENT - math.frexp(largest)[1] if is_rounded and largest > 0 else 0
    padded = np.zeros((2, DIM_MULTIPLE * -(-len(mean) // DIM_MULTIPLE)))
    padded[:, : len(mean)] = mean, 0.0 * mean if is_rounded else mean
    on_device = torch.as_tensor(padded, device=device)
    scale = math.ldexp(1.0, exponent)
    return Quantization(metric, on_device[0], on_device[1], scale, is_rounded, balance)


def _compare_norms(values: Floats, moved: Floats) -> float:
    """Return the ratio of the vectors' mean norms before and after centering, from 1 to 64."""
    before, after = np.linalg.norm(values, axis=1).mean(), np.linalg.norm(moved, axis=1).mean()
    return float(np.clip(before / after, 1.0, 64.0)) if after > 0 else 1.0


@dataclass(frozen=True, eq=False)
class QuantizedBatch:
    """Concatenated trajectories on one device, quantized for their lower bounds."""

    ids: list[int]
    lengths: list[int]
    frames: torch.Tensor  # [F d] the original frames, for the exact alignment
    quantized: torch.Tensor  # [F d'] float16: b'
    offsets: torch.Tensor  # [t + 1] int64
    beta: torch.Tensor  # [F] float32: β
    errors: torch.Tensor  # [F] float32: |e|; [1] where all are 0
    largest_norm: float  # the largest |b' − μ'|

    def requantize(self, frames: torch.Tensor, quantization: Quantization) -> QuantizedBatch:
        """Return the batch with frames that were sent again; their norms are not recomputed."""
        quantized, errors = _quantize_frames(frames, quantization)
        return replace(self, frames=frames, quantized=quantized, errors=errors)


def quantize_batch(
    batch: TrajectoryBatch, frames: torch.Tensor, quantization: Quantization, name: Name
) -> QuantizedBatch:
    """Quantize a batch whose frames [F d] are on the device; raise on invalid numbers."""
    quantized, errors = _quantize_frames(frames, quantization)
    chunks = torch.split(quantized, CHUNK_FRAMES)
    centered = torch.cat([(vectors - quantization.shift).norm(dim=1) for vectors in chunks])
    plain = torch.cat([vectors.to(torch.float64).norm(dim=1) for vectors in chunks])
    share = quantization.product_error / quantization.balance
    beta = (1 - 4 * U - 1e-12) * centered**2 - share * plain**2
    largest_norm = float(centered.max())
    is_unusual = not math.isfinite(largest_norm) or not bool(torch.isfinite(errors).all())
    if is_unusual or quantization.metric == "cosine":
        for index, trajectory in zip(batch.ids, batch.frames, strict=True):
            validation.check_numbers(trajectory, name(index), quantization.metric)
    lengths = [len(trajectory) for trajectory in batch.frames]
    offsets = torch.as_tensor(batch.offsets, device=frames.device)
    return QuantizedBatch(
        batch.ids, lengths, frames, quantized, offsets, round_down(beta), errors, largest_norm
    )


def _quantize_frames(
    frames: torch.Tensor, quantization: Quantization
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the float16 vectors b' [F d'] of frames [F d], and |e| [F] ([1] where all are 0)."""
    total, dim = len(frames), quantization.dim
    if not quantization.is_rounded:
        return _pad(frames, dim), torch.zeros(1, device=frames.device)
    quantized = torch.empty(total, dim, dtype=torch.float16, device=frames.device)
    errors = torch.empty(total, dtype=torch.float32, device=frames.device)
    chunks = (torch.split(numbers, CHUNK_FRAMES) for numbers in (frames, quantized, errors))
    for vectors, near, error in zip(*chunks, strict=True):
        near[:], error[:] = round_vectors(vectors, quantization)
        is_far = near.abs().amax(1) == FLOAT16_MAX  # these would take precision from the others
        near.masked_fill_(is_far[:, None], 0)
        error.masked_fill_(is_far, torch.inf)
    return quantized, errors


def _pad(vectors: torch.Tensor, dim: int) -> torch.Tensor:
    """Return vectors padded with zeros to `dim` dimensions: rows are then aligned to 16 bytes."""
    padding = dim - vectors.shape[1]
    return torch.nn.functional.pad(vectors, (0, padding)) if padding else vectors


def round_vectors(
    vectors: torch.Tensor, quantization: Quantization
) -> tuple[torch.Tensor, torch.Tensor]:
    """Center, scale and round vectors [m d]; return [m d'] float16, and bounds of the errors [m].

    Numbers beyond float16's range are clamped, and the error is large.
    """
    values = vectors.to(torch.float64)
    if quantization.metric == "cosine":
        values = values / values.abs().amax(1, keepdim=True)
        values = values / values.norm(dim=1, keepdim=True)
    moved = (values - quantization.mean[: values.shape[1]]) * quantization.scale
    near = moved.clamp(-FLOAT16_MAX, FLOAT16_MAX).to(torch.float16)
    # Normalising here and on the host can differ in the last bits.
    error = (moved - near).norm(dim=1) * (1 + 1e-6) + 1e-12 * quantization.scale + 1e-37
    return _pad(near, quantization.dim), error.to(torch.float32)


def round_down(values: torch.Tensor) -> torch.Tensor:
    """Return float64 numbers as float32, rounded down."""
    singles = values.to(torch.float32)
    below = torch.nextafter(singles, torch.full_like(singles, -torch.inf))
    return torch.where(singles > values, below, singles)
