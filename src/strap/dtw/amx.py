"""Products of bfloat16 numbers on a processor's tile registers (Intel AMX), for compiled loops.

A tile register holds 16 rows of 64 bytes. One instruction multiplies a tile of 16 frames × 32
numbers with one of 32 numbers × 16 queries and adds the products to 16 × 16 float32 sums. Libraries
do that too, but are set up anew in every call, give back bfloat16, and can't be called from within
a compiled loop; so these are the instructions themselves.

Four tiles of sums are kept at a time, for 32 frames and 32 query rows, so that each tile that is
read is used twice:

             queries   6       7
    frames 4           0       1
           5           2       3

Frames lie row by row, as they are. Query rows are packed once, in the order in which they are read;
the tile wants pairs of neighbouring numbers side by side: [rows/32, d/32, 2, 16, 16, 2].
"""

from __future__ import annotations

import ctypes
import platform
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from strap.dtw.jit import intrinsic, njit
from strap.dtw.types import Halves, Singles

ROWS = 32  # query rows in a block of sums
FRAMES = 32  # frames in a block of sums
STEP = 32  # numbers multiplied by one instruction

SIDE = 16  # rows of a tile
BYTES = 64  # of a tile's row
TILES = 8
NEEDED = {"amx_tile", "amx_bf16"}


@cache
def available() -> bool:
    """Whether the processor has such registers, and the system lets us use them."""
    if platform.machine() != "x86_64":
        return False
    try:
        with Path("/proc/cpuinfo").open() as lines:
            flags = next((set(line.split()) for line in lines if line.startswith("flags")), set())
    except OSError:
        return False
    return flags >= NEEDED and _permitted()


def _permitted() -> bool:
    """Ask Linux for the registers' state to be kept (once for the process, before their use)."""
    arch_prctl, request, tile_data = 158, 0x1023, 18
    return bool(ctypes.CDLL(None, use_errno=True).syscall(arch_prctl, request, tile_data) == 0)


