"""Lower bounds from bfloat16 products, for processors that multiply those by themselves (AMX).

What is proved here: `HalfFilter.bounds` never exceeds the cost that `kernels.align` returns. As in
`bounds`, let u = 2⁻²⁴, a, b be frames in float64, μ a mean and s a power of two.

1. Both are moved, scaled, rounded to float32 and then to bfloat16: s(a − μ) = a' + f. |f| is
   computed: the second rounding exactly, the first is at most u(1 + 2⁻²⁸) of its result. So
   s|a − b| ≥ |a' − b'| − |f| − |e|, e being the same for b.
2. Products of bfloat16 numbers are exact in float32. Sums are float32, in any order, rounded or
   cut off: each addition errs by at most 2⁻²² of the sum of absolute values, together by γ|a'||b'|
   ≤ γ(A + B)/2 with γ = (d + 16)2⁻²², A = |a'|², B = |b'|². The result, P of −2a' with b', is
   rounded to bfloat16, p: |P − p| ≤ 2⁻⁸|p| whichever way it is rounded. So
   |a' − b'|² ≥ A + B + p − 2⁻⁸|p| − γ(A + B).
3. A and B are summed in float32 over runs of 256, then in float64; the kernel's four operations
   in float32 err by at most u of values below 3(A + B). κ = γ + (256 + 32)u covers all: with
   α = ⌊(1 − κ)A − τ⌋ and β = ⌊(1 − κ)B⌋ the kernel's square is at most |a' − b'|². τ = 1e−33
   covers underflow.
4. The root, at most |a'| + |b'| and a little, gains 2u of itself, and the subtraction of the two
   errors as much: 8u|a'| and 8u|b'| are added to |f| and |e|. The difference is squared, which
   the recurrence's root undoes up to 2u. What follows is step 5 of `bounds`, whose 8u cover that.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strap.dtw import checks, kernels
from strap.dtw.bounds import UNDERFLOW, Tiled, U, round_down
from strap.dtw.jit import njit, njit_reordered
from strap.dtw.pieces import Piece, Stacked, as_values
from strap.dtw.types import Floats, Frames, Name, Singles

Halves = NDArray[np.uint16]
WORTH = 4e9  # multiplications from which on loading torch pays
LARGEST_DIM = 2**16


@cache
def multiplies_halves() -> bool:
    """Whether the processor has matrix units for bfloat16, and torch is there to use them."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "amx_bf16" in flags and find_spec("torch") is not None


def pays(rows: int, frames: int, dim: int) -> bool:
    """Whether a search whose first piece has that many frames should use them."""
    return rows * frames * dim > WORTH and dim <= LARGEST_DIM and multiplies_halves()


class HalfFilter(Tiled):
    """Bounds from bfloat16 products: as `bounds.Filter` gives them, a little lower."""

    def __init__(self, queries: Sequence[Frames], steps: str, metric: str, pool: Executor) -> None:
        import torch

        self._torch = torch
        super().__init__(Stacked.of(queries, metric), steps, metric, pool)
        rows, dim = self.stacked.frames.shape
        halves, squares, errors = np.empty((rows, dim), np.uint16), np.empty(rows), np.empty(rows)
        _round(*self.stacked.move(self.stacked.frames), halves, squares, errors)
        self.shrink = 1 - (dim + 16) * 2.0**-22 - (kernels.RUN + 32) * U
        self.alpha = round_down(self.shrink * squares - UNDERFLOW)
        self.slack = _raised(errors, squares)
        self.rows = self._tensor(halves) * -2  # exact

    def bounds(self, piece: Piece, name: Name) -> Floats:
        """As `Tiled.bounds`; torch uses one thread per tile meanwhile."""
        threads = self._torch.get_num_threads()
        self._torch.set_num_threads(1)
        try:
            return super().bounds(piece, name)
        finally:
            self._torch.set_num_threads(threads)

    def _tile(
        self,
        frames: Sequence[Frames],
        names: Sequence[str],
        lows: Singles,
        proved: NDArray[np.bool_],
    ) -> None:
        """Fill lows [q t] and proved [t] for the trajectories of one tile."""
        offsets = np.cumsum([0, *(len(own) for own in frames)])
        total, dim = int(offsets[-1]), self.rows.shape[1]
        halves: Halves = self.buffers.get("halves", np.uint16, total, dim)
        squares, errors = np.empty(total), np.empty(total)
        for i, (own, what) in enumerate(zip(frames, names, strict=True)):
            part = slice(offsets[i], offsets[i + 1])
            with np.errstate(invalid="ignore"):  # 0/0 under cosine: reported below, by name
                values = as_values(own, self.metric)
            _round(*self.stacked.move(values), halves[part], squares[part], errors[part])
            proved[i] = bool((squares[part] <= kernels.LARGEST_SQUARE).all())
            if not proved[i]:
                checks.values(own, what, self.metric)
                halves[part], squares[part], errors[part] = 0, 0, 0
        beta, slack = round_down(self.shrink * squares), _raised(errors, squares)
        borders = self.stacked.borders
        columns, nothing = self._tensor(halves).T, np.zeros(max(total, len(self.alpha)), np.float32)
        for group in self.stacked.groups():
            top, bottom = int(borders[group.start]), int(borders[group.stop])
            products: Singles = self.buffers.get("products", np.float32, bottom - top, total)
            with self._torch.inference_mode():
                self._torch.from_numpy(products).copy_(self.rows[top:bottom] @ columns)
            _squares(self.alpha[top:bottom], self.slack[top:bottom], beta, slack, products)
            for q in group:
                own_rows = products[borders[q] - top : borders[q + 1] - top]
                kernels.low_costs(
                    nothing[: len(own_rows)],
                    nothing[:total],
                    own_rows,
                    offsets,
                    self.code,
                    self.metric == "cosine",
                    lows[q],
                )

    def _tensor(self, halves: Halves) -> Any:
        return self._torch.from_numpy(halves.view(np.int16)).view(self._torch.bfloat16)


