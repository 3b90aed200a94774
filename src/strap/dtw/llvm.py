"""Instructions that numba has no functions for, written for its compiler (LLVM).

LLVM translates them for whichever processor there is.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.core.codegen import get_host_cpu_features

from strap.jit import intrinsic

HALF, SINGLE = ir.HalfType(), ir.FloatType()


def has_instructions(*names: str) -> bool:
    """Return whether the processor has all of these, by LLVM's names, and numba may use them.

    It may not where NUMBA_CPU_FEATURES says otherwise.
    """
    there: str = get_host_cpu_features()  # type: ignore[no-untyped-call]
    chosen: str | None = config.CPU_FEATURES  # type: ignore[attr-defined]
    both = set(there.split(",")) & set((there if chosen is None else chosen).split(","))
    return {f"+{name}" for name in names} <= both


@intrinsic
def number_of(context: Any, value: Any) -> Any:  # noqa: ARG001
    """Return the float32 number of a float16's bits (uint16); any other number as it is."""
    if value != types.uint16:
        return value(value), lambda _context, _builder, _signature, arguments: arguments[0]

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(arguments[0], HALF), SINGLE)

    return types.float32(types.uint16), generate


@intrinsic
def pointer_to(context: Any, address: Any) -> Any:  # noqa: ARG001
    """Return an address as a pointer, for `numba.carray`."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.intp), generate
