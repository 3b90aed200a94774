"""Frames as 16-bit integers, each frame on a scale of its own, see `int16_bounds`.

A frame is read twice: centered, scaled and measured, then rounded to integers by what was measured.
Both passes go through sixteen numbers at a time, and through four times as many before a sum is
added to again: one sum alone would wait for each of its additions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numpy.typing import NDArray

from strap.dtw.cpu.rounding import LARGEST_SQUARE
from strap.dtw.llvm import (
    DOUBLE,
    FRAME_TYPES,
    SHORT,
    SINGLE,
    WORD,
    Writer,
    compiled_with_addresses,
)
from strap.dtw.memory import LINE_BYTES
from strap.dtw.types import Floats, Frames, Real, Shorts, Singles
from strap.jit import intrinsic, njit

LANES = 16  # numbers in a register
SUMS = 4  # of each kind
LONGEST = 46100.0  # norm of a frame of integers: products with others as long fit in 31 bits
LARGEST = 32767.0  # integer
LEAST = 1e-15  # number of a frame that isn't taken as 0
SHIFT = 1.5 * 2.0**23  # float32 numbers near it are integers, their lower bits what was added
FLOATS, WORDS = ir.VectorType(SINGLE, LANES), ir.VectorType(WORD, LANES)
SHORTS = ir.VectorType(SHORT, LANES)


@njit
def quantize(
    frames: NDArray[Any],
    mean: Frames,
    scale: Real,
    out: Shorts,
    squares: Floats,
    errors: Floats,
    scales: Singles,
) -> None:
    """Write (frames − mean)·scale as integers times a scale of each frame's own.

    Args:
        frames: [m d], float16 (their bits) or float32, with mean and scale in float32, or all
            float64; rows lie in one piece.
        mean: [d].
        scale: of all frames.
        out: integers [m d'], d' at least d and a multiple of 16.
        squares: squared norms [m] of the integers times their scale.
        errors: squared norms [m] of what rounding took off.
        scales: what a frame's integers are to be multiplied with [m].
    """
    # The compiled loops reach these by their addresses, which numba doesn't count as a use: it
    # would free its own too early.
    dim = frames.shape[1]
    singles, measures = np.empty(dim + 3 * LANES, np.float32), np.empty(2)
    tail, tail_mean = np.zeros(LANES, frames.dtype), np.zeros(LANES, mean.dtype)
    for i in range(frames.shape[0]):
        centered = _center(frames[i], mean, scale, singles, tail, tail_mean, measures)
        square, largest = measures[0], measures[1]
        if not square <= LARGEST_SQUARE or largest < LEAST:
            out[i, :dim] = 0
            squares[i], errors[i], scales[i] = 0.0 * square, dim * largest**2, 1
            continue
        unit = np.float32(max(np.sqrt(square) / LONGEST, largest / LARGEST))
        place, count = np.intp(out[i].ctypes.data), np.intp((dim + LANES - 1) // LANES)
        result = np.intp(measures.ctypes.data)
        _round((centered, np.float32(1) / unit, place, count, result))
        unit_square = np.float64(unit) ** 2
        squares[i] = measures[1] * unit_square
        errors[i] = measures[0] * (1 + dim * 2.0**-22) * unit_square
        scales[i] = unit


@njit
def _center(
    frame: NDArray[Any],
    mean: Frames,
    scale: Real,
    singles: Singles,
    tail: NDArray[Any],
    tail_mean: Frames,
    measures: Floats,
) -> np.intp:
    """Write (frame − mean)·scale; return its address. measures [2] as in `_center_blocks`.

    That begins with a cache line. What is no multiple of sixteen goes by way of `tail`.
    """
    blocks = frame.shape[0] // LANES
    rest = frame.shape[0] - blocks * LANES
    centered = (np.intp(singles.ctypes.data) + LINE_BYTES - 1) // LINE_BYTES * LINE_BYTES
    result = np.intp(measures.ctypes.data)
    _center_blocks(
        np.intp(frame.ctypes.data),
        np.intp(mean.ctypes.data),
        centered,
        np.intp(blocks),
        result,
        scale,
        frame[0],
    )
    if rest > 0:
        square, largest = measures[0], measures[1]
        tail[:rest], tail_mean[:rest] = frame[blocks * LANES :], mean[blocks * LANES :]
        _center_blocks(
            np.intp(tail.ctypes.data),
            np.intp(tail_mean.ctypes.data),
            centered + blocks * (LANES * 4),
            np.intp(1),
            result,
            scale,
            frame[0],
        )
        measures[0], measures[1] = square + measures[0], max(largest, measures[1])
    return centered


class _BlockWriter(Writer):
    """Writes a loop over blocks of sixteen numbers, with sums in registers."""

    def loop(
        self, blocks: Any, kinds: Sequence[Any], step: Callable[[Any, list[Any]], None]
    ) -> Any:
        """Write `step(block, sums)` for each block; the sums of each kind begin at 0, by fours."""
        builder = self.builder
        sums = [
            [cgutils.alloca_once_value(builder, kind(None)) for kind in kinds]  # type: ignore[no-untyped-call]
            for _ in range(SUMS)
        ]
        rounds = builder.udiv(blocks, blocks.type(SUMS))
        with cgutils.for_range(builder, rounds) as loop:
            first = builder.mul(loop.index, blocks.type(SUMS))
            for i, quarter in enumerate(sums):
                step(builder.add(first, blocks.type(i)), quarter)
        done = builder.mul(rounds, blocks.type(SUMS))
        with cgutils.for_range(builder, builder.sub(blocks, done)) as loop:
            step(builder.add(done, loop.index), sums[0])
        return [[builder.load(quarter[k]) for quarter in sums] for k in range(len(kinds))]

    def reduce(self, lanes: list[Any], combine: Callable[[Any, Any], Any]) -> Any:
        """Return all lanes of all sums as one number."""
        builder, (total, *others) = self.builder, lanes
        for other in others:
            total = combine(total, other)
        side = LANES
        while side > 1:
            side //= 2
            places = [*range(side, 2 * side), *range(LANES - side)]
            mask = ir.Constant(WORDS, places)
            total = combine(total, builder.shuffle_vector(total, total, mask))
        return builder.extract_element(total, WORD(0))

    def put(self, number: Any, place: Any, index: int) -> None:
        """Write a float64 number."""
        there = self.builder.add(place, place.type(index * 8))
        self.builder.store(number, self.pointer(there, DOUBLE), align=8)

    def fused(self, a: Any, b: Any, c: Any) -> Any:
        """Return a·b + c, rounded once."""
        kind = ir.FunctionType(FLOATS, [FLOATS] * 3)
        fma = self.builder.module.declare_intrinsic("llvm.fma.v16f32", (), kind)
        return self.builder.call(fma, [a, b, c])


@intrinsic
def _center_blocks(
    context: Any,  # noqa: ARG001
    frame: Any,  # noqa: ARG001
    mean: Any,  # noqa: ARG001
    out: Any,  # noqa: ARG001
    blocks: Any,  # noqa: ARG001
    measures: Any,  # noqa: ARG001
    scale: Any,
    example: Any,
) -> Any:
    """Write (frame − mean)·scale as float32, of `blocks` times sixteen numbers; measures [2] =
    about its squared norm, and its largest magnitude.

    Called with addresses; `example` is a number of the frame.
    """
    kind, size = FRAME_TYPES[example]
    wide, width = (DOUBLE, 8) if kind is DOUBLE else (SINGLE, 4)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        frame, mean, out, blocks, measures, scale, _ = arguments
        writer, lanes = _BlockWriter(builder), ir.VectorType(wide, LANES)
        times = writer.broadcast(scale, lanes)

        def step(block: Any, sums: list[Any]) -> None:
            there = writer.at(frame, block, LANES * size)
            numbers = writer.load(there, ir.VectorType(kind, LANES), size)
            numbers = builder.fpext(numbers, lanes) if kind != wide else numbers
            middle = writer.load(writer.at(mean, block, LANES * width), lanes, width)
            moved = builder.fmul(builder.fsub(numbers, middle), times)
            moved = moved if wide is SINGLE else builder.fptrunc(moved, FLOATS)
            builder.store(moved, writer.pointer(writer.at(out, block, LANES * 4), FLOATS), align=4)
            total, most = sums
            builder.store(writer.fused(moved, moved, builder.load(total)), total)
            mask = ir.Constant(WORDS, [0x7FFFFFFF] * LANES)
            magnitude = builder.and_(builder.bitcast(moved, WORDS), mask)
            builder.store(larger(builder.load(most), magnitude), most)

        def larger(a: Any, b: Any) -> Any:
            return builder.select(builder.icmp_unsigned(">", a, b), a, b)

        totals, mosts = writer.loop(blocks, [FLOATS, WORDS], step)
        most = builder.bitcast(writer.reduce(mosts, larger), SINGLE)
        writer.put(builder.fpext(writer.reduce(totals, builder.fadd), DOUBLE), measures, 0)
        writer.put(builder.fpext(most, DOUBLE), measures, 1)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 5, scale, example), generate


def _write_rounding(builder: Any, arguments: Any) -> None:
    """Write the nearest integers to singles·inverse; measures [2] = the squared norms of what that
    takes off, and of the integers, which is exact.

    A number·inverse + SHIFT, rounded once, is an integer plus SHIFT, the even one of two.
    """
    singles, inverse, out, blocks, measures = arguments
    writer = _BlockWriter(builder)
    times, shift = writer.broadcast(inverse, FLOATS), ir.Constant(FLOATS, [SHIFT] * LANES)

    def step(block: Any, sums: list[Any]) -> None:
        numbers = writer.load(writer.at(singles, block, LANES * 4), FLOATS, 4)
        raised = writer.fused(numbers, times, shift)
        half = builder.trunc(builder.bitcast(raised, WORDS), SHORTS)
        builder.store(half, writer.pointer(writer.at(out, block, LANES * 2), SHORTS), align=2)
        off = writer.fused(numbers, times, builder.fneg(builder.fsub(raised, shift)))
        offs, squares = sums
        builder.store(writer.fused(off, off, builder.load(offs)), offs)
        integers = builder.sext(half, WORDS)
        square = builder.mul(integers, integers)
        builder.store(builder.add(builder.load(squares), square), squares)

    offs, squares = writer.loop(blocks, [FLOATS, WORDS], step)
    writer.put(builder.fpext(writer.reduce(offs, builder.fadd), DOUBLE), measures, 0)
    writer.put(builder.sitofp(writer.reduce(squares, builder.add), DOUBLE), measures, 1)


_round = compiled_with_addresses(_write_rounding)
