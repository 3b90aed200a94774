"""Numbers and their bits, one at a time, for compiled loops: numba has no names for these."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from strap.dtw.jit import intrinsic

HALF, SINGLE, WORD, SHORT = ir.HalfType(), ir.FloatType(), ir.IntType(32), ir.IntType(16)
SHIFT = 1.5 * 2.0**23  # float32 numbers near it are integers, their lower bits what was added


@intrinsic
def number(context: Any, value: Any) -> Any:  # noqa: ARG001
    """The float32 number of a float16's bits (uint16); any other number as it is."""
    if value != types.uint16:
        return value(value), lambda _context, _builder, _signature, arguments: arguments[0]

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(arguments[0], HALF), SINGLE)

    return types.float32(types.uint16), generate


@intrinsic
def nearest_bfloat(context: Any, value: Any) -> Any:  # noqa: ARG001
    """The nearest number of 8 binary digits to a float32, the larger of two."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        bits = builder.bitcast(arguments[0], WORD)
        up = builder.add(bits, ir.Constant(WORD, 0x8000))
        return builder.bitcast(builder.and_(up, ir.Constant(WORD, 0xFFFF0000)), SINGLE)

    return types.float32(types.float32), generate


@intrinsic
def upper_half(context: Any, value: Any) -> Any:  # noqa: ARG001
    """What bfloat16 keeps of a float32: its upper 16 bits (uint16)."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        bits = builder.bitcast(arguments[0], WORD)
        return builder.trunc(builder.lshr(bits, ir.Constant(WORD, 16)), SHORT)

    return types.uint16(types.float32), generate


@intrinsic
def shifted(context: Any, value: Any, factor: Any) -> Any:  # noqa: ARG001
    """value·factor, rounded once, to an integer (the even one of two), plus SHIFT.

    Of absolute values below 2²², all of float32. As the compiler sees no roundings that it might
    leave out, sums beside it may be taken in any order.
    """

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments, ir.Constant(SINGLE, SHIFT))

    return types.float32(types.float32, types.float32), generate


@intrinsic
def unshifted(context: Any, value: Any) -> Any:  # noqa: ARG001
    """What SHIFT was added to."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fsub(arguments[0], ir.Constant(SINGLE, SHIFT))

    return types.float32(types.float32), generate


@intrinsic
def lower_half(context: Any, value: Any) -> Any:  # noqa: ARG001
    """The lower 16 bits (uint16) of a float32: of one that was shifted, its integer."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.trunc(builder.bitcast(arguments[0], WORD), SHORT)

    return types.uint16(types.float32), generate


@intrinsic
def off_by(context: Any, value: Any, factor: Any, other: Any) -> Any:  # noqa: ARG001
    """value·factor − other, rounded once."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        value, factor, other = arguments
        return builder.fma(value, factor, builder.fneg(other))

    return types.float32(types.float32, types.float32, types.float32), generate


@intrinsic
def whole(context: Any, value: Any) -> Any:  # noqa: ARG001
    """The number of the 32-bit integer that lies in the memory of a float32."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.sitofp(builder.bitcast(arguments[0], WORD), SINGLE)

    return types.float32(types.float32), generate


@intrinsic
def add_square(context: Any, total: Any, half: Any) -> Any:  # noqa: ARG001
    """total (int32) + the square of a 16-bit integer (its bits): numba would sum 64 bits."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        total, half = arguments
        wide = builder.sext(half, WORD)
        return builder.add(total, builder.mul(wide, wide))

    return types.int32(types.int32, types.uint16), generate


@intrinsic
def magnitude(context: Any, value: Any) -> Any:  # noqa: ARG001
    """The bits (uint32) of a float32 without its sign: in the order of absolute values.

    What is no number is larger than any; the compiler finds the largest of many faster than of
    float32 numbers.
    """

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        bits = builder.bitcast(arguments[0], WORD)
        return builder.and_(bits, ir.Constant(WORD, 0x7FFFFFFF))

    return types.uint32(types.float32), generate


@intrinsic
def of_magnitude(context: Any, value: Any) -> Any:  # noqa: ARG001
    """The float32 of such bits."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], SINGLE)

    return types.float32(types.uint32), generate


@intrinsic
def pointer(context: Any, address: Any) -> Any:  # noqa: ARG001
    """A number as a place in memory, for `numba.carray`."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.intp), generate
