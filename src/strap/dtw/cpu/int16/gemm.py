"""The matrix product of int16 numbers by the AVX-512 VNNI instruction, for compiled functions.

The instruction multiplies 16 pairs of neighbouring int16 numbers with 16 other pairs, and adds both
products of a pair to one of 16 int32 accumulators: twice as many multiplications as with float32,
without rounding. Accumulators can wrap around in between: only the final sum must fit in 32 bits.
On CPUs without the instruction, multiplications and additions are generated instead.

    8 frames × 48 query rows       24 registers of accumulators, kept over the loop
    one pair of each of the rows   3 registers, loaded for every pair
    one pair of a frame            1 register, the pair in all 16 lanes

Frames are plain rows. Queries are packed once in the order in which they are read, the pairs of 16
rows side by side: [rows/16, d/128, 64·16·2]. 128 dimensions of 48 rows stay in the first-level
cache during a loop over 64 frames.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numpy.typing import NDArray

from strap.dtw.buffers import LINE_BYTES, aligned
from strap.dtw.llvm import has_instructions
from strap.dtw.types import Shorts
from strap.jit import intrinsic, njit

CHUNK_DIMS = 128  # dimensions are padded to a multiple of this
BLOCK_ROWS = 16  # accumulators in a register; query rows are padded to a multiple of this
TILE_FRAMES = 8
TILE_BLOCKS = 3  # blocks of 16 query rows
CHUNK_BYTES = CHUNK_DIMS * 2
WORD = ir.IntType(32)
REGISTER = ir.VectorType(WORD, BLOCK_ROWS)
PAIRS = ir.VectorType(ir.IntType(16), 2 * BLOCK_ROWS)


@cache
def is_fast() -> bool:
    """Return whether the CPU has the instruction, on registers of 512 bits."""
    return has_instructions("avx512f", "avx512vnni")


def pack_rows(rows: Shorts) -> Shorts:
    """Return query rows [R d] as `multiply` takes them, padded with zeros to whole blocks."""
    count, dim = rows.shape
    n_blocks, n_chunks = -(-count // BLOCK_ROWS), -(-dim // CHUNK_DIMS)
    packed = aligned((n_blocks, n_chunks, CHUNK_DIMS * BLOCK_ROWS), np.int16)
    _pack(rows, packed)
    return packed


@njit
def _pack(rows: Shorts, packed: Shorts) -> None:
    for i in range(rows.shape[0]):
        for k in range(rows.shape[1]):
            place = (k % CHUNK_DIMS // 2 * BLOCK_ROWS + i % BLOCK_ROWS) * 2 + k % 2
            packed[i // BLOCK_ROWS, k // CHUNK_DIMS, place] = rows[i, k]


class _ProductWriter:
    """The generator of LLVM code that adds one chunk's products of 8 frames and 1 to 3 blocks.

    The code takes addresses and strides of frames, queries and products, as integers. With
    `is_first`, the products start from 0.
    """

    def __init__(self, builder: Any, arguments: Any, blocks: int) -> None:
        self.builder = builder
        self.frames, self.stride, self.queries, self.block_bytes = arguments[:4]
        self.products, self.width, self.is_first = arguments[4:]
        self.cells = [(f, b) for f in range(TILE_FRAMES) for b in range(blocks)]
        self.blocks = blocks

    def write(self) -> None:
        """Generate the code."""
        builder = self.builder
        accumulators = {
            cell: cgutils.alloca_once(builder, REGISTER)  # type: ignore[no-untyped-call]
            for cell in self.cells
        }
        for cell in self.cells:
            before = builder.load(self._place(*cell), align=LINE_BYTES)
            builder.store(builder.select(self.is_first, REGISTER(None), before), accumulators[cell])
        with cgutils.for_range(builder, self.frames.type(CHUNK_DIMS // 2)) as loop:
            self._add_pair(loop.index, accumulators)
        for cell in self.cells:
            builder.store(builder.load(accumulators[cell]), self._place(*cell), align=LINE_BYTES)

    def _add_pair(self, index: Any, accumulators: dict[tuple[int, int], Any]) -> None:
        """Generate the addition of one pair's products, for all frames and rows."""
        builder = self.builder
        rows_at = self._at(self.queries, index, LINE_BYTES)
        frames_at = self._at(self.frames, index, 4)
        rows = [
            builder.load(self._pointer(rows_at, self.block_bytes, b, REGISTER), align=LINE_BYTES)
            for b in range(self.blocks)
        ]
        for f in range(TILE_FRAMES):
            pair = self._broadcast(
                builder.load(self._pointer(frames_at, self.stride, f, WORD), align=4)
            )
            for b in range(self.blocks):
                total = self._add_products(builder.load(accumulators[f, b]), pair, rows[b])
                builder.store(total, accumulators[f, b])

    def _add_products(self, total: Any, pair: Any, rows: Any) -> Any:
        """Return accumulators plus both products of a pair: one instruction if the CPU has it."""
        builder = self.builder
        if is_fast():
            kind = ir.FunctionType(REGISTER, [REGISTER] * 3)
            add = builder.module.declare_intrinsic("llvm.x86.avx512.vpdpwssd.512", (), kind)
            return builder.call(add, [total, pair, rows])
        first, second = (
            builder.mul(self._numbers(pair, side), self._numbers(rows, side)) for side in range(2)
        )
        return builder.add(total, builder.add(first, second))

    def _numbers(self, pairs: Any, side: int) -> Any:
        """Return the first or the second numbers of 16 pairs as int32."""
        builder, shorts = self.builder, self.builder.bitcast(pairs, PAIRS)
        mask = ir.Constant(ir.VectorType(WORD, BLOCK_ROWS), list(range(side, 2 * BLOCK_ROWS, 2)))
        return builder.sext(builder.shuffle_vector(shorts, shorts, mask), REGISTER)

    def _place(self, f: int, b: int) -> Any:
        """Return a pointer to the products of a frame and a block of 16 rows."""
        row = self._at(self.products, self.width, f)
        return self._pointer(row, row.type(b * LINE_BYTES), 1, REGISTER)

    def _at(self, address: Any, number: Any, times: int) -> Any:
        """Return address + number·times."""
        return self.builder.add(address, self.builder.mul(number, number.type(times)))

    def _pointer(self, address: Any, number: Any, times: int, kind: Any) -> Any:
        """Return address + number·times as a pointer to something of a kind."""
        return self.builder.inttoptr(self._at(address, number, times), kind.as_pointer())

    def _broadcast(self, number: Any) -> Any:
        """Return a register with a number in every lane."""
        one = self.builder.insert_element(REGISTER(ir.Undefined), number, WORD(0))
        return self.builder.shuffle_vector(one, one, REGISTER(None))


