"""Recurrences under steps `strap` for sixteen query rows at a time, frame after frame.

A cell's predecessors lie one row up and one or two frames back, so that the rows of a frame don't
wait for each other. Sixteen of them stay in registers, with those of the two frames before:

    D(n, m) = cost(n, m) + min(D(n − 1, m − 1), D(n − 1, m − 2))

One row up is one lane on; what comes in at the first lane is the least of the sixteen rows above,
which go first and leave it frame by frame (`carry`). At a query's first row `gate` is 0, and lets
that in; elsewhere it is ∞. Costs are made from products on the way: their roots take as long as the
rest.

Written as instructions of numba's compiler, which makes the processor's own of them.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from strap.dtw.instructions import WORD, Writer, addressed

SIDE = 16  # rows
SINGLE = ir.FloatType()
LANES = ir.VectorType(SINGLE, SIDE)
WORDS = ir.VectorType(WORD, SIDE)


class _Writer(Writer):
    """Writes the loop over frames for one block of rows."""

    def __init__(self, builder: Any, arguments: Any, *, is_whole: bool, is_cosine: bool) -> None:
        super().__init__(builder)
        self.is_whole, self.is_cosine = is_whole, is_cosine
        self.cells, self.width, self.count = arguments[:3]
        self.beta, self.worth, self.more, self.carry = arguments[3:7]
        self.rows, self.state, self.far = arguments[7:]

    def write(self) -> None:
        """The whole loop."""
        builder = self.builder
        self.alpha, self.factor, self.slack, self.gate = (
            self.load(self._place(self.rows, i), LANES, 4) for i in range(4)
        )
        kept = [cgutils.alloca_once(builder, LANES) for _ in range(3)]  # type: ignore[no-untyped-call]
        for i, own in enumerate(kept):
            builder.store(self.load(self._place(self.state, i), LANES, 4), own)
        with cgutils.for_range(builder, self.count) as loop:
            self._frame(loop.index, *kept)
        for i, own in enumerate(kept):
            place = self.pointer(self._place(self.state, i), LANES)
            builder.store(builder.load(own), place, align=4)

    def _frame(self, m: Any, one: Any, two: Any, best: Any) -> None:
        builder = self.builder
        before = builder.load(one)
        above = self._least(before, builder.load(two))
        carry = self.pointer(self.at(self.carry, m, 4), SINGLE)
        first = builder.insert_element(LANES(ir.Undefined), builder.load(carry), WORD(0))
        last = builder.extract_element(above, WORD(SIDE - 1))
        mask = ir.Constant(WORDS, [SIDE, *range(SIDE - 1)])
        shifted = builder.shuffle_vector(above, first, mask)
        builder.store(last, carry)
        now = builder.fadd(self._cost(m), self._least(shifted, self.gate))
        builder.store(before, two)
        builder.store(now, one)
        builder.store(self._least(builder.load(best), now), best)

    def _cost(self, m: Any) -> Any:
        """Lower bounds of a frame's costs, as `halves` proves them."""
        builder, zero = self.builder, LANES(None)
        place = builder.add(self.cells, builder.mul(m, self.width))
        if self.is_whole:
            product = builder.sitofp(self.load(place, WORDS, 4), LANES)
            product = builder.fmul(
                product, builder.fmul(self.factor, self._of_frame(self.worth, m))
            )
        else:
            product = self.load(place, LANES, 4)
        square = builder.fadd(builder.fadd(self.alpha, self._of_frame(self.beta, m)), product)
        root = builder.module.declare_intrinsic(
            "llvm.sqrt.v16f32", (), ir.FunctionType(LANES, [LANES])
        )
        distance = builder.call(root, [self._most(square, zero)])
        off = builder.fadd(self.slack, self._of_frame(self.more, m))
        cost = self._most(builder.fsub(distance, off), zero)
        if self.is_cosine:
            half = ir.Constant(LANES, [0.5] * SIDE)
            cost = builder.fmul(half, builder.fmul(cost, cost))
        return cost

    def _least(self, a: Any, b: Any) -> Any:
        return self.builder.select(self.builder.fcmp_ordered("<", a, b), a, b)

    def _most(self, a: Any, b: Any) -> Any:
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def _of_frame(self, numbers: Any, m: Any) -> Any:
        """A frame's number in every lane."""
        return self.same(self.load(self.at(numbers, m, 4), SINGLE, 4), LANES)

    def _place(self, address: Any, number: int) -> Any:
        return self.at(address, self.far, number)


def _walking(*, is_whole: bool, is_cosine: bool) -> Any:
    """What takes `count` frames further, for one block of rows; called with addresses.

    Cells are products, `width` bytes from frame to frame; beta, worth, more and carry a number for
    each frame; rows are alpha, factor, slack and gate, state is D one and two frames back and its
    least so far, `far` bytes from one to the next.
    """

    def write(builder: Any, arguments: Any) -> None:
        _Writer(builder, arguments, is_whole=is_whole, is_cosine=is_cosine).write()

    return addressed(write)


walk_floats = _walking(is_whole=False, is_cosine=False)
walk_floats_cosine = _walking(is_whole=False, is_cosine=True)
walk_whole = _walking(is_whole=True, is_cosine=False)
walk_whole_cosine = _walking(is_whole=True, is_cosine=True)
