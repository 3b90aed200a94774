"""Instructions that numba has no functions for, written for its compiler (LLVM).

LLVM translates them for whichever processor there is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.core.codegen import get_host_cpu_features

from strap.jit import intrinsic

WORD, SHORT = ir.IntType(32), ir.IntType(16)
HALF, SINGLE = ir.HalfType(), ir.FloatType()


def has_instructions(*names: str) -> bool:
    """Return whether the processor has all of these, by LLVM's names, and numba may use them.

    It may not where NUMBA_CPU_FEATURES says otherwise.
    """
    there: str = get_host_cpu_features()  # type: ignore[no-untyped-call]
    chosen: str | None = config.CPU_FEATURES  # type: ignore[attr-defined]
    both = set(there.split(",")) & set((there if chosen is None else chosen).split(","))
    return {f"+{name}" for name in names} <= both


class Writer:
    """A writer of instructions that reach memory by addresses, which are integers."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def write(self) -> None:
        """Write the instructions."""
        raise NotImplementedError

    def at(self, address: Any, number: Any, times: int) -> Any:
        """Return address + number·times."""
        return self.builder.add(address, self.builder.mul(number, number.type(times)))

    def pointer(self, address: Any, kind: Any) -> Any:
        """Return the address as a pointer to something of a kind."""
        return self.builder.inttoptr(address, kind.as_pointer())

    def load(self, address: Any, kind: Any, align: int) -> Any:
        """Return what lies at an address, which is a multiple of `align`."""
        return self.builder.load(self.pointer(address, kind), align=align)

    def broadcast(self, number: Any, kind: Any) -> Any:
        """Return a register with a number in every lane."""
        one = self.builder.insert_element(kind(ir.Undefined), number, WORD(0))
        return self.builder.shuffle_vector(one, one, ir.VectorType(WORD, kind.count)(None))


def compile_writer(writer: Callable[[Any, Any], Writer]) -> Any:
    """Return a function for compiled loops, of what `writer(builder, arguments)` writes.

    It takes one tuple of addresses and other numbers, the arguments, and returns nothing.
    """

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        unpacked = cgutils.unpack_tuple(builder, arguments[0])  # type: ignore[no-untyped-call]
        writer(builder, unpacked).write()
        return context.get_dummy_value()

    def typed(context: Any, arguments: Any) -> Any:  # noqa: ARG001
        return types.void(arguments), generate

    return intrinsic(typed)


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
