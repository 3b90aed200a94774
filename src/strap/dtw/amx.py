"""Products of bfloat16 numbers on a processor's tile registers (Intel AMX), for compiled loops.

A tile register holds 16 rows of 64 bytes, and there are eight. One instruction multiplies a tile of
16 frames × 32 numbers with one of 32 numbers × 16 queries and adds the products to 16 × 16 float32
sums. Libraries do that too, but are set up anew in every call, give back bfloat16, and can't be
called from within a compiled loop; so these are the instructions themselves.

Six tiles of queries are held, one of frames is read and used at once, and one holds the sums, which
are put away after six products and fetched again for the next six:

    0        sums      += 7 · 1 + 7 · 2 + … + 7 · 6
    1 … 6    queries   held for up to 64 frames
    7        frames    read anew for every product

That is more reading than with four tiles of sums and two and two to be multiplied, and much faster:
a product takes 8 ns instead of 27, where 7.5 are possible; registers that change all at once seem
to be scarce. All memory must begin at a multiple of 64 bytes, else tiles take five times as long to
read.

Frames lie row by row, as they are. Queries are packed once, in the order in which they are read;
the tile wants pairs of neighbouring numbers side by side: [rows/16, d/192, 6·16·16·2].
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from strap.dtw.instructions import has
from strap.dtw.jit import intrinsic, njit
from strap.dtw.pieces import aligned
from strap.dtw.types import Halves, Singles

HELD = 6  # tiles of queries
STEP = HELD * 32  # to whose multiples the numbers of a frame are filled up
SIDE = 16  # rows of a tile, to whose multiples query rows are filled up
BYTES = 64  # of a tile's row
TILE = SIDE * BYTES
SUMS, FIRST, FRAME = 0, 1, 7  # registers


@cache
def available() -> bool:
    """Whether the processor has such registers, and the system lets us use them."""
    return has("amx-tile", "amx-bf16") and sys.platform == "linux" and _permitted()


def _permitted() -> bool:
    """Ask Linux to keep the registers' state (once for the process, before their use)."""
    arch_prctl, request, tile_data = 158, 0x1023, 18
    return bool(ctypes.CDLL(None, use_errno=True).syscall(arch_prctl, request, tile_data) == 0)


