"""The recurrence under steps `strap` for sixteen query rows at a time, frame after frame.

A cell's predecessors lie one row up and one or two frames back, so the rows of a frame don't wait
for each other. Sixteen rows stay in registers, with their D of the two frames before:

    D(n, m) = cost(n, m) + min(D(n − 1, m − 1), D(n − 1, m − 2))

The row above is one lane before, so the minimum is shifted on by one lane. Into the first lane
comes the minimum of the row above the block: it is the last row of the block before, which left one
number for each frame in `carry`. Where a query begins, a path starts: there the row's `gate` is 0,
elsewhere it is ∞, and the smaller of gate and predecessor is taken. Costs are computed from the
products in the same loop: their square roots take as long as everything else.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from strap.dtw.llvm import SINGLE, WORD, Writer, compile_writer

LANES = 16  # rows
FLOATS = ir.VectorType(SINGLE, LANES)
WORDS = ir.VectorType(WORD, LANES)


class _FrameWriter(Writer):
    """The writer of the loop that continues one block's recurrence by `count` frames.

    It takes addresses and distances in bytes:
        products, width: of the block with the frames; from one frame to the next.
        count: of the frames.
        frame_terms, frame_bytes: as in `Workspace`; from one term to the next.
        carry: D of the row above the block, for each frame.
        terms: as in `PackedQueries`.
        state, row_bytes: D one and two frames back, and the least so far; from one of these, and
            of the terms, to the next.
    """

    def __init__(self, builder: Any, arguments: Any, *, is_cosine: bool) -> None:
        super().__init__(builder)
        self.is_cosine = is_cosine
        self.products, self.width, self.count = arguments[:3]
        self.frame_terms, self.frame_bytes, self.carry = arguments[3:6]
        self.terms, self.state, self.row_bytes = arguments[6:]

    def write(self) -> None:
        builder = self.builder
        self.alpha, self.factor, self.slack, self.gate = (
            self.load(self._row(self.terms, i), FLOATS, 4) for i in range(4)
        )
        state = [cgutils.alloca_once(builder, FLOATS) for _ in range(3)]  # type: ignore[no-untyped-call]
        for i, register in enumerate(state):
            builder.store(self.load(self._row(self.state, i), FLOATS, 4), register)
        with cgutils.for_range(builder, self.count) as loop:
            self._frame(loop.index, *state)
        for i, register in enumerate(state):
            place = self.pointer(self._row(self.state, i), FLOATS)
            builder.store(builder.load(register), place, align=4)

    def _frame(self, m: Any, one: Any, two: Any, best: Any) -> None:
        builder = self.builder
        before = builder.load(one)
        above = self._least(before, builder.load(two))
        carry = self.pointer(self.at(self.carry, m, 4), SINGLE)
        first = builder.insert_element(FLOATS(ir.Undefined), builder.load(carry), WORD(0))
        last = builder.extract_element(above, WORD(LANES - 1))
        mask = ir.Constant(WORDS, [LANES, *range(LANES - 1)])
        shifted = builder.shuffle_vector(above, first, mask)
        builder.store(last, carry)
        now = builder.fadd(self._cost(m), self._least(shifted, self.gate))
        builder.store(before, two)
        builder.store(now, one)
        builder.store(self._least(builder.load(best), now), best)

    def _cost(self, m: Any) -> Any:
        """Return lower bounds of a frame's costs, as `int16_bounds` proves them."""
        builder, zero = self.builder, FLOATS(None)
        place = builder.add(self.products, builder.mul(m, self.width))
        product = builder.sitofp(self.load(place, WORDS, 4), FLOATS)
        beta, scale, error_bound = (self._of_frame(i, m) for i in range(3))
        product = builder.fmul(product, builder.fmul(self.factor, scale))
        square = builder.fadd(builder.fadd(self.alpha, beta), product)
        root = builder.module.declare_intrinsic(
            "llvm.sqrt.v16f32", (), ir.FunctionType(FLOATS, [FLOATS])
        )
        distance = builder.call(root, [self._most(square, zero)])
        off = builder.fadd(self.slack, error_bound)
        cost = self._most(builder.fsub(distance, off), zero)
        if self.is_cosine:
            half = ir.Constant(FLOATS, [0.5] * LANES)
            cost = builder.fmul(half, builder.fmul(cost, cost))
        return cost

    def _least(self, a: Any, b: Any) -> Any:
        return self.builder.select(self.builder.fcmp_ordered("<", a, b), a, b)

    def _most(self, a: Any, b: Any) -> Any:
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def _of_frame(self, number: int, m: Any) -> Any:
        """Return one of a frame's three terms in every lane."""
        terms = self.at(self.frame_terms, self.frame_bytes, number)
        return self.broadcast(self.load(self.at(terms, m, 4), SINGLE, 4), FLOATS)

    def _row(self, table: Any, number: int) -> Any:
        return self.at(table, self.row_bytes, number)


accumulate_l2 = compile_writer(partial(_FrameWriter, is_cosine=False))
accumulate_cosine = compile_writer(partial(_FrameWriter, is_cosine=True))
