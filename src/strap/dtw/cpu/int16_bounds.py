"""Lower bounds from products of 16-bit integers, for processors that multiply those faster.

What is proved here: `Int16Bounds` never exceeds the cost that `alignment.align` returns. As in
`float32_bounds`, let u = 2⁻²⁴, a, b be frames in float64, μ a mean and s a power of two.

1. Both are centered, scaled, rounded to float32, x, and then to integers, i: s(a − μ) = a' + f with
   a' = ρi, where ρ is a float32 number of the frame's own, and i are the integers nearest to x
   times the inverse of ρ. |f| is computed: |x − ρi| is ρ times the computed distance from i, and at
   most 2.1u|x| more, as the inverse and the multiplication are rounded; the rounding to x is at
   most u(1 + 2⁻²⁸) of its result. So s|a − b| ≥ |a' − b'| − |f| − |e|, e being the same for b.
2. Products and sums of integers are exact, squares too, because they fit in 31 bits: ρ is chosen so
   that |i| is at most 46,100, 2⁻⁹ of that (float32 sums choose ρ) and √d/2, whose square is below
   2³¹, and no product is more than |i||j|. It is also so large that no integer has more than 16
   bits. With A = |a'|², B = |b'|² and P = −2ρσ(i·j): |a' − b'|² = A + B + P.
3. The kernel's operations in float32, of which P has three, err by at most u of values below
   3(A + B). κ = 32u covers all: with α = ⌊(1 − κ)A − τ⌋ and β = ⌊(1 − κ)B⌋ the kernel's square is
   at most |a' − b'|². τ = 1e−32 covers underflow.
4. The root, at most |a'| + |b'| and a little, gains 2u of itself, and the subtraction of the two
   errors as much: with what step 1 leaves, 12u|a'| and 12u|b'| are added to |f| and |e|. Under
   cosine the difference is squared, which gains 2u. What follows is step 5 of `float32_bounds`,
   whose 8u cover that.

A frame whose numbers are all below 1e−15 is taken as 0, and its length as an error. Sketches are
such integers already, with errors of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strap.dtw.batching import as_floats, split_into_tiles
from strap.dtw.buffers import Buffers, aligned
from strap.dtw.cpu.int16.gemm import BLOCK_ROWS, CHUNK_DIMS, pack_rows
from strap.dtw.cpu.int16.quantize import quantize
from strap.dtw.cpu.int16.recurrence import bound_trajectories
from strap.dtw.cpu.int16.workspace import (
    LOADED_FRAMES,
    PADDING_COLUMNS,
    SHRINK,
    PackedQueries,
    Workspace,
    bound_error,
)
from strap.dtw.cpu.query_stack import QueryStack
from strap.dtw.cpu.rounding import round_down
from strap.dtw.sketches.sketcher import SketchBlock
from strap.dtw.steps import StepSet
from strap.dtw.types import Bools, Frames, Ints, Singles

MAX_INT16_DIM = 2**16  # for which √d/2 is below what step 2 leaves
UNDERFLOW = 1e-32
READABLE_DTYPES = (np.float16, np.float32, np.float64)  # by compiled loops


class Int16Bounds:
    """Queries as 16-bit integers, and the bounds of trajectories or their sketches.

    Bounds of a tile are as `Float32Bounds` gives them, a little lower.
    """

    tile_frames = 2048

    def __init__(self, stack: QueryStack, steps: StepSet, metric: str, group_rows: int) -> None:
        """Pack the queries, in groups of so many rows or one query."""
        self.stack, self.steps, self.metric = stack, steps, metric
        self._width = -(-stack.frames.shape[1] // CHUNK_DIMS) * CHUNK_DIMS
        self._packed = self._pack(split_into_tiles(stack.borders, group_rows))
        self.columns = int(np.diff(self._packed.blocks).max()) * BLOCK_ROWS + PADDING_COLUMNS
        self.buffers = Buffers()

    def _pack(self, groups: list[range]) -> PackedQueries:
        stack = self.stack
        n_rows, borders = len(stack.frames), stack.borders
        integers = np.zeros((n_rows, self._width), np.int16)
        (squares, errors), scales = np.empty((2, n_rows)), np.empty(n_rows, np.float32)
        quantize(stack.frames, stack.mean, stack.scale, integers, squares, errors, scales)
        alpha = round_down(SHRINK * squares - UNDERFLOW)
        error_bounds = [bound_error(*pair) for pair in zip(errors, squares, strict=True)]
        rows = np.stack([alpha, -2 * scales, np.array(error_bounds, np.float32)])  # [3 R]
        spans = [slice(borders[group.start], borders[group.stop]) for group in groups]
        tiles = [pack_rows(integers[span]) for span in spans]
        blocks = np.cumsum([0, *map(len, tiles)])
        begins = np.empty(stack.n_queries, np.int64)
        terms = np.zeros((4, blocks[-1] * BLOCK_ROWS), np.float32)
        for group, span, block in zip(groups, spans, blocks, strict=False):
            first = block * BLOCK_ROWS
            members = slice(group.start, group.stop)
            begins[members] = borders[members] - span.start + first
            terms[:3, first : first + span.stop - span.start] = rows[:, span]
        terms[3] = np.inf
        terms[3, begins] = 0
        packed = aligned((blocks[-1], *tiles[0].shape[1:]), np.int16)
        np.concatenate(tiles, out=packed)
        starts = np.array([group.start for group in groups] + [groups[-1].stop])
        ends, is_cosine = begins + np.diff(borders), self.metric == "cosine"
        mean, scale = stack.mean, stack.scale
        return PackedQueries(packed, terms, begins, ends, starts, blocks, mean, scale, is_cosine)

    def packed_for(self, frames: Frames) -> PackedQueries:
        """Return the queries with a mean and a scale as frames of such numbers need them."""
        if frames.dtype == np.float64:
            return self._packed
        mean, scale = self.stack.single_mean, np.float32(self.stack.scale)
        return self._packed._replace(mean=mean, scale=scale)

    @property
    def workspace(self) -> Workspace:
        """This thread's memory for the frames that are multiplied together."""
        get = self.buffers.get
        squares, errors = get("norms", np.float64, 2, LOADED_FRAMES)
        return Workspace(
            get("integers", np.int16, LOADED_FRAMES, self._width),
            squares,
            errors,
            get("terms", np.float32, 3, LOADED_FRAMES),
            get("products", np.int32, LOADED_FRAMES, self.columns),
            get("costs", np.float32, 1, self.columns)[0],
        )

    def in_one_piece(self, trajectories: Sequence[Frames]) -> list[Frames]:
        """Return trajectories as compiled loops read them from memory, all of one kind.

        That is float16, given by its bits, float32 or float64.
        """
        kind = np.result_type(*(frames.dtype for frames in trajectories))
        is_readable = self.stack.is_ordinary and kind.type in READABLE_DTYPES
        if self.metric == "cosine" or not is_readable:
            with np.errstate(invalid="ignore"):  # 0/0 under cosine: reported later, by name
                floats = [as_floats(frames, self.metric) for frames in trajectories]
            return [np.ascontiguousarray(frames, np.float64) for frames in floats]
        plain = [np.ascontiguousarray(frames, kind) for frames in trajectories]
        return [frames.view(np.uint16) for frames in plain] if kind == np.float16 else plain

    def bound_tile(self, frames: Sequence[Frames]) -> tuple[Singles, Bools]:
        """Return bounds [q t] before step 5, and whether each trajectory's are valid [t]."""
        plain = self.in_one_piece(frames)
        wanted = np.ones((self.stack.n_queries, len(plain)), np.bool_)
        addresses = np.array([_address(one) for one in plain], np.intp)
        lengths = np.array([len(one) for one in plain])
        return self._bound(wanted, addresses, np.zeros_like(addresses), lengths, plain[0])

    def bound_sketches(self, block: SketchBlock, positions: Ints, wanted: Bools) -> Singles:
        """Return such bounds [q t] from sketches, 0 where they are not wanted or valid.

        Args:
            block: the sketches; queries are sketches too, and must not have been centered.
            positions: which trajectories of the block [t].
            wanted: of which pairs bounds are wanted [q t].
        """
        integers = np.ascontiguousarray(block.integers).view(np.uint16)
        scales = np.ascontiguousarray(block.scales)
        begins, ends = block.offsets[positions], block.offsets[positions + 1]
        addresses = _address(integers) + begins * integers.strides[0]
        scale_addresses = _address(scales) + begins * scales.strides[0]
        lengths = ends - begins
        bounds, is_valid = self._bound(wanted, addresses, scale_addresses, lengths, integers)
        return np.where(wanted & is_valid, bounds, np.float32(0))

    def _bound(
        self, wanted: Bools, addresses: Ints, scale_addresses: Ints, lengths: Ints, frames: Frames
    ) -> tuple[Singles, Bools]:
        """Do steps 1 to 4 and the recurrences, in one compiled call."""
        bounds = np.empty(wanted.T.shape, np.float32)
        is_valid = np.empty(len(bounds), np.bool_)
        bound_trajectories(
            self.packed_for(frames),
            np.ascontiguousarray(wanted.T),
            addresses,
            scale_addresses,
            lengths,
            np.empty((0, frames.shape[1]), frames.dtype),
            self.steps,
            self.workspace,
            bounds,
            is_valid,
        )
        return bounds.T, is_valid


def _address(array: NDArray[Any]) -> int:
    """Return where an array begins: compiled loops don't care then whether it may be written to."""
    return int(array.__array_interface__["data"][0])