def packed(rows: Halves) -> Halves:
    """Query rows [R d] as `multiply` takes them; what is missing to whole tiles is 0."""
    count, dim = rows.shape
    blocks, steps = -(-count // SIDE), -(-dim // STEP)
    whole = np.zeros((blocks * SIDE, steps * STEP), np.uint16)
    whole[:count, :dim] = rows
    parts = whole.reshape(blocks, SIDE, steps, HELD, SIDE, 2).transpose(0, 2, 3, 4, 1, 5)
    out = aligned((blocks, steps, STEP * SIDE), np.uint16)
    out.reshape(parts.shape)[:] = parts
    return out


def _call(builder: Any, name: str, *arguments: Any) -> None:
    kind = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
    builder.call(builder.module.declare_intrinsic(f"llvm.x86.{name}", (), kind), arguments)


def _tile(number: int) -> Any:
    return ir.Constant(ir.IntType(8), number)


def _read(builder: Any, tile: int, address: Any, distance: int, stride: Any) -> None:
    place = builder.add(address, ir.Constant(address.type, distance))
    pointer = builder.inttoptr(place, cgutils.voidptr_t)
    _call(builder, "tileloadd64", _tile(tile), pointer, stride)


def _settings() -> list[int]:
    """What the registers are told: all of them whole."""
    settings = [0] * BYTES
    settings[0] = 1
    for tile in range(8):
        settings[16 + 2 * tile] = BYTES
        settings[48 + tile] = SIDE
    return settings


@intrinsic
def _begin(context: Any) -> Any:  # noqa: ARG001
    """Set the registers up, for this thread."""

    def generate(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        settings = ir.Constant(ir.ArrayType(ir.IntType(8), BYTES), _settings())
        place = cgutils.alloca_once_value(builder, settings)  # type: ignore[no-untyped-call]
        _call(builder, "ldtilecfg", builder.bitcast(place, cgutils.voidptr_t))
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _end(context: Any) -> Any:  # noqa: ARG001
    """Give the registers back: a thread that holds some is dearer to switch."""

    def generate(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        _call(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _hold(context: Any, queries: Any) -> Any:  # noqa: ARG001
    """Read six tiles of queries from an address."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        (address,) = arguments
        for i in range(HELD):
            _read(builder, FIRST + i, address, i * TILE, ir.Constant(address.type, BYTES))
        return context.get_dummy_value()

    return types.void(types.intp), generate


@intrinsic
def _clear(context: Any) -> Any:  # noqa: ARG001
    """Begin sums at 0."""

    def generate(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        _call(builder, "tilezero", _tile(SUMS))
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _fetch(context: Any, sums: Any, stride: Any) -> Any:  # noqa: ARG001
    """Go on with the sums at an address, rows a stride apart."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        _read(builder, SUMS, arguments[0], 0, arguments[1])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), generate


@intrinsic
def _add(context: Any, frames: Any, stride: Any) -> Any:  # noqa: ARG001
    """Add the products of six tiles of frames, from an address on, with the queries held."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        for i in range(HELD):
            _read(builder, FRAME, arguments[0], i * BYTES, arguments[1])
            _call(builder, "tdpbf16ps", _tile(SUMS), _tile(FRAME), _tile(FIRST + i))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), generate


@intrinsic
def _put(context: Any, sums: Any, stride: Any) -> Any:  # noqa: ARG001
    """Put the sums away."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], cgutils.voidptr_t)
        _call(builder, "tilestored64", _tile(SUMS), pointer, arguments[1])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), generate


@njit
def _by_tiles(frames: Halves, count: int, queries: Halves, out: Singles) -> None:
    blocks, steps = queries.shape[0], queries.shape[1]
    here, there = np.intp(frames.ctypes.data), np.intp(queries.ctypes.data)
    sums = np.intp(out.ctypes.data)
    stride, width = np.intp(frames.shape[1] * 2), np.intp(out.shape[1] * 4)
    _begin()
    for step in range(steps):
        for block in range(blocks):
            _hold(there + (block * steps + step) * (HELD * TILE))
            for tile in range((count + SIDE - 1) // SIDE):
                place = sums + tile * SIDE * width + block * BYTES
                if step == 0:
                    _clear()
                else:
                    _fetch(place, width)
                _add(here + tile * SIDE * stride + step * (HELD * BYTES), stride)
                _put(place, width)
    _end()


@njit
def _as_singles(halves: Halves, out: Any) -> None:
    """bfloat16 bits to those of the same number as float32."""
    for k in range(halves.shape[0]):
        out[k] = halves[k] << 16


@njit
def _plainly(frames: Halves, count: int, queries: Halves, out: Singles) -> None:
    """As the registers do it, for machines without them: as slow as it looks."""
    blocks, steps = queries.shape[0], queries.shape[1]
    wide, pairs = np.empty(frames.shape[1], np.float32), np.empty(2 * SIDE, np.float32)
    out[:] = 0
    for block in range(blocks):
        for k in range(0, steps * STEP, 2):
            held = queries[block, k // STEP, k % STEP * SIDE :]
            _as_singles(held[: 2 * SIDE], pairs.view(np.uint32))
            for m in range(count):
                _as_singles(frames[m, k : k + 2], wide.view(np.uint32))
                for n in range(SIDE):
                    more = wide[0] * pairs[2 * n] + wide[1] * pairs[2 * n + 1]
                    out[m, block * SIDE + n] += more


multiply = _by_tiles if available() else _plainly
"""(frames [64 d'], how many of them, packed queries, out [64 R' + 16]) -> out = their products.

d' is a multiple of STEP and R' one of 16; all lie row by row. Rows of `out` beyond the count may
be anything.
"""
