"""Exact local costs of some cells (query frame, trajectory frame), each summed in order.

A returned cost is a sum in order of dimension, to the last bit, and one sum alone waits for each
of its additions. So eight cells are summed together: eight numbers of eight cells are transposed,
so that a register has one number of each cell, and eight sums go on at the same time.

    k →  a a a a a a a a        a b c d …   then  + + + + …  eight sums
         b b b b b b b b   →    a b c d …         + + + + …
         c c c c c c c c        a b c d …         + + + + …
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numpy.typing import NDArray

from strap.dtw.llvm import DOUBLE, FRAME_TYPES, WORD, Writer, number_of
from strap.dtw.types import Floats, Ints
from strap.jit import intrinsic, njit

CELLS = 8  # cells, and numbers of each that are transposed at once
ADDRESS = ir.IntType(64)
DOUBLES = ir.VectorType(DOUBLE, CELLS)


@njit
def local_costs(query: Floats, frames: NDArray[Any], is_cosine: bool) -> Floats:
    """Return C [n m] of query [n d] with all frames [m d] of a trajectory."""
    N, M = query.shape[0], frames.shape[0]
    costs, cells = np.empty((N, M)), np.empty((N * M, 2), np.int64)
    for n in range(N):
        for m in range(M):
            cells[n * M + m, 0], cells[n * M + m, 1] = n, m
    fill_costs(query, frames, cells, is_cosine, True, costs)
    return costs


@njit
def fill_costs(
    query: Floats,
    frames: NDArray[Any],
    cells: Ints,
    is_cosine: bool,
    in_registers: bool,
    costs: Floats,
) -> None:
    """Fill the exact costs [n m] of these cells [c 2], eight at a time.

    Args:
        query: [n d].
        frames: [m d]; float16 ones as their bits.
        cells: query and trajectory frame of each.
        is_cosine: whether frames are unit vectors, and costs half their squared distance.
        in_registers: whether numbers are transposed in registers; the sums are the same.
        costs: what is filled.
    """
    count, d = cells.shape[0], query.shape[1]
    lies_in_rows = frames.strides[1] == frames.itemsize and query.strides[1] == query.itemsize
    n_blocks = np.intp(d // CELLS if in_registers and lies_in_rows else 0)
    rows, others = np.empty(CELLS, np.intp), np.empty(CELLS, np.intp)
    eight, sums = np.empty((CELLS, 2), np.int64), np.empty(CELLS)
    for first in range(0, count, CELLS):
        for i in range(CELLS):
            eight[i] = cells[min(first + i, count - 1)]
            rows[i] = np.intp(query.ctypes.data) + eight[i, 0] * query.strides[0]
            others[i] = np.intp(frames.ctypes.data) + eight[i, 1] * frames.strides[0]
            sums[i] = 0
        if n_blocks > 0:
            _add_squares(
                np.intp(rows.ctypes.data),
                np.intp(others.ctypes.data),
                n_blocks,
                np.intp(sums.ctypes.data),
                frames[0, 0],
            )
        for k in range(n_blocks * CELLS, d):
            for i in range(CELLS):
                e = query[eight[i, 0], k] - number_of(frames[eight[i, 1], k])
                sums[i] += e * e
        for i in range(min(CELLS, count - first)):
            costs[eight[i, 0], eight[i, 1]] = 0.5 * sums[i] if is_cosine else np.sqrt(sums[i])


class _SquareWriter(Writer):
    """Writes the loop over dimensions, eight at a time."""

    def __init__(self, builder: Any, arguments: Any, kind: Any, size: int) -> None:
        super().__init__(builder)
        self.kind, self.size = kind, size
        self.queries, self.frames, self.blocks, self.sums, _ = arguments

    def write(self) -> None:
        builder = self.builder
        rows = [self._address(self.queries, i) for i in range(CELLS)]
        others = [self._address(self.frames, i) for i in range(CELLS)]
        sums = cgutils.alloca_once(builder, DOUBLES)  # type: ignore[no-untyped-call]
        place = self.pointer(self.sums, DOUBLES)
        builder.store(builder.load(place, align=8), sums)
        with cgutils.for_range(builder, self.blocks) as loop:
            squares = [self._squares(rows[i], others[i], loop.index) for i in range(CELLS)]
            total = builder.load(sums)
            for column in self._transposed(squares):
                total = builder.fadd(total, column)
            builder.store(total, sums)
        builder.store(builder.load(sums), place, align=8)

    def _squares(self, query: Any, frame: Any, block: Any) -> Any:
        """Return the squared differences of eight dimensions of a cell."""
        builder = self.builder
        there = self.at(frame, block, CELLS * self.size)
        other = self.load(there, ir.VectorType(self.kind, CELLS), self.size)
        if self.kind is not DOUBLE:
            other = builder.fpext(other, DOUBLES)
        row = self.load(self.at(query, block, CELLS * 8), DOUBLES, 8)
        difference = builder.fsub(row, other)
        return builder.fmul(difference, difference)

    def _transposed(self, rows: list[Any]) -> list[Any]:
        """Return rows as columns: ever larger squares change places."""
        side = 1
        while side < CELLS:
            turned = list(rows)
            for i in range(CELLS):
                if not i & side:
                    first, second = rows[i], rows[i + side]
                    turned[i] = self._mixed(first, second, side, upper=False)
                    turned[i + side] = self._mixed(first, second, side, upper=True)
            rows, side = turned, 2 * side
        return rows

    def _mixed(self, first: Any, second: Any, side: int, *, upper: bool) -> Any:
        places = []
        for k in range(CELLS):
            lane = k | side if upper else k & ~side
            places.append(lane + (CELLS if k & side else 0))
        mask = ir.Constant(ir.VectorType(WORD, CELLS), places)
        return self.builder.shuffle_vector(first, second, mask)

    def _address(self, table: Any, number: int) -> Any:
        return self.load(self.builder.add(table, table.type(number * 8)), ADDRESS, 8)


@intrinsic
def _add_squares(
    context: Any,  # noqa: ARG001
    queries: Any,  # noqa: ARG001
    frames: Any,  # noqa: ARG001
    blocks: Any,  # noqa: ARG001
    sums: Any,  # noqa: ARG001
    example: Any,
) -> Any:
    """Add the squared differences of eight cells to sums [8], of `blocks` times eight dimensions.

    Called with addresses: of eight addresses of query frames (float64), of eight of other frames,
    of the sums; `example` is a number of those other frames.
    """
    kind, size = FRAME_TYPES[example]

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        _SquareWriter(builder, arguments, kind, size).write()
        return context.get_dummy_value()

    return types.void(*[types.intp] * 4, example), generate
