"""Trajectories on a GPU: how frames get there, and the float16 copies the filter works on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import SimpleNamespace

import numpy as np
import torch
import triton

from strap.dtw import validation as checks
from strap.dtw.batching import Batch as Piece
from strap.dtw.batching import as_floats as as_values
from strap.dtw.gpu import kernels
from strap.dtw.gpu.overlap import Scratch
from strap.dtw.types import Floats, Frames, Name

U = 2.0**-24
ALIGNED = 8  # float16 numbers in 16 bytes, in which tensor descriptors count
SLICE = 2**14  # frames converted at a time
TARGET = 8  # converted frames of ordinary size lie around 2⁸: room on both sides in float16
CENTERED = 1.25  # how much shorter vectors must become for a center to be worth rounding queries
DTYPES = {np.dtype(np.float16): torch.float16, np.dtype(np.float32): torch.float32}


@dataclass(frozen=True, eq=False)
class Space:
    """How frames are moved and scaled before they are rounded to float16; see `bounds`, step 1."""

    mean: Floats  # [d]: μ
    scale: float  # σ
    dim: int  # d with padding
    rounded: bool  # whether frames are converted, or are float16 already
    balance: float  # τ
    _sent: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = field(
        default_factory=dict, repr=False
    )
    _constants: dict[tuple[torch.device, int, int], torch.Tensor] = field(
        default_factory=dict, repr=False
    )

    @classmethod
    def of(cls, sample: Frames, metric: str, *, rounded: bool) -> Space:
        """The space for frames like these [m d]; any sample is right, a typical one is tight."""
        values = as_values(sample, metric).astype(np.float64, copy=False)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = values.mean(axis=0).astype(np.float32).astype(np.float64)
        if not np.isfinite(mean).all():
            mean = np.zeros(values.shape[1])
        moved = values - mean
        balance = 1.0 if rounded else _balance(values, moved)
        if not rounded and balance < CENTERED:
            # Then queries that are float16 are not rounded either.
            mean, moved, balance = np.zeros_like(mean), values, 1.0
        largest = float(np.abs(moved).max(initial=0.0))
        exponent = TARGET - math.frexp(largest)[1] if rounded and largest > 0 else 0
        dim = ALIGNED * -(-values.shape[1] // ALIGNED)
        return cls(mean, math.ldexp(1.0, exponent), dim, rounded, balance)

    @property
    def shift(self) -> Floats:
        """μ': where the mean lies among the vectors on the GPU."""
        return np.zeros_like(self.mean) if self.rounded else self.mean

    @cached_property
    def shift_norm(self) -> float:
        """|μ'|."""
        return float(np.linalg.norm(self.shift))

    def on(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """μ and μ' on a device, padded to [d']; sent there once."""
        if device not in self._sent:
            padded = np.zeros((2, self.dim))
            padded[:, : len(self.mean)] = self.mean, self.shift
            mean, shift = torch.as_tensor(padded, device=device)
            self._sent[device] = mean, shift
        return self._sent[device]

    def constants(self, device: torch.device, lift: int, power: int) -> torch.Tensor:
        """[6] float64 for the kernels: σ, 2^−j, 2^j, gτ, |μ'|, and a power of σ; sent once."""
        key = device, lift, power
        if key not in self._constants:
            lifted = math.ldexp(1.0, -lift), math.ldexp(1.0, lift)
            share = self.error * self.balance
            numbers = self.scale, *lifted, share, self.shift_norm, self.scale**power
            self._constants[key] = torch.tensor(numbers, dtype=torch.float64, device=device)
        return self._constants[key]

    @cached_property
    def farthest(self) -> float:
        """The largest number in μ, without its sign."""
        return float(np.abs(self.mean).max(initial=0.0))

    @property
    def error(self) -> float:
        """g: what a product and its sum may err, as a share of the product of the norms."""
        return (self.dim + 16) * 2.0**-22 + 4 * U


def _balance(values: Floats, moved: Floats) -> float:
    """How much shorter vectors are after they were moved."""
    sizes = np.linalg.norm(values, axis=1).mean(), np.linalg.norm(moved, axis=1).mean()
    return float(np.clip(sizes[0] / sizes[1], 1.0, 64.0)) if sizes[1] > 0 else 1.0


@dataclass(eq=False)
class Loaded:
    """Some trajectories on one device, end to end, ready for the filter."""

    ids: list[int]
    lengths: list[int]
    frames: torch.Tensor  # [F d] as they came: what is evaluated exactly
    halves: torch.Tensor  # [F d'] float16
    offsets: torch.Tensor  # [t + 1] int64
    beta: torch.Tensor  # [F] float32
    slack: torch.Tensor  # [F] float32: |e|
    rounded: bool
    reach: float  # largest |b' − μ'|
    scratch: Scratch = field(repr=False)

    def again(self, frames: torch.Tensor, space: Space, metric: str) -> Loaded:
        """The same piece after its frames were sent once more: norms stay, halves are made anew."""
        halves, slack = rounded_frames(frames, space, metric)
        return replace(self, frames=frames, halves=halves, slack=slack)

    def cells(self, rows: int) -> torch.Tensor:
        """Memory for the cells [F rows]."""
        return self.scratch.get(len(self.halves) * rows).view(-1, rows)

    def addresses(self) -> list[int]:
        """Where each trajectory lies in the device's memory."""
        size = self.frames.element_size() * self.frames.shape[1]
        first = self.frames.data_ptr()
        starts = np.cumsum([0, *self.lengths[:-1]])
        return [first + int(start) * size for start in starts]


def lowered(values: torch.Tensor) -> torch.Tensor:
    """Float64 to float32, never upwards."""
    singles = values.to(torch.float32)
    below = torch.nextafter(singles, torch.full_like(singles, -torch.inf))
    return torch.where(singles > values, below, singles)


def as_tensor(frames: Frames) -> torch.Tensor:
    """Frames without loss in a dtype that kernels read."""
    dtype = np.dtype(frames.dtype)
    if dtype in DTYPES or dtype == np.float64:
        return torch.from_numpy(_unlocked(np.ascontiguousarray(frames)))
    return torch.from_numpy(frames.astype(np.float64))


def _unlocked(array: Frames) -> Frames:
    """The same memory, not marked read-only: torch warns of such, and nothing here writes."""
    if array.flags.writeable:
        return array
    address, _ = array.__array_interface__["data"]
    interface = {**array.__array_interface__, "data": (address, False)}
    return np.asarray(SimpleNamespace(__array_interface__=interface, owner=array))


def load(
    piece: Piece, frames: torch.Tensor, space: Space, metric: str, scratch: Scratch, name: Name
) -> Loaded:
    """Prepare frames [F d], already on the device, for the filter; raises on invalid numbers."""
    device, total = frames.device, len(frames)
    centered = torch.empty(total, dtype=torch.float64, device=device)
    plain = torch.empty(total, dtype=torch.float64, device=device)
    halves, slack = rounded_frames(frames, space, metric)
    shift = space.on(device)[1]
    kernels.norms[(triton.cdiv(total, 16),)](
        halves, shift, centered, plain, total, space.dim, ROWS=16, BLOCK=128, num_warps=4
    )
    beta = (1 - 4 * U - 1e-12) * centered - space.error / space.balance * plain
    reach = float(centered.max())
    unusual = not math.isfinite(reach) or bool(torch.isinf(slack).any())
    if unusual or metric == "cosine":
        for index, own in zip(piece.ids, piece.frames, strict=True):
            checks.check_numbers(own, name(index), metric)
    offsets = torch.as_tensor(piece.offsets, device=device)
    lengths = [len(own) for own in piece.frames]
    return Loaded(
        piece.ids, lengths, frames, halves, offsets, lowered(beta), slack, space.rounded,
        math.sqrt(reach), scratch,
    )  # fmt: skip


def rounded_frames(
    frames: torch.Tensor, space: Space, metric: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """The float16 vectors b' [F d'] of frames [F d], and |e| [F] ([1] where all are 0)."""
    if space.rounded:
        return _converted(frames, space, metric)
    return _aligned(frames, space.dim), torch.zeros(1, device=frames.device)


def _aligned(frames: torch.Tensor, dim: int) -> torch.Tensor:
    """Float16 frames whose rows begin at multiples of 16 bytes."""
    if frames.shape[1] == dim:
        return frames
    out = torch.zeros(len(frames), dim, dtype=torch.float16, device=frames.device)
    out[:, : frames.shape[1]] = frames
    return out


def _converted(
    frames: torch.Tensor, space: Space, metric: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Frames moved, scaled and rounded to float16 [F d'], and how far each was moved by that."""
    total, dim = frames.shape
    halves = torch.zeros(total, space.dim, dtype=torch.float16, device=frames.device)
    slack = torch.empty(total, dtype=torch.float32, device=frames.device)
    mean = torch.as_tensor(space.mean, device=frames.device)
    for first in range(0, total, SLICE):
        part = slice(first, first + SLICE)
        values = frames[part].to(torch.float64)
        if metric == "cosine":
            values = values / values.abs().amax(1, keepdim=True)
            values = values / values.norm(dim=1, keepdim=True)
        moved = (values - mean) * space.scale
        near = moved.to(torch.float16)
        off = (moved - near.to(torch.float64)).norm(dim=1)
        far = ~torch.isfinite(near).all(1) | ~torch.isfinite(off)
        halves[part, :dim] = torch.where(far[:, None], 0, near)
        # Normalising here and on the host may differ in the last bits.
        error = off * (1 + 1e-6) + 1e-12 * space.scale + 1e-40
        slack[part] = torch.where(far, torch.inf, error * (1 + 2.0**-22)).to(torch.float32)
    return halves, slack
