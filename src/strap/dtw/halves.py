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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strap.dtw import bounding, checks, kernels
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
    tile_frames = 2048
    multiple = 256

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
        """As `Tiled.bounds`; torch has its threads back afterwards."""
        threads = self._torch.get_num_threads()
        try:
            return super().bounds(piece, name)
        finally:
            self._torch.set_num_threads(threads)

    def _fill(
        self, values: Halves, squares: Floats, errors: Floats, offsets: Ints, lows: Singles
    ) -> None:
        # Said in every thread: each would start a team of its own for a product otherwise.
        self._torch.set_num_threads(1)
        beta, slack = round_down(self.shrink * squares), _raised(errors, squares)
        borders, columns = self.stacked.borders, self._tensor(values)
        for group in self.stacked.groups():
            own = borders[group.start : group.stop + 1]
            rows, part = slice(own[0], own[-1]), slice(group.start, group.stop)
            with self._torch.inference_mode():
                products = self._bits(columns @ self.rows[rows].T)
            cells = _Cells(
                self.alpha[rows], self.slack[rows], beta, slack, products, self.metric == "cosine"
            )
            if self.code == kernels.CODES["strap"]:
                _low_costs_by_frame(cells, own - own[0], offsets, lows[part])
            else:
                _low_costs_by_row(cells, own - own[0], offsets, self.code, lows[part])

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


class _Cells(NamedTuple):
    """What the cells of R query frames and F frames are made of, for compiled loops."""

    alpha: Singles
    """[R]"""
    own: Singles
    """[R] errors of the queries' frames"""
    beta: Singles
    """[F]"""
    slack: Singles
    """[F] errors of the frames"""
    products: Halves
    """[F R] as bfloat16"""
    is_cosine: bool


@njit
def _made(
    alpha: Singles, own: Singles, beta: np.float32, slack: np.float32, products: Singles
) -> None:
    """A frame's products [R] to lower bounds of distances, errors taken off; in place."""
    zero, share = np.float32(0), np.float32(2.0**-8)
    for n in range(products.shape[0]):
        square = (alpha[n] + beta) + (products[n] - share * abs(products[n]))
        products[n] = max(np.sqrt(max(square, zero)) - (own[n] + slack), zero)


@njit
def _halved_squares(row: Singles) -> None:
    for m in range(row.shape[0]):
        row[m] = np.float32(0.5) * (row[m] * row[m])


@njit
def _column(cells: _Cells, frame: int, out: Singles) -> None:
    """out [R] = the costs of one frame."""
    _as_singles(cells.products[frame], out.view(np.uint32))
    _made(cells.alpha, cells.own, cells.beta[frame], cells.slack[frame], out)
    if cells.is_cosine:
        _halved_squares(out)


@njit
def _low_costs_by_frame(cells: _Cells, borders: Ints, offsets: Ints, out: Singles) -> None:
    """out [q t] = least D(N, m) of steps `strap`, frame by frame and for all queries at once.

    Queries are rows borders[q]:borders[q + 1] of the cells. Predecessors lie one row up and one or
    two frames back, so that a frame's cells don't wait for each other. `before` keeps of the last
    frames, for every row, the D one row up: 0 above a query's first row.
    """
    R, Q = cells.alpha.shape[0], borders.shape[0] - 1
    before = np.empty((3, R + 1), np.float32)
    costs = np.empty(R, np.float32)
    for i in range(out.shape[1]):
        before[:] = np.inf
        for q in range(Q):
            before[:, borders[q]] = 0
        out[:, i] = np.inf
        for m in range(offsets[i + 1] - offsets[i]):
            _column(cells, offsets[i] + m, costs)
            now, one, two = before[m % 3], before[(m + 2) % 3], before[(m + 1) % 3]
            bounding.add_least(costs, one[:R], two[:R], now[1:])
            for q in range(Q):
                out[q, i] = min(out[q, i], now[borders[q + 1]])
            for q in range(Q):
                now[borders[q]] = 0


@njit
def _low_costs_by_row(cells: _Cells, borders: Ints, offsets: Ints, code: int, out: Singles) -> None:
    """As `_low_costs_by_frame`, for any steps, row by row."""
    R, longest = cells.alpha.shape[0], bounding.longest_of(offsets)
    costs, row = np.empty((longest, R), np.float32), np.empty(longest, np.float32)
    D = np.empty((3, longest + 2), np.float32)
    for i in range(out.shape[1]):
        M = offsets[i + 1] - offsets[i]
        for m in range(M):
            _column(cells, offsets[i] + m, costs[m])
        for q in range(out.shape[0]):
            N = borders[q + 1] - borders[q]
            D[:] = np.inf
            for n in range(N):
                row[:M] = costs[:M, borders[q] + n]
                bounding.accumulate(n, code, 0, M, row[:M], D)
            out[q, i] = bounding.least(D, N, M, code)
