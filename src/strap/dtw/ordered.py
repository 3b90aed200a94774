"""Squared distances of eight pairs of frames at a time, each summed in order of dimension.

A returned cost is that sum, to the last bit, and one sum alone waits for each of its additions.
Here eight numbers of eight pairs are turned, so that a register has one number of each pair, and
eight sums go on together:

    k →  a a a a a a a a        a b c d …   then  + + + + …  eight sums
         b b b b b b b b   →    a b c d …         + + + + …
         c c c c c c c c        a b c d …         + + + + …

Written as instructions of numba's compiler, which makes the processor's own of them.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from strap.dtw.instructions import WORD, Writer
from strap.dtw.jit import intrinsic

SIDE = 8  # pairs, and numbers of each that are turned at once
DOUBLE, PLACE = ir.DoubleType(), ir.IntType(64)
DOUBLES = ir.VectorType(DOUBLE, SIDE)
KINDS = {
    types.uint16: (ir.HalfType(), 2),  # the bits of a float16
    types.float32: (ir.FloatType(), 4),
    types.float64: (DOUBLE, 8),
}


class _Writer(Writer):
    """Writes the loop over dimensions, eight at a time."""

    def __init__(self, builder: Any, arguments: Any, kind: Any, size: int) -> None:
        super().__init__(builder)
        self.kind, self.size = kind, size
        self.queries, self.frames, self.blocks, self.sums, _ = arguments

    def write(self) -> None:
        """The whole loop."""
        builder = self.builder
        ours = [self._address(self.queries, i) for i in range(SIDE)]
        theirs = [self._address(self.frames, i) for i in range(SIDE)]
        sums = cgutils.alloca_once(builder, DOUBLES)  # type: ignore[no-untyped-call]
        place = self.pointer(self.sums, DOUBLES)
        builder.store(builder.load(place, align=8), sums)
        with cgutils.for_range(builder, self.blocks) as loop:
            rows = [self._squares(ours[i], theirs[i], loop.index) for i in range(SIDE)]
            total = builder.load(sums)
            for column in self._turned(rows):
                total = builder.fadd(total, column)
            builder.store(total, sums)
        builder.store(builder.load(sums), place, align=8)

    def _squares(self, query: Any, frame: Any, block: Any) -> Any:
        """Of eight dimensions of a pair."""
        builder = self.builder
        there = self.at(frame, block, SIDE * self.size)
        other = self.load(there, ir.VectorType(self.kind, SIDE), self.size)
        if self.kind is not DOUBLE:
            other = builder.fpext(other, DOUBLES)
        own = self.load(self.at(query, block, SIDE * 8), DOUBLES, 8)
        difference = builder.fsub(own, other)
        return builder.fmul(difference, difference)

    def _turned(self, rows: list[Any]) -> list[Any]:
        """Rows to columns: ever larger squares change places."""
        side = 1
        while side < SIDE:
            turned = list(rows)
            for i in range(SIDE):
                if not i & side:
                    first, second = rows[i], rows[i + side]
                    turned[i] = self._mixed(first, second, side, upper=False)
                    turned[i + side] = self._mixed(first, second, side, upper=True)
            rows, side = turned, 2 * side
        return rows

    def _mixed(self, first: Any, second: Any, side: int, *, upper: bool) -> Any:
        places = []
        for k in range(SIDE):
            own = k | side if upper else k & ~side
            places.append(own + (SIDE if k & side else 0))
        mask = ir.Constant(ir.VectorType(WORD, SIDE), places)
        return self.builder.shuffle_vector(first, second, mask)

    def _address(self, table: Any, number: int) -> Any:
        return self.load(self.builder.add(table, table.type(number * 8)), PLACE, 8)


@intrinsic
def add_squares(
    context: Any,  # noqa: ARG001
    queries: Any,  # noqa: ARG001
    frames: Any,  # noqa: ARG001
    blocks: Any,  # noqa: ARG001
    sums: Any,  # noqa: ARG001
    example: Any,
) -> Any:
    """sums [8] += the squared differences of eight pairs, of `blocks` times eight dimensions.

    Called with addresses: of eight addresses of query frames (float64), of eight of other frames,
    of the sums; `example` is a number of those other frames.
    """
    kind, size = KINDS[example]

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        _Writer(builder, arguments, kind, size).write()
        return context.get_dummy_value()

    return types.void(*[types.intp] * 4, example), generate
