"""Frames as 16-bit integers, each frame on a scale of its own, see `halves`.

A frame is read twice: moved, scaled and measured, then rounded to integers by what was measured.
Both passes go through sixteen numbers at a time, and through four times as many before a sum is
added to again: one sum alone would wait for each of its additions.

Written as instructions of numba's compiler, which makes the processor's own of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numpy.typing import NDArray

from strap.dtw import bounding
from strap.dtw.instructions import WORD, Writer, addressed
from strap.dtw.jit import intrinsic, njit
from strap.dtw.types import Floats, Frames, Halves, Singles

SIDE = 16  # numbers
SUMS = 4  # of each kind
LINE = 64
LONGEST = 46100.0  # frame of integers: products with others as long fit in 31 bits
LARGEST = 32767.0  # integer
LEAST = 1e-15  # number of a frame that isn't taken as 0
SHIFT = 1.5 * 2.0**23  # float32 numbers near it are integers, their lower bits what was added
SINGLE, DOUBLE, SHORT = ir.FloatType(), ir.DoubleType(), ir.IntType(16)
LANES, WORDS = ir.VectorType(SINGLE, SIDE), ir.VectorType(WORD, SIDE)
SHORTS = ir.VectorType(SHORT, SIDE)
KINDS = {
    types.uint16: (ir.HalfType(), 2, SINGLE),  # the bits of a float16
    types.float32: (SINGLE, 4, SINGLE),
    types.float64: (DOUBLE, 8, DOUBLE),
}
"""of frames: what they are, bytes, and what they are moved in"""


class _Writer(Writer):
    """Writes a loop over blocks of sixteen numbers, with sums in registers."""

    def __init__(self, builder: Any) -> None:
        super().__init__(builder)

    def loop(
        self, blocks: Any, kinds: Sequence[Any], step: Callable[[Any, list[Any]], None]
    ) -> Any:
        """`step(block, sums)` for each block; the sums of each kind, which begin at 0, by fours."""
        builder = self.builder
        sums = [
            [cgutils.alloca_once_value(builder, kind(None)) for kind in kinds]  # type: ignore[no-untyped-call]
            for _ in range(SUMS)
        ]
        whole = builder.udiv(blocks, blocks.type(SUMS))
        with cgutils.for_range(builder, whole) as loop:
            first = builder.mul(loop.index, blocks.type(SUMS))
            for i, own in enumerate(sums):
                step(builder.add(first, blocks.type(i)), own)
        done = builder.mul(whole, blocks.type(SUMS))
        with cgutils.for_range(builder, builder.sub(blocks, done)) as loop:
            step(builder.add(done, loop.index), sums[0])
        return [[builder.load(own[k]) for own in sums] for k in range(len(kinds))]

    def one(self, lanes: list[Any], combine: Callable[[Any, Any], Any]) -> Any:
        """All lanes of all sums as one number."""
        builder, (total, *others) = self.builder, lanes
        for other in others:
            total = combine(total, other)
        side = SIDE
        while side > 1:
            side //= 2
            places = [*range(side, 2 * side), *range(SIDE - side)]
            mask = ir.Constant(WORDS, places)
            total = combine(total, builder.shuffle_vector(total, total, mask))
        return builder.extract_element(total, WORD(0))

    def put(self, number: Any, place: Any, index: int) -> None:
        """Write a float64 number."""
        there = self.builder.add(place, place.type(index * 8))
        self.builder.store(number, self.pointer(there, DOUBLE), align=8)

    def fused(self, a: Any, b: Any, c: Any) -> Any:
        """a·b + c, rounded once."""
        kind = ir.FunctionType(LANES, [LANES] * 3)
        fma = self.builder.module.declare_intrinsic("llvm.fma.v16f32", (), kind)
        return self.builder.call(fma, [a, b, c])


@intrinsic
def _move(
    context: Any,  # noqa: ARG001
    frame: Any,  # noqa: ARG001
    mean: Any,  # noqa: ARG001
    out: Any,  # noqa: ARG001
    blocks: Any,  # noqa: ARG001
    found: Any,  # noqa: ARG001
    scale: Any,
    example: Any,
) -> Any:
    """out = (frame − mean)·scale as float32, of `blocks` times sixteen numbers; found [2] = about
    its squared norm, and its largest number.

    Called with addresses; `example` is a number of the frame.
    """
    kind, size, wide = KINDS[example]

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        frame, mean, out, blocks, found, scale, _ = arguments
        writer, lanes = _Writer(builder), ir.VectorType(wide, SIDE)
        times = writer.same(scale, lanes)

        def step(block: Any, sums: list[Any]) -> None:
            own = writer.load(writer.at(frame, block, SIDE * size), ir.VectorType(kind, SIDE), size)
            own = builder.fpext(own, lanes) if kind != wide else own
            width = 4 if wide is SINGLE else 8
            middle = writer.load(writer.at(mean, block, SIDE * width), lanes, width)
            moved = builder.fmul(builder.fsub(own, middle), times)
            moved = moved if wide is SINGLE else builder.fptrunc(moved, LANES)
            builder.store(moved, writer.pointer(writer.at(out, block, SIDE * 4), LANES), align=4)
            total, most = sums
            builder.store(writer.fused(moved, moved, builder.load(total)), total)
            size_of = builder.and_(builder.bitcast(moved, WORDS), _all(0x7FFFFFFF))
            builder.store(larger(builder.load(most), size_of), most)

        def larger(a: Any, b: Any) -> Any:
            return builder.select(builder.icmp_unsigned(">", a, b), a, b)

        totals, mosts = writer.loop(blocks, [LANES, WORDS], step)
        most = builder.bitcast(writer.one(mosts, larger), SINGLE)
        writer.put(builder.fpext(writer.one(totals, builder.fadd), DOUBLE), found, 0)
        writer.put(builder.fpext(most, DOUBLE), found, 1)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 5, scale, example), generate


def _all(number: int) -> Any:
    return ir.Constant(WORDS, [number] * SIDE)


def _write_rounding(builder: Any, arguments: Any) -> None:
    """out = the nearest integers to singles·inverse, found [2] = the squared norm of what that
    takes off, and of the integers, which is exact.

    A number·inverse + SHIFT, rounded once, is an integer plus SHIFT, the even one of two.
    """
    singles, inverse, out, blocks, found = arguments
    writer = _Writer(builder)
    times, shift = writer.same(inverse, LANES), ir.Constant(LANES, [SHIFT] * SIDE)

    def step(block: Any, sums: list[Any]) -> None:
        own = writer.load(writer.at(singles, block, SIDE * 4), LANES, 4)
        raised = writer.fused(own, times, shift)
        half = builder.trunc(builder.bitcast(raised, WORDS), SHORTS)
        builder.store(half, writer.pointer(writer.at(out, block, SIDE * 2), SHORTS), align=2)
        off = writer.fused(own, times, builder.fneg(builder.fsub(raised, shift)))
        offs, squares = sums
        builder.store(writer.fused(off, off, builder.load(offs)), offs)
        whole = builder.sext(half, WORDS)
        builder.store(builder.add(builder.load(squares), builder.mul(whole, whole)), squares)

    offs, squares = writer.loop(blocks, [LANES, WORDS], step)
    writer.put(builder.fpext(writer.one(offs, builder.fadd), DOUBLE), found, 0)
    writer.put(builder.sitofp(writer.one(squares, builder.add), DOUBLE), found, 1)


_round = addressed(_write_rounding)


@njit
def whole_frames(
    frames: NDArray[Any],
    mean: Frames,
    scale: bounding.Real,
    out: Halves,
    squares: Floats,
    errors: Floats,
    factors: Singles,
) -> None:
    """out [m d'] = (frames [m d] − mean)·scale as integers; what one of a frame's is worth, ρ; the
    squared norms of ρ times the integers, and of what rounding took off [m].

    Frames are float16 (their bits) or float32, with mean and scale in float32, or all float64. d'
    is at least d, and a multiple of 16; all lie row by row.
    """
    # `_fill` reaches these by their addresses, which numba doesn't count as a use: it would free
    # its own too early.
    singles, found = np.empty(frames.shape[1] + 3 * SIDE, np.float32), np.empty(2)
    _fill(frames, mean, scale, out, squares, errors, factors, singles, found)


@njit
def _fill(
    frames: NDArray[Any],
    mean: Frames,
    scale: bounding.Real,
    out: Halves,
    squares: Floats,
    errors: Floats,
    factors: Singles,
    singles: Singles,
    found: Floats,
) -> None:
    dim = frames.shape[1]
    blocks = dim // SIDE
    tail = dim - blocks * SIDE
    moved = (np.intp(singles.ctypes.data) + LINE - 1) // LINE * LINE  # a cache line's beginning
    last, middle = np.zeros(SIDE, frames.dtype), np.zeros(SIDE, mean.dtype)
    middle[:tail] = mean[blocks * SIDE :]
    width, count = frames.strides[0], np.intp(blocks + (tail > 0))
    for i in range(frames.shape[0]):
        place = np.intp(frames.ctypes.data) + i * width
        there = np.intp(mean.ctypes.data)
        result, own = np.intp(found.ctypes.data), np.intp(out.ctypes.data) + i * out.strides[0]
        _move(place, there, moved, np.intp(blocks), result, scale, frames[0, 0])
        square, most = found[0], found[1]
        if tail > 0:
            last[:tail] = frames[i, blocks * SIDE :]
            begin, there = np.intp(last.ctypes.data), np.intp(middle.ctypes.data)
            end = moved + blocks * (SIDE * 4)
            _move(begin, there, end, np.intp(1), result, scale, frames[0, 0])
            square, most = square + found[0], max(most, found[1])
        if not square <= bounding.LARGEST_SQUARE or most < LEAST:
            out[i, :dim] = 0
            squares[i], errors[i], factors[i] = 0.0 * square, dim * most**2, 1
            continue
        worth = np.float32(max(np.sqrt(square) / LONGEST, most / LARGEST))
        _round((moved, np.float32(1) / worth, own, count, result))
        unit = np.float64(worth) ** 2
        squares[i], errors[i] = found[1] * unit, found[0] * (1 + dim * 2.0**-22) * unit
        factors[i] = worth
