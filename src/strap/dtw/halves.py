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
   errors as much: 8u|a'| and 8u|b'| are added to |f| and |e|. Under cosine the difference is
   squared, which gains 2u. What follows is step 5 of `bounds`, whose 8u cover that.
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

from strap.dtw import bounding, checks
from strap.dtw.bounds import UNDERFLOW, Tiled, U, round_down
from strap.dtw.jit import njit, njit_reordered
from strap.dtw.pieces import Piece, Stacked, as_values
from strap.dtw.types import Floats, Frames, Halves, Ints, Name, Singles

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

    dtype = np.uint16

    def __init__(self, queries: Sequence[Frames], steps: str, metric: str, pool: Executor) -> None:
        import torch

        self._torch = torch
        super().__init__(Stacked.of(queries, metric), steps, metric, pool)
        rows, dim = self.stacked.frames.shape
        halves, squares, errors = np.empty((rows, dim), np.uint16), np.empty(rows), np.empty(rows)
        _round(*self.stacked.move(self.stacked.frames), halves, squares, errors)
        self.shrink = 1 - (dim + 16) * 2.0**-22 - (bounding.RUN + 32) * U
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

    def _fill(
        self, values: Halves, squares: Floats, errors: Floats, offsets: Ints, lows: Singles
    ) -> None:
        beta, slack = round_down(self.shrink * squares), _raised(errors, squares)
        borders, columns = self.stacked.borders, self._tensor(values).T
        for group in self.stacked.groups():
            top, bottom = int(borders[group.start]), int(borders[group.stop])
            with self._torch.inference_mode():
                products = self._bits(self.rows[top:bottom] @ columns)
            for q in group:
                rows = slice(borders[q], borders[q + 1])
                _low_costs(
                    self.alpha[rows],
                    self.slack[rows],
                    beta,
                    slack,
                    products[borders[q] - top : borders[q + 1] - top],
                    offsets,
                    self.code,
                    self.metric == "cosine",
                    lows[q],
                )

    def _prepare(
        self, frames: Frames, what: str, out: Halves, squares: Floats, errors: Floats
    ) -> bool:
        """Step 1."""
        good = True
        if frames.dtype == np.float16 and self.metric == "l2" and self.stacked.is_ordinary:
            bits = np.ascontiguousarray(frames).view(np.uint16)
            mean, scale = self.stacked.single_mean, np.float32(self.stacked.scale)
            _round_bits(bits, mean, scale, out, squares, errors)
            # As whole numbers, infinities and NaN are the largest of either sign.
            good = bits.view(np.int16).max() <= 0x7BFF and bits.max() <= 0xFBFF
        else:
            with np.errstate(invalid="ignore"):  # 0/0 under cosine: reported below, by name
                values = as_values(frames, self.metric)
            _round(*self.stacked.move(values), out, squares, errors)
        if good and (squares <= bounding.LARGEST_SQUARE).all():
            return True
        checks.values(frames, what, self.metric)
        out[:], squares[:], errors[:] = 0, 0, 0
        return False

    def _tensor(self, halves: Halves) -> Any:
        return self._torch.from_numpy(halves.view(np.int16)).view(self._torch.bfloat16)

    def _bits(self, tensor: Any) -> Halves:
        return np.asarray(tensor.view(self._torch.int16).numpy().view(np.uint16))


def _raised(errors: Floats, squares: Floats) -> Singles:
    """Steps 1 and 4: bounds [m] of |e|, rounded up, from squared errors [m]."""
    sure = np.sqrt(errors) * (1 + 2.0**-10) + 10 * U * np.sqrt(squares) + 1e-30
    return (sure * (1 + 2.0**-20)).astype(np.float32)


@njit_reordered
def _norms(single: Singles, rounded: Singles) -> tuple[np.float32, np.float32]:
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
def _cut(single: Singles, rounded: Singles) -> None:
    """The nearest numbers of 8 binary digits: t − (t − x) with t = (2¹⁶ + 1)x."""
    for k in range(single.shape[0]):
        larger = single[k] * np.float32(65537)
        rounded[k] = larger - (larger - single[k])


