"""Products of 16-bit integers by a processor's own instruction (VNNI), for compiled loops.

The instruction multiplies 16 pairs of neighbouring integers with 16 other pairs, and adds both
products of a pair to one of 16 sums of 32 bits: twice as many multiplications as with float32, and
nothing is rounded. A sum that leaves 32 bits on its way comes back: only the last one must fit.

    8 frames × 48 query rows       24 registers of sums, held
    a pair of each of those rows   3 registers, read anew for every pair
    a frame's pair                 1 register, 16 times the same

Frames lie row by row, as they are. Queries are packed once, in the order in which they are read,
the pairs of 16 rows side by side: [rows/16, d/128, 64·16·2]. 128 numbers of 48 rows stay in the
first-level cache while 64 frames go by.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils

from strap.dtw.instructions import WORD, Writer, addressed, has
from strap.dtw.jit import njit
from strap.dtw.pieces import LINE, aligned
from strap.dtw.types import Halves, Singles

STEP = 128  # to whose multiples the numbers of a frame are filled up
SIDE = 16  # sums in a register, to whose multiples query rows are filled up
HELD = 8  # frames multiplied together
BLOCKS = 3  # of 16 query rows, multiplied together
STEP_BYTES = STEP * 2
LANES = ir.VectorType(WORD, SIDE)


@cache
def available() -> bool:
    """Whether the processor has the instruction, on registers of 512 bits."""
    return has("avx512f", "avx512vnni")


def packed(rows: Halves) -> Halves:
    """Query rows [R d] as `multiply` takes them; what is missing to whole blocks is 0."""
    count, dim = rows.shape
    out = aligned((-(-count // SIDE), -(-dim // STEP), STEP * SIDE), np.uint16)
    out[:] = 0
    _pack(rows, out)
    return out


@njit
def _pack(rows: Halves, out: Halves) -> None:
    for i in range(rows.shape[0]):
        for k in range(rows.shape[1]):
            place = (k % STEP // 2 * SIDE + i % SIDE) * 2 + k % 2
            out[i // SIDE, k // STEP, place] = rows[i, k]


class _Writer(Writer):
    """Writes the instructions that add the products of 8 frames and some blocks of query rows."""

    def __init__(self, builder: Any, arguments: Any, blocks: int) -> None:
        super().__init__(builder)
        self.frames, self.stride, self.queries, self.far = arguments[:4]
        self.sums, self.width, self.fresh = arguments[4:]
        self.cells = [(f, b) for f in range(HELD) for b in range(blocks)]
        self.blocks = blocks

    def write(self) -> None:
        builder = self.builder
        kept = {
            cell: cgutils.alloca_once(builder, LANES)  # type: ignore[no-untyped-call]
            for cell in self.cells
        }
        for cell in self.cells:
            before = builder.load(self._sum(*cell), align=LINE)
            builder.store(builder.select(self.fresh, LANES(None), before), kept[cell])
        with cgutils.for_range(builder, self.frames.type(STEP // 2)) as loop:
            self._pair(loop.index, kept)
        for cell in self.cells:
            builder.store(builder.load(kept[cell]), self._sum(*cell), align=LINE)

    def _pair(self, index: Any, kept: dict[tuple[int, int], Any]) -> None:
        """One pair of numbers of all frames and rows."""
        builder = self.builder
        kind = ir.FunctionType(LANES, [LANES] * 3)
        add = builder.module.declare_intrinsic("llvm.x86.avx512.vpdpwssd.512", (), kind)
        there = self.at(self.queries, index, LINE)
        here = self.at(self.frames, index, 4)
        rows = [self.load(self.at(there, self.far, b), LANES, LINE) for b in range(self.blocks)]
        for f in range(HELD):
            same = self.same(self.load(self.at(here, self.stride, f), WORD, 4), LANES)
            for b in range(self.blocks):
                total = builder.call(add, [builder.load(kept[f, b]), same, rows[b]])
                builder.store(total, kept[f, b])

    def _sum(self, f: int, b: int) -> Any:
        """Where 16 sums of a frame lie."""
        row = self.at(self.sums, self.width, f)
        return self.pointer(self.builder.add(row, row.type(b * LINE)), LANES)


def _adding(blocks: int) -> Any:
    """What adds the products of 8 frames with so many blocks of query rows, over STEP numbers.

    Called with addresses and strides of frames, queries and sums; `fresh` sums begin at 0.
    """

    def write(builder: Any, arguments: Any) -> None:
        _Writer(builder, arguments, blocks).write()

    return addressed(write)


_add_one, _add_two, _add_three = _adding(1), _adding(2), _adding(3)


@njit
def _by_lanes(frames: Halves, count: int, queries: Halves, out: Singles) -> None:
    blocks, steps = queries.shape[0], queries.shape[1]
    stride, width = np.intp(frames.shape[1] * 2), np.intp(out.shape[1] * 4)
    far = np.intp(steps * STEP_BYTES * SIDE)
    for step in range(steps):
        here = np.intp(frames.ctypes.data) + step * STEP_BYTES
        for block in range(0, blocks, BLOCKS):
            rows = np.intp(queries.ctypes.data) + block * far + step * (STEP_BYTES * SIDE)
            sums = np.intp(out.ctypes.data) + block * LINE
            for f in range(0, count, HELD):
                place, fresh = sums + f * width, step == 0
                given = (here + f * stride, stride, rows, far, place, width, fresh)
                if blocks - block == 1:
                    _add_one(given)
                elif blocks - block == 2:
                    _add_two(given)
                else:
                    _add_three(given)


@njit
def _plainly(frames: Halves, count: int, queries: Halves, out: Singles) -> None:
    """As the instruction does it, for machines without: as slow as it looks."""
    blocks, steps = queries.shape[0], queries.shape[1]
    rows, sums = queries.view(np.int16), out.view(np.int32)
    values = frames.view(np.int16)
    sums[:count] = 0
    for block in range(blocks):
        for k in range(steps * STEP):
            held = rows[block, k // STEP]
            for m in range(count):
                for n in range(SIDE):
                    other = held[(k % STEP // 2 * SIDE + n) * 2 + k % 2]
                    sums[m, block * SIDE + n] += np.int32(values[m, k]) * np.int32(other)


multiply = _by_lanes if available() else _plainly
"""(frames [64 d'], how many of them, packed queries, out [64 R' + 16]) -> out = their products.

Those are integers of 32 bits, in the memory of float32 numbers. d' is a multiple of STEP and R'
one of 16; all lie row by row, and begin at multiples of 64 bytes. Rows of `out` beyond the count
may be anything.
"""