def _raised(errors: Floats, squares: Floats) -> Singles:
    """Steps 1 and 4: bounds [m] of |e|, rounded up, from squared errors [m]."""
    sure = np.sqrt(errors) * (1 + 2.0**-10) + 10 * U * np.sqrt(squares) + 1e-30
    return (sure * (1 + 2.0**-20)).astype(np.float32)


@njit_reordered
def _sum_run(single: Singles, rounded: Singles) -> tuple[np.float32, np.float32]:
    """The squared norms of what was rounded and of what rounding took off, in float32."""
    total, off = np.float32(0), np.float32(0)
    for k in range(single.shape[0]):
        difference = single[k] - rounded[k]
        total += rounded[k] * rounded[k]
        off += difference * difference
    return total, off


@njit
def _move(frame: Frames, mean: Frames, scale: float, out: Singles) -> None:
    for k in range(frame.shape[0]):
        out[k] = np.float32((frame[k] - mean[k]) * scale)


@njit
def _cut(bits: NDArray[np.uint32], out: Halves, rounded: NDArray[np.uint32]) -> None:
    """float32 bits to the nearest bfloat16's, ties to the even one."""
    for k in range(bits.shape[0]):
        half = (bits[k] + np.uint32(0x7FFF) + ((bits[k] >> 16) & np.uint32(1))) >> 16
        out[k] = half
        rounded[k] = half << 16


@njit
def _round(
    frames: Frames, mean: Frames, scale: float, out: Halves, squares: Floats, errors: Floats
) -> None:
    """out [m d] = (frames − mean)·scale as bfloat16; [m] its squared norms, and those of the error.

    Frames, mean and scale are all float32 or all float64: the difference is rounded once.
    """
    single = np.empty(frames.shape[1], np.float32)
    bits = np.empty(frames.shape[1], np.uint32)
    rounded = bits.view(np.float32)
    for i in range(frames.shape[0]):
        _move(frames[i], mean, scale, single)
        _cut(single.view(np.uint32), out[i], bits)
        total, off = 0.0, 0.0
        for k in range(0, frames.shape[1], kernels.RUN):
            run = slice(k, k + kernels.RUN)
            more, less = _sum_run(single[run], rounded[run])
            total += np.float64(more)
            off += np.float64(less)
        squares[i], errors[i] = total, off


@njit
def _squares(
    alpha: Singles, own: Singles, beta: Singles, slack: Singles, products: Singles
) -> None:
    """Products [n F] to lower bounds of squared distances, errors [n], [F] taken off; in place."""
    zero, share = np.float32(0), np.float32(2.0**-8)
    for n in range(products.shape[0]):
        row, a, off = products[n], alpha[n], own[n]
        for m in range(row.shape[0]):
            square = (a + beta[m]) + (row[m] - share * abs(row[m]))
            near = max(np.sqrt(max(square, zero)) - (off + slack[m]), zero)
            row[m] = near * near
