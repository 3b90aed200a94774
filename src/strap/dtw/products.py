"""Products of small whole numbers, four times as fast as float32 where the processor has them."""

# The compiler's interface has no types.
# mypy: disable-error-code="import-untyped, no-untyped-call, call-arg"
# ruff: noqa: ARG001 - numba reads the names of `_tile`'s arguments, values come to `build`

from __future__ import annotations

from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from strap.dtw.jit import njit

TILE = 4  # rows and columns of the result that one pass over the dimensions makes
DEPTH = 16  # dimensions in one register


_PROBE = """
declare <4 x i32> @llvm.vector.partial.reduce.add.v4i32.v16i32(<4 x i32>, <16 x i32>)
define <4 x i32> @probe(<4 x i32> %sum, <16 x i8> %a, <16 x i8> %b) {
  %x = sext <16 x i8> %a to <16 x i32>
  %y = sext <16 x i8> %b to <16 x i32>
  %z = mul <16 x i32> %x, %y
  %r = call <4 x i32> @llvm.vector.partial.reduce.add.v4i32.v16i32(<4 x i32> %sum, <16 x i32> %z)
  ret <4 x i32> %r
}
"""


@cache
def available() -> bool:
    """Whether `_tile` becomes dot-product instructions here: asked of the compiler itself.

    On other machines it compiles too, but a float32 product is the faster filter there.
    """
    try:
        target = llvm.Target.from_default_triple()
        features = llvm.get_host_cpu_features().flatten()
        machine = target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features)
        assembly = machine.emit_assembly(llvm.parse_assembly(_PROBE))
    except RuntimeError:  # a compiler too old to know the step
        return False
    return "sdot" in assembly


@intrinsic
def _tile(
    typing: Any, a: Any, b: Any, stride: Any, depth: Any, out: Any, out_stride: Any
) -> Any:  # pragma: no cover - runs inside numba's compiler
    """out [4 4] int32 = a [4 depth] · b [4 depth]ᵀ, all given as addresses, strides in bytes.

    sixteen int8 of a ─┐
                       ├─ multiply, add in fours ─▶ four int32, one such sum for each (row, column)
    sixteen int8 of b ─┘

    `partial.reduce.add` is LLVM's portable name of that step; it becomes SDOT on ARM.
    """

    def build(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        a, b, stride, depth, out, out_stride = args
        word, number = ir.IntType(64), ir.IntType(32)
        bytes16, sums4 = ir.VectorType(ir.IntType(8), DEPTH), ir.VectorType(number, 4)
        wide16 = ir.VectorType(number, DEPTH)

        kind = ir.FunctionType(sums4, [sums4, wide16])
        step = "llvm.vector.partial.reduce.add.v4i32.v16i32"
        dot = cgutils.get_or_insert_function(builder.module, kind, step)
        cells = [(i, j) for i in range(TILE) for j in range(TILE)]
        sums = {
            cell: cgutils.alloca_once_value(builder, ir.Constant(sums4, [0] * 4)) for cell in cells
        }

        def pairs_added(x: Any, y: Any) -> Any:
            even, odd = ir.Constant(sums4, [0, 2, 4, 6]), ir.Constant(sums4, [1, 3, 5, 7])
            return builder.add(
                builder.shuffle_vector(x, y, even), builder.shuffle_vector(x, y, odd)
            )

        def at(base: Any, stride: Any, index: int, extra: Any) -> Any:
            return builder.add(builder.add(base, builder.mul(stride, word(index))), extra)

        def load(base: Any, index: int, k: Any) -> Any:
            address = builder.inttoptr(at(base, stride, index, k), bytes16.as_pointer())
            return builder.sext(builder.load(address, align=1), wide16)

        with cgutils.for_range_slice(builder, word(0), depth, word(DEPTH)) as (k, _):
            left = [load(a, i, k) for i in range(TILE)]
            right = [load(b, j, k) for j in range(TILE)]
            for i, j in cells:
                added = [builder.load(sums[i, j]), builder.mul(left[i], right[j])]
                builder.store(builder.call(dot, added), sums[i, j])
        for i in range(TILE):
            row = [builder.load(sums[i, j]) for j in range(TILE)]
            while len(row) > 1:  # four sums of four → one vector of four totals
                row = [pairs_added(x, y) for x, y in zip(row[::2], row[1::2], strict=True)]
            address = at(out, out_stride, i, word(0))
            builder.store(row[0], builder.inttoptr(address, sums4.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 6), build


@njit
def multiply(
    a: NDArray[np.int8], b: NDArray[np.int8], M: int, N: int, corners: bool, out: NDArray[np.int32]
) -> None:
    """out[n, m] = a [R depth] · b [F depth]ᵀ for n < N, m < M, in tiles; other cells may change.

    R is a multiple of TILE, depth of DEPTH, out has TILE columns more than M; b has as many
    frames to read. Without `corners` cells that a `strap` path can't use are left out:

        m  0 · · · M−N · · M−1
      n 0  x x x x x
        ·    x x x x x
        ·      x x x x x
      N−1        x x x x x
    """
    depth, width = a.shape[1], out.shape[1]
    from_a, from_b, to = a.ctypes.data, b.ctypes.data, out.ctypes.data
    for n in range(0, N, TILE):
        lo, hi = (0, M) if corners else (n, min(M, M - N + n + TILE))
        for m in range(lo, hi, TILE):
            place = to + 4 * (n * width + m)
            _tile(from_a + n * depth, from_b + m * depth, depth, depth, place, 4 * width)