def packed(rows: Halves) -> Halves:
    """Query rows [R d] as `multiply` takes them; what is missing to whole tiles is 0."""
    count, dim = rows.shape
    blocks, steps = -(-count // ROWS), -(-dim // STEP)
    whole = np.zeros((blocks * ROWS, steps * STEP), np.uint16)
    whole[:count, :dim] = rows
    parts = whole.reshape(blocks, 2, SIDE, steps, STEP // 2, 2)
    return np.ascontiguousarray(parts.transpose(0, 3, 1, 4, 2, 5))


def _call(builder: Any, name: str, *arguments: Any) -> None:
    kind = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
    builder.call(builder.module.declare_intrinsic(f"llvm.x86.{name}", (), kind), arguments)


def _number(tile: int) -> Any:
    return ir.Constant(ir.IntType(8), tile)


def _settings() -> list[int]:
    """What the registers are told: all of them whole."""
    settings = [0] * BYTES
    settings[0] = 1
    for tile in range(TILES):
        settings[16 + 2 * tile] = BYTES
        settings[48 + tile] = SIDE
    return settings


@intrinsic
def _begin(context: Any) -> Any:  # noqa: ARG001
    """Set the registers up, for this thread."""

    def generate(_context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        kind = ir.ArrayType(ir.IntType(8), BYTES)
        settings = ir.Constant(kind, _settings())
        place = cgutils.alloca_once_value(builder, settings)  # type: ignore[no-untyped-call]
        _call(builder, "ldtilecfg", builder.bitcast(place, cgutils.voidptr_t))
        return _context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _end(context: Any) -> Any:  # noqa: ARG001
    """Give the registers back: a thread that holds some is dearer to switch."""

    def generate(_context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        _call(builder, "tilerelease")
        return _context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _block(
    context: Any,
    frames: Any,
    width: Any,
    queries: Any,
    steps: Any,
    out: Any,
    columns: Any,  # noqa: ARG001
) -> Any:
    """out [32 frames, 32 rows of `columns`] = products of frames [32 width] with packed queries.

    `frames`, `queries` and `out` are addresses; `steps` are of 32 numbers.
    """

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        frames, width, queries, steps, out, columns = arguments
        word = width.type

        def at(address: Any, distance: Any) -> Any:
            return builder.inttoptr(builder.add(address, distance), cgutils.voidptr_t)

        def fixed(value: int) -> Any:
            return ir.Constant(word, value)

        stride, out_stride = builder.mul(width, fixed(2)), builder.mul(columns, fixed(4))
        lower = builder.mul(stride, fixed(SIDE))
        for tile in range(4):
            _call(builder, "tilezero", _number(tile))
        with cgutils.for_range(builder, steps) as loop:
            here = builder.mul(loop.index, fixed(BYTES))
            there = builder.mul(loop.index, fixed(2 * SIDE * BYTES))
            _call(builder, "tileloadd64", _number(6), at(queries, there), fixed(BYTES))
            _call(builder, "tileloadd64", _number(4), at(frames, here), stride)
            _call(builder, "tdpbf16ps", *map(_number, (0, 4, 6)))
            next_to = builder.add(there, fixed(SIDE * BYTES))
            _call(builder, "tileloadd64", _number(7), at(queries, next_to), fixed(BYTES))
            _call(builder, "tdpbf16ps", *map(_number, (1, 4, 7)))
            _call(builder, "tileloadd64", _number(5), at(frames, builder.add(here, lower)), stride)
            _call(builder, "tdpbf16ps", *map(_number, (2, 5, 6)))
            _call(builder, "tdpbf16ps", *map(_number, (3, 5, 7)))
        below = builder.mul(out_stride, fixed(SIDE))
        for tile, place in enumerate(
            (fixed(0), fixed(BYTES), below, builder.add(below, fixed(BYTES)))
        ):
            _call(builder, "tilestored64", _number(tile), at(out, place), out_stride)
        return _context.get_dummy_value()

    sizes = (types.intp,) * 6
    return types.void(*sizes), generate


@njit
def _by_tiles(frames: Halves, queries: Halves, out: Singles) -> None:
    blocks, steps = queries.shape[0], queries.shape[1]
    _begin()
    for i in range(blocks):
        _block(
            np.intp(frames.ctypes.data),
            np.intp(frames.shape[1]),
            np.intp(queries[i].ctypes.data),
            np.intp(steps),
            np.intp(out[:, i * ROWS :].ctypes.data),
            np.intp(out.shape[1]),
        )
    _end()


@njit
def _as_singles(halves: Halves, out: Any) -> None:
    """bfloat16 bits to those of the same number as float32."""
    for k in range(halves.shape[0]):
        out[k] = halves[k] << 16


@njit
def _plainly(frames: Halves, queries: Halves, out: Singles) -> None:
    """As the registers do it, for machines without them: as slow as it looks."""
    wide, row = np.empty(frames.shape[1], np.float32), np.empty(2 * SIDE, np.float32)
    out[:] = 0
    for m in range(FRAMES):
        _as_singles(frames[m], wide.view(np.uint32))
        for i in range(queries.shape[0]):
            for j in range(2):
                sums = out[m, i * ROWS + j * SIDE : i * ROWS + (j + 1) * SIDE]
                for step in range(queries.shape[1]):
                    for pair in range(STEP // 2):
                        _as_singles(queries[i, step, j, pair].reshape(-1), row.view(np.uint32))
                        k = step * STEP + 2 * pair
                        for n in range(SIDE):
                            sums[n] += wide[k] * row[2 * n] + wide[k + 1] * row[2 * n + 1]


multiply = _by_tiles if available() else _plainly
"""(frames [32 d'], packed queries, out [32 R']) -> out = their products; d' and R' are multiples
of 32, and all lie row by row."""
