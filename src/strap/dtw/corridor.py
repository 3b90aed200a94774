"""One exact alignment at the price of a quick product: only cells that may matter are exact.

With low(n, m) ≤ C(n, m) for every cell (from the float32 product, as in `bounds`, or from one of
integers, as in `halves`), let F(n, m) be the cheapest way to the cell under `low` and B(n, m) the
cheapest way on from it, the cell counted in both. Every path through the cell costs at least
F + B − low. The exact cost U of one path, the best one under `low`, is at least the optimum. So a
cell with F + B − low > U lies on no optimal path. Nor does one with F + B − low above a cost that
is to be beaten.

What is left is a corridor a few cells wide, and the recurrence over it, with exact costs, gives the
same cost, start and stop as over all cells, to the last bit: cells on optimal paths keep all their
optimal predecessors, and a cell that is left out can only have made others cheaper than they are
allowed to be. U is raised by 1e−9 of itself, far more than float64 rounds in these sums, so that
whatever rounding makes equal is left in.

    . . . . . . . . . .        .  low alone
    . . x x . . . . . .        x  exact
    . . . x x . . . . .
    . . . . . x . . . .
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from strap.dtw import cells, halves, halving, kernels
from strap.dtw.bounds import Moved
from strap.dtw.halving import WHOLE
from strap.dtw.pieces import Buffers, Stacked, as_values
from strap.dtw.types import Alignment, Floats, Frames, Ints

SMALL = 24  # dimensions: below, every cell's exact cost is cheaper than its bound


class Corridor:
    """Queries, prepared once and aligned exactly with many trajectories."""

    def __init__(self, queries: Sequence[Floats], steps: str, metric: str) -> None:
        """Queries are as the exact pass wants them: float64, divided by their norms for cosine."""
        self.queries, self.code, self.metric = queries, kernels.CODES[steps], metric
        self.half = metric == "cosine"
        dim = queries[0].shape[1]
        self._buffers = Buffers()
        self._whole = None
        if not self.half and halves.by_integers(dim):
            stacked = Stacked.of(queries, "l2")
            if stacked.is_ordinary:
                self._whole = halves.Prepared(stacked, "l2", WHOLE, alone=True)

    @cached_property
    def _moved(self) -> Moved | None:
        # Norms are divided out already: from here on numbers are taken as they are.
        return Moved(Stacked.of(self.queries, "l2")) if self.queries[0].shape[1] >= SMALL else None

    def look(
        self,
        asking: Sequence[int],
        trajectory: Frames,
        beat: Sequence[float],
        doubt: Callable[[], object] | None = None,
    ) -> list[Look]:
        """Queries of these numbers at a trajectory [m d], each with a cost that is to be beaten;
        `doubt` is called where its numbers are not ordinary ones.
        """
        numbers, costs = np.asarray(asking, np.int64), np.asarray(beat, np.float64)
        found = self._by_integers(numbers, trajectory, costs)
        if found is None:
            with np.errstate(invalid="ignore"):  # 0/0 under cosine: for `doubt` to report
                values = as_values(trajectory, self.metric, self._buffers)
            found = self._by_singles(numbers, values, costs)
        if found is None:
            if doubt is not None:
                doubt()
            columns = kernels.transposed(values)
            aligned = (
                kernels.align(self.queries[q], columns, self.code, self.half) for q in asking
            )
            return [Look(True, _match(*own, most)) for own, most in zip(aligned, beat, strict=True)]
        return [
            Look(start >= -1, _match(cost, int(start), int(stop), own))
            for (cost, start, stop), own in zip(found.tolist(), beat, strict=True)
        ]

    def _by_integers(self, asking: Ints, trajectory: Frames, beat: Floats) -> Floats | None:
        """Cost, start and stop [a 3]; None where integers can't tell."""
        if self._whole is None:
            return None
        stacked, rows = self._whole.stacked, self._whole.rows
        plain = self._whole.plain(trajectory)
        is_double = plain.dtype == np.float64
        height = -(-len(plain) // halving.FRAMES) * halving.FRAMES
        products = self._buffers.get(
            "products", np.float32, len(asking) * height, self._whole.columns
        )
        told = cells.looks_by_integers(
            rows,
            stacked.frames,
            stacked.borders,
            plain.view(np.uint16) if plain.dtype == np.float16 else plain,
            rows.mean if is_double else rows.single_mean,
            rows.scale if is_double else np.float32(rows.scale),
            asking,
            beat,
            self.code,
            self._whole.room,
            products,
            found := np.empty((len(asking), 3)),
        )
        return found if told else None

    def _by_singles(self, asking: Ints, values: Frames, beat: Floats) -> Floats | None:
        """Cost, start and stop [a 3]; None where no bounds are to be had."""
        if self._moved is None or not self._moved.usable:
            return None
        moved = self._buffers.get("moved", np.float32, *values.shape)
        squares = np.empty(len(values))
        if not self._moved.take(values, moved, squares):
            return None
        stacked, beta = self._moved.stacked, self._moved.beta(squares)
        found = np.empty((len(asking), 3))
        cells.looks(
            stacked.frames, stacked.borders, self._moved.rows, self._moved.alpha, stacked.scale,
            values, moved, beta, asking, beat, self.code, self.half, found,
        )  # fmt: skip
        return found

    def align(self, q: int, trajectory: Frames) -> Alignment | None:
        """The best match of query number q in a trajectory [m d]; it is taken as valid."""
        (look,) = self.look([q], trajectory, [np.inf])
        return look.match


@dataclass(frozen=True)
class Look:
    """What came of one query at one trajectory."""

    evaluated: bool
    """False where a bound was enough to tell that it costs more than what is to be beaten"""
    match: Alignment | None
    """None where no path fits, or where it costs more than what is to be beaten"""


def _match(cost: float, start: int, stop: int, beat: float) -> Alignment | None:
    return Alignment(cost, start, stop) if cost < np.inf and cost <= beat else None
