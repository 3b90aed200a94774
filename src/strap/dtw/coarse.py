"""A first, faster filter on processors that multiply bfloat16 in hardware (AMX).

Moved frames are rounded to bfloat16 here, so that whatever the library's product does with its
inputs, it rounds nothing more; it adds in float32, as step 2 of `bounds` assumes. Everything
proved there holds for the rounded frames a'', b''. For the frames themselves

    |a' − b'| ≥ |a'' − b''| − |a' − a''| − |b' − b''|

so a path's bound loses the roundings' lengths, which are computed: the sum over the query's frames
and N times the largest of the trajectory (under `classic`, which may use a frame again, N + M times
the largest of both).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from strap.dtw import kernels
from strap.dtw.bounds import Filter, round_down
from strap.dtw.pieces import Piece
from strap.dtw.types import Floats, Frames, Name, Singles

SMALLEST_ROWS = 64  # fewer query frames don't pay for the second look


@cache
def available() -> bool:
    """Whether this processor has the instructions and torch is there to use them."""
    file = Path("/proc/cpuinfo")
    return find_spec("torch") is not None and file.is_file() and "amx_bf16" in file.read_text()


@contextmanager
def bfloat_products() -> Iterator[Any]:
    """torch, told to multiply float32 matrices as bfloat16, each product on the calling thread."""
    import torch

    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("medium")
    try:
        yield torch
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)


class CoarseFilter(Filter):
    """As `Filter`, from bfloat16 products; for metric l2, inside `bfloat_products`."""

    def __init__(self, queries: Sequence[Frames], steps: str, torch: Any, pool: Executor) -> None:
        super().__init__(queries, steps, "l2", pool)
        self._torch = torch
        self.rows *= np.float32(-0.5)  # as they were before they were doubled
        squares, moved = np.empty(len(self.rows)), np.empty(len(self.rows))
        kernels.round_bfloat(self.rows, squares, moved)
        self.alpha = round_down(self.shrink * squares - 1e-33)
        self.rows *= np.float32(-2)
        borders = self.stacked.borders
        self._sums = np.add.reduceat(moved, borders[:-1])[:, None]
        self._largest = np.maximum.reduceat(moved, borders[:-1])[:, None]
        self._errors: dict[str, float] = {}

    def bounds(self, piece: Piece, name: Name) -> Floats:
        """Lower bounds [q t] of the costs; ∞ where no path fits. Raises on invalid frames."""
        self._errors = {}
        lows = super().bounds(piece, name)
        errors = np.array([self._errors.get(name(index), 0.0) for index in piece.ids])
        rows = np.diff(self.stacked.borders)[:, None].astype(np.float64)
        if self.code == kernels.CODES["classic"]:
            cells = rows + np.diff(piece.offsets)
            lost = cells * (self._largest + errors)
        else:
            lost = self._sums + rows * errors
        return np.asarray(np.maximum(lows - lost * (1 + 1e-6) / self.scale, 0))

    def _prepare(self, frames: Frames, what: str, out: Singles, squares: Floats) -> bool:
        if not super()._prepare(frames, what, out, squares):
            return False
        moved = np.empty(len(out))
        kernels.round_bfloat(out, squares, moved)
        self._errors[what] = float(moved.max())
        return True

    def _multiply(self, rows: Singles, values: Singles, out: Singles) -> None:
        torch = self._torch
        torch.mm(torch.from_numpy(rows), torch.from_numpy(values).T, out=torch.from_numpy(out))