@njit
def _move_widened(wide: Singles, mean: Singles, scale: np.float32, out: Singles) -> None:
    for k in range(wide.shape[0]):
        out[k] = (wide[k] * np.float32(2.0**112) - mean[k]) * scale


@njit
def _upper_halves(words: NDArray[np.uint32], out: Halves) -> None:
    """What bfloat16 keeps of float32."""
    for k in range(words.shape[0]):
        out[k] = words[k] >> 16


@njit
def _round_row(single: Singles, rounded: Singles, out: Halves) -> tuple[float, float]:
    """out [d] = the numbers as bfloat16; their squared norm, and that of the error."""
    _cut(single, rounded)
    _upper_halves(rounded.view(np.uint32), out)
    total, off = 0.0, 0.0
    for k in range(0, single.shape[0], bounding.RUN):
        run = slice(k, k + bounding.RUN)
        more, less = _norms(single[run], rounded[run])
        total += np.float64(more)
        off += np.float64(less)
    return total, off


@njit
def _round(
    frames: Frames, mean: Frames, scale: float, out: Halves, squares: Floats, errors: Floats
) -> None:
    """out [m d] = (frames − mean)·scale as bfloat16; [m] its squared norms, and those of the error.

    Frames, mean and scale are all float32 or all float64: the difference is rounded once.
    """
    single = np.empty(frames.shape[1], np.float32)
    rounded = np.empty(frames.shape[1], np.float32)
    for i in range(frames.shape[0]):
        _move(frames[i], mean, scale, single)
        squares[i], errors[i] = _round_row(single, rounded, out[i])


@njit
def _round_bits(
    frames: Halves, mean: Singles, scale: np.float32, out: Halves, squares: Floats, errors: Floats
) -> None:
    """As `_round`, for the bits of finite float16 frames."""
    wide = np.empty(frames.shape[1], np.float32)
    single = np.empty(frames.shape[1], np.float32)
    rounded = np.empty(frames.shape[1], np.float32)
    for i in range(frames.shape[0]):
        bounding.widen(frames[i], wide.view(np.uint32))
        _move_widened(wide, mean, scale, single)
        squares[i], errors[i] = _round_row(single, rounded, out[i])


@njit
def _as_singles(halves: Halves, out: NDArray[np.uint32]) -> None:
    """bfloat16 bits to those of the same number as float32."""
    for m in range(out.shape[0]):
        out[m] = halves[m] << 16


@njit
def _cells(
    alpha: np.float32, own: np.float32, beta: Singles, slack: Singles, products: Singles
) -> None:
    """A row's products [m] to lower bounds of distances, errors own, [m] taken off; in place."""
    zero, share = np.float32(0), np.float32(2.0**-8)
    for m in range(products.shape[0]):
        square = (alpha + beta[m]) + (products[m] - share * abs(products[m]))
        products[m] = max(np.sqrt(max(square, zero)) - (own + slack[m]), zero)


@njit
def _halved_squares(row: Singles) -> None:
    for m in range(row.shape[0]):
        row[m] = np.float32(0.5) * (row[m] * row[m])


@njit
def _low_costs(
    alpha: Singles,
    own: Singles,
    beta: Singles,
    slack: Singles,
    products: Halves,
    offsets: Ints,
    code: int,
    half: bool,
    out: Singles,
) -> None:
    """As `bounding.low_costs`, for bfloat16 products [n F] and errors own [n], slack [F]."""
    N, longest = alpha.shape[0], bounding.longest_of(offsets)
    D = np.empty((3, longest + 2), np.float32)
    kept = np.empty(longest, np.float32)
    for i in range(out.shape[0]):
        first = offsets[i]
        M = offsets[i + 1] - first
        D[:] = np.inf
        for n in range(N):
            lo, hi = (n, M - N + n + 1) if code == 0 else (0, M)
            if lo >= hi:
                break
            here, row = slice(first + lo, first + hi), kept[: hi - lo]
            _as_singles(products[n, here], row.view(np.uint32))
            _cells(alpha[n], own[n], beta[here], slack[here], row)
            if half:
                _halved_squares(row)
            bounding.accumulate(n, code, lo, hi, row, D)
        out[i] = bounding.least(D, N, M, code)
