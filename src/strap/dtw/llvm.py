"""LLVM code for operations that numba lacks; LLVM translates it for any CPU."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.core.codegen import get_host_cpu_features

from strap.jit import intrinsic

HALF, SINGLE = ir.HalfType(), ir.FloatType()


def has_instructions(*names: str) -> bool:
    """Return whether the CPU has these features and NUMBA_CPU_FEATURES allows them."""
    present: str = get_host_cpu_features()  # type: ignore[no-untyped-call]
    allowed: str | None = config.CPU_FEATURES  # type: ignore[attr-defined]
    usable = set(present.split(",")) & set((present if allowed is None else allowed).split(","))
    return {f"+{name}" for name in names} <= usable


@intrinsic
def number_of(context: Any, value: Any) -> Any:  # noqa: ARG001
    """Convert the bits of a float16 (uint16) to float32; return any other number unchanged."""
    if value != types.uint16:
        return value(value), lambda _context, _builder, _signature, arguments: arguments[0]

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(arguments[0], HALF), SINGLE)

    return types.float32(types.uint16), generate


@intrinsic
def pointer_to(context: Any, address: Any) -> Any:  # noqa: ARG001
    """Convert an address to a pointer, for `numba.carray`."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.intp), generate
