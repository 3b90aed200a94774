"""What instructions the processor has and numba compiles for, and how loops of them are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.core.codegen import get_host_cpu_features

from strap.dtw.jit import intrinsic

WORD = ir.IntType(32)


def has(*names: str) -> bool:
    """Whether the processor has all of these, by the compiler's names, and numba may use them.

    It may not where NUMBA_CPU_FEATURES says otherwise.
    """
    there: str = get_host_cpu_features()  # type: ignore[no-untyped-call]
    chosen: str | None = config.CPU_FEATURES  # type: ignore[attr-defined]
    both = set(there.split(",")) & set((there if chosen is None else chosen).split(","))
    return {f"+{name}" for name in names} <= both


class Writer:
    """Writes instructions that reach memory by addresses, which are integers."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def at(self, address: Any, number: Any, times: int) -> Any:
        """address + number·times."""
        return self.builder.add(address, self.builder.mul(number, number.type(times)))

    def pointer(self, address: Any, kind: Any) -> Any:
        """Where something of a kind lies."""
        return self.builder.inttoptr(address, kind.as_pointer())

    def load(self, address: Any, kind: Any, align: int) -> Any:
        """What lies there; addresses are multiples of `align`."""
        return self.builder.load(self.pointer(address, kind), align=align)

    def same(self, number: Any, kind: Any) -> Any:
        """A number in every lane of a register."""
        one = self.builder.insert_element(kind(ir.Undefined), number, WORD(0))
        return self.builder.shuffle_vector(one, one, ir.VectorType(WORD, kind.count)(None))


def addressed(write: Callable[[Any, Any], None]) -> Any:
    """What `write(builder, arguments)` writes, for compiled loops, which call it with one tuple of
    addresses and other numbers, and get nothing back.
    """

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        write(builder, cgutils.unpack_tuple(builder, arguments[0]))  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    def typed(context: Any, given: Any) -> Any:  # noqa: ARG001
        return types.void(given), generate

    return intrinsic(typed)
