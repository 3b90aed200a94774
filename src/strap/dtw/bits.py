"""Numbers and their bits, one at a time, for compiled loops: numba has no names for these."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from strap.dtw.jit import intrinsic

HALF, SINGLE, WORD, SHORT = ir.HalfType(), ir.FloatType(), ir.IntType(32), ir.IntType(16)


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
def whole(context: Any, value: Any) -> Any:  # noqa: ARG001
    """The number of the 32-bit integer that lies in the memory of a float32."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.sitofp(builder.bitcast(arguments[0], WORD), SINGLE)

    return types.float32(types.float32), generate


@intrinsic
def pointer(context: Any, address: Any) -> Any:  # noqa: ARG001
    """A number as a place in memory, for `numba.carray`."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.intp), generate
