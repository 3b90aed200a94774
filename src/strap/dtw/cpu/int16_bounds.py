"""Lower bounds from products of int16 numbers, for CPUs that multiply those faster.

Proof that a bound of `Int16Bounds` never exceeds the cost that `alignment.align` returns. As in
`float32_bounds`, let u = 2⁻²⁴, a, b be frames in float64, μ a mean and s a power of two.

1. A frame a is centered, scaled and rounded to float32 numbers x, then to integers i. Each frame
   has its own float32 scale ρ, and i are the integers nearest to x times the inverse of ρ. So
   s(a − μ) = a' + f with a' = ρi. |f| is computed: |x − ρi| is ρ times the computed distance from
   i, and at most 2.1u|x| more, as the inverse and the multiplication are rounded; the rounding to
   x is at most u(1 + 2⁻²⁸) of its result. Likewise s(b − μ) = b' + e with integers j and scale σ.
   So s|a − b| ≥ |a' − b'| − |f| − |e|.
2. Products, squares and sums of the integers are exact, because they fit in 31 bits: ρ is chosen so
   that |i| is at most 46,100, plus 2⁻⁹ of that (as ρ comes from float32 sums), plus √d/2. The
   square of this is below 2³¹, and no product exceeds |i||j|. ρ is also large enough that every
   integer has at most 16 bits. With A = |a'|², B = |b'|², P = −2ρσ(i·j): |a' − b'|² = A + B + P.
3. The kernel's float32 operations, three of them in P, err by at most u of values below 3(A + B).
   κ = 32u covers all: with α = ⌊(1 − κ)A − τ⌋ and β = ⌊(1 − κ)B⌋ the kernel's square is at most
   |a' − b'|². τ = 1e−32 covers underflow.
4. The root, at most slightly above |a'| + |b'|, has a relative error of 2u, and so has the
   subtraction of |f| and |e|. To cover this and the roundings of step 1, 12u|a'| is added to |f|
   and 12u|b'| to |e|. Under cosine the difference is squared, which adds a relative 2u. Then step 5
   of `float32_bounds` follows, whose 8u cover that.

A frame whose numbers are all below 1e−15 becomes 0, with its norm as error. Sketches are stored as
such integers, with errors of their own.
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

MAX_INT16_DIM = 2**16  # for larger d, √d/2 exceeds the margin in step 2
UNDERFLOW = 1e-32
READABLE_DTYPES = (np.float16, np.float32, np.float64)  # that compiled functions can read


class Int16Bounds:
    """Queries prepared for int16 lower bounds of frames (a `TileBounds`) or of sketches."""

    tile_frames = 2048

    def __init__(self, stack: QueryStack, steps: StepSet, metric: str, group_rows: int) -> None:
        """Pack the queries in groups of at most `group_rows` rows, or one longer query."""
        self.stack, self.steps, self.metric = stack, steps, metric
        self._width = -(-stack.frames.shape[1] // CHUNK_DIMS) * CHUNK_DIMS
        self._packed = self._pack(split_into_tiles(stack.borders, group_rows))
        self.n_columns = int(np.diff(self._packed.blocks).max()) * BLOCK_ROWS + PADDING_COLUMNS
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

    def pack_queries_for(self, frames: Frames) -> PackedQueries:
        """Return the packed queries with mean and scale in the precision that frames need."""
        if frames.dtype == np.float64:
            return self._packed
        mean, scale = self.stack.mean.astype(np.float32), np.float32(self.stack.scale)
        return self._packed._replace(mean=mean, scale=scale)

    @property
    def workspace(self) -> Workspace:
        """This thread's buffers for the frames that are multiplied together."""
        get = self.buffers.get
        squares, errors = get("norms", np.float64, 2, LOADED_FRAMES)
        return Workspace(
            get("integers", np.int16, LOADED_FRAMES, self._width),
            squares,
            errors,
            get("terms", np.float32, 3, LOADED_FRAMES),
            get("products", np.int32, LOADED_FRAMES, self.n_columns),
            get("costs", np.float32, 1, self.n_columns)[0],
        )

    def make_readable(self, trajectories: Sequence[Frames]) -> list[Frames]:
        """Return trajectories as contiguous arrays of one dtype that compiled functions can read.

        It is float32, float64 or uint16, which stands for the bits of float16.
        """
        kind = np.result_type(*(frames.dtype for frames in trajectories))
        is_readable = self.stack.is_ordinary and kind.type in READABLE_DTYPES
        if self.metric == "cosine" or not is_readable:
            with np.errstate(invalid="ignore"):  # 0/0 under cosine: check_numbers reports it later
                floats = [as_floats(frames, self.metric) for frames in trajectories]
            return [np.ascontiguousarray(frames, np.float64) for frames in floats]
        plain = [np.ascontiguousarray(frames, kind) for frames in trajectories]
        return [frames.view(np.uint16) for frames in plain] if kind == np.float16 else plain

    def bound_tile(self, frames: Sequence[Frames]) -> tuple[Singles, Bools]:
        """Return bounds [q t] before step 5, and whether each trajectory's are valid [t]."""
        plain = self.make_readable(frames)
        wanted = np.ones((self.stack.n_queries, len(plain)), np.bool_)
        addresses = np.array([_address(one) for one in plain], np.intp)
        lengths = np.array([len(one) for one in plain])
        return self._bound(wanted, addresses, np.zeros_like(addresses), lengths, plain[0])

    def bound_sketches(self, block: SketchBlock, positions: Ints, wanted: Bools) -> Singles:
        """Return bounds [q t] from sketches before step 5, and 0 if not wanted or not valid.

        The arguments are those of `SketchBounds.bound_pairs`. The queries must be sketches too.
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
        """Do steps 1 to 4 and the recurrences in one compiled call."""
        bounds = np.empty(wanted.T.shape, np.float32)
        is_valid = np.empty(len(bounds), np.bool_)
        bound_trajectories(
            self.pack_queries_for(frames),
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
    """Return an array's address: with the array itself, numba would compile for read-only too."""
    return int(array.__array_interface__["data"][0])