def _product_loop(blocks: int) -> Any:
    """Return a numba intrinsic that takes the arguments of `_ProductWriter`'s code as a tuple."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        unpacked = cgutils.unpack_tuple(builder, arguments[0])  # type: ignore[no-untyped-call]
        _ProductWriter(builder, unpacked, blocks).write()
        return context.get_dummy_value()

    def typed(context: Any, arguments: Any) -> Any:  # noqa: ARG001
        return types.void(arguments), generate

    return intrinsic(typed)


_add_one, _add_two, _add_three = (_product_loop(blocks) for blocks in (1, 2, 3))


@njit
def multiply(
    frames: Shorts, count: int, queries: Shorts, top: int, bottom: int, products: NDArray[np.int32]
) -> None:
    """Fill products [64 R' + 16] of the first `count` of frames [64 d'] and a group of query rows.

    The group is the blocks of 16 rows from `top` to `bottom` of the packed queries, R' rows. d' is
    a multiple of CHUNK_DIMS. All arrays are contiguous and aligned to 64 bytes. Rows of products
    from `count` on, and the last 16 columns, are undefined.
    """
    blocks, chunks = bottom - top, queries.shape[1]
    stride, width = np.intp(frames.shape[1] * 2), np.intp(products.shape[1] * 4)
    block_bytes = np.intp(chunks * CHUNK_BYTES * BLOCK_ROWS)
    for chunk in range(chunks):
        frames_at = np.intp(frames.ctypes.data) + chunk * CHUNK_BYTES
        for block in range(0, blocks, TILE_BLOCKS):
            rows = np.intp(queries.ctypes.data) + (top + block) * block_bytes
            rows += chunk * (CHUNK_BYTES * BLOCK_ROWS)
            first_product = np.intp(products.ctypes.data) + block * LINE_BYTES
            for f in range(0, count, TILE_FRAMES):
                frame, product = frames_at + f * stride, first_product + f * width
                arguments = (frame, stride, rows, block_bytes, product, width, chunk == 0)
                if blocks - block == 1:
                    _add_one(arguments)
                elif blocks - block == 2:
                    _add_two(arguments)
                else:
                    _add_three(arguments)
