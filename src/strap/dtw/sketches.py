"""Short vectors that stand for frames in a first, cheap lower bound.

A sketch of a frame b holds its coordinates along the r main directions of the data and the length
of what is left over:

    S(b) = (Vᵀ(b − μ), |b − μ − VVᵀ(b − μ)|)          V [d r], columns orthonormal

Distances between sketches never exceed those between frames: with z = a − b the first part differs
by Vᵀz, the second by at most |z − VVᵀz|, and |Vᵀz|² + |z − VVᵀz|² = |z|². V is orthonormal only up
to η = |VᵀV − I|; then |S(a) − S(b)|² ≤ |z|²(1 + η(1 + η)), which `stretch` takes off.

One sketch may also stand for g frames (`every`), under steps `strap`, where each query frame meets
one frame, one or two further on than the one before. Take g query frames aᵢ whose first meets frame
m of the block k, gk ≤ m < gk + g. They cost Σ|S(aᵢ) − S(bᵢ)| ≥ g|ā − b̄|, the distance of the means.
There are at most g·2^(g−1) ways from any m of the block through g frames: a ball with centre C(k)
and radius R(k) around their means b̄ holds them all, so the cost is at least g(|ā − C(k)| − R(k)).
The next g frames begin g to 2g frames after m, which is one or two blocks on: means and centres are
aligned under the steps of frames, with a quarter of the cells for g = 2, a sixteenth for g = 4.
What is left over of a query, less than g frames, costs at least 0.

Sketches are kept as integers of 16 bits, of which each is worth the sketch's own ρ, as in `halves`:
processors multiply them as they are. How far rounding moved a sketch goes into its radius, which is
0 otherwise where g is 1. The query's sketch isn't rounded, but has a (tiny) error too. So every
cell of a path costs at least the sketches' distance minus radius and error. A sketch never changes
a result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from strap.dtw import coarsening, halves, kernels
from strap.dtw.bounds import Moved, certain, round_down
from strap.dtw.halving import WHOLE
from strap.dtw.pieces import Stacked, as_doubles
from strap.dtw.types import Block, Floats, Frames, Singles, Sketched, Whole
from strap.dtw.wholes import LARGEST, LEAST, LONGEST
from strap.processors import processors

SAMPLE = 8192  # frames from which the directions are found
SLICE = 4096  # frames sketched at a time


@dataclass(frozen=True, eq=False)
class Sketcher:
    """The map from frames to sketches, fitted to some data."""

    mean: Floats  # [d]
    basis: Singles  # [d r]
    every: int = 1
    """frames that a sketch stands for"""

    @classmethod
    def fit(cls, frames: Frames, *, size: int, every: int = 1) -> Sketcher:
        """The main directions of a sample of frames [m d]."""
        sample = np.asarray(frames, np.float64)
        mean = sample.mean(axis=0)
        moved = sample - mean
        _, vectors = np.linalg.eigh(moved.T @ moved)
        rank = min(size - 1, sample.shape[1])
        return cls(mean, np.ascontiguousarray(vectors[:, ::-1][:, :rank], np.float32), every)

    @property
    def size(self) -> int:
        """Numbers in a sketch."""
        return int(self.basis.shape[1]) + 1

    @cached_property
    def _directions(self) -> Floats:
        return self.basis.astype(np.float64)

    @cached_property
    def skew(self) -> float:
        """η, or a little more: sums of products err too."""
        products = self._directions.T @ self._directions
        return float(np.linalg.norm(products - np.eye(len(products)))) + 1e-9

    @property
    def stretch(self) -> float:
        """How much longer than the frames' distance that of their exact sketches may be."""
        return math.sqrt(1 + self.skew * (1 + self.skew)) * (1 + 1e-12)

    def exact(self, frames: Frames) -> Floats:
        """Sketches [m r + 1] in float64."""
        moved = np.asarray(frames, np.float64) - self.mean
        along = moved @ self._directions
        rest = moved - along @ self._directions.T
        return np.concatenate([along, np.linalg.norm(rest, axis=1, keepdims=True)], axis=1)

    def begins(self, other: Sketcher) -> bool:
        """Whether its directions are another's first ones."""
        count = self.basis.shape[1]
        return np.array_equal(self.mean, other.mean) and np.array_equal(
            self.basis, other.basis[:, :count]
        )

    def shorter(self, size: int, every: int = 1) -> Sketcher:
        """The same directions, fewer of them."""
        return Sketcher(self.mean, np.ascontiguousarray(self.basis[:, : size - 1]), every)

    def suits(self, steps: str) -> bool:
        """Whether its sketches bound costs under these steps."""
        return self.every == 1 or steps == "strap"

    def along(self, frames: Frames) -> tuple[Floats, Floats]:
        """Coordinates [m r] along the directions, and the squares [m] of the moved frames."""
        moved = as_doubles(frames) - self.mean
        return moved @ self._directions, np.einsum("md,md->m", moved, moved)

    def quick(self, along: Floats, squares: Floats) -> tuple[Floats, Floats]:
        """Sketches [m r + 1] for half the work, and how far each may be from the exact one [m].

        With z = b − μ and c = Vᵀz the rest's square is |z|² − |c|² + cᵀ(VᵀV − I)c. The last term is
        left out: it is at most η|c|². Sums err by less than 4(d + r + 16)2⁻⁵²|z|². With e for both
        together a root x errs by at most √e, and by e/x.

        Args:
            along, squares: as `along` gives them; further columns are left alone.
        """
        along = along[:, : self.basis.shape[1]]
        within = np.einsum("mr,mr->m", along, along)
        rest = np.sqrt(np.maximum(squares - within, 0))
        slack = 4 * (sum(self._directions.shape) + 16) * 2.0**-52 * squares + self.skew * within
        with np.errstate(divide="ignore", invalid="ignore"):
            errors = np.fmin(np.sqrt(slack), slack / rest) * 1.01 + np.sqrt(squares) * 1e-11
        return np.concatenate([along, rest[:, None]], axis=1), errors

    def __call__(self, trajectory: Frames) -> tuple[Whole, Singles]:
        """Sketches [m // every, r + 1] of a trajectory [m d], and their scales [m // every, 3]:
        what an integer is worth, the radius, which is ∞ where a sketch says nothing, and the
        sketch's squared norm.
        """
        exact = np.empty((len(trajectory), self.size))
        for first in range(0, len(trajectory), SLICE):
            exact[first : first + SLICE] = self.exact(trajectory[first : first + SLICE])
        with np.errstate(invalid="ignore", over="ignore"):
            centres = coarsening.centres(exact, self.every) if self.every > 1 else exact
            numbers, worth = _as_integers(centres)
            radii = np.empty(len(numbers))
            coarsening.radii(exact, self.every, numbers * worth[:, None], radii)
            # The sums of `exact` err too, by far less than a millionth of their length.
            longest = np.linalg.norm(exact, axis=1).max(initial=0)
            radii = radii * (1 + 1e-6) + 1e-10 * longest + 1e-30
            radii[~np.isfinite(radii)] = np.inf
            squares = np.einsum("mr,mr->m", numbers, numbers, dtype=np.float64) * worth**2
            scales = np.stack([worth, radii, round_down(squares)], axis=1).astype(np.float32)
        return numbers, scales


def _as_integers(vectors: Floats) -> tuple[Whole, Floats]:
    """Vectors [m r] as integers, and what one of each is worth [m], a float32 number.

    They are 0 where a vector is very long, or no numbers.
    """
    worth = np.linalg.norm(vectors, axis=1) / LONGEST
    worth = np.maximum(worth, np.abs(vectors).max(axis=1, initial=0) / LARGEST)
    usable = (worth > LEAST) & (worth < 1 / LEAST)
    worth = np.where(usable, worth * (1 + 2.0**-20), 1).astype(np.float32).astype(np.float64)
    scaled = np.where(usable[:, None], vectors, 0) / worth[:, None]
    return np.rint(scaled).astype(np.int16), worth


@dataclass(frozen=True, eq=False)
class Sketches:
    """The sketches of some trajectories, of one kind, as `Sketcher` makes them."""

    sketcher: Sketcher
    blocks: Callable[[], Iterable[tuple[Block, Singles]]]
    """sketches instead of frames, global indices as in the search; and their scales. All kinds of a
    store give the same blocks"""


class SketchFilter:
    """Lower bounds of every query's cost from sketches alone; for metric l2."""

    def __init__(
        self, sketcher: Sketcher, done: Sequence[tuple[Floats, Floats]], steps: str
    ) -> None:
        """`done` are the queries' sketches and their errors, as `Sketcher.quick` gives them."""
        self.sketcher, self.steps, self.count = sketcher, steps, len(done)
        self._empty = np.array([[len(sketches) < sketcher.every] for sketches, _ in done])
        queries = [_means(sketches, sketcher.every) for sketches, _ in done]
        self._code = kernels.CODES[steps]
        stacked = Stacked.of(queries, "l2", moved=False)
        self._scale = stacked.scale
        self._low_costs: Callable[..., Singles | None]
        if halves.by_integers(sketcher.size) and stacked.is_ordinary:
            prepared = halves.Prepared(stacked, "l2", WHOLE, alone=True)
            self._low_costs = prepared.low_costs_of_sketches
        else:
            self._low_costs = Moved(stacked).low_costs
        self._rows = np.array([[float(len(rows))] for rows in queries])
        self._errors = np.array([[errors.max()] for _, errors in done])

    @classmethod
    def ladder(
        cls, queries: Sequence[Frames], sketchers: Sequence[Sketcher], steps: str, pool: Executor
    ) -> list[SketchFilter]:
        """One for each sketcher; queries are projected once for those that share directions."""
        frames, borders = np.concatenate([as_doubles(query) for query in queries]), _ends(queries)
        parts = np.array_split(frames, processors())  # products of few rows take as long as of many
        done: dict[int, list[tuple[Floats, Floats]]] = {}
        known: Sketcher | None = None
        made: dict[int, tuple[Floats, Floats]] = {}
        for i in sorted(range(len(sketchers)), key=lambda i: -sketchers[i].size):
            sketcher = sketchers[i]
            if known is None or not sketcher.begins(known):
                known, projected = sketcher, list(pool.map(sketcher.along, parts))
                made.clear()
            if sketcher.size not in made:
                found = zip(*pool.map(sketcher.quick, *zip(*projected, strict=True)), strict=True)
                rows, errors = (np.concatenate(own) for own in found)
                made[sketcher.size] = rows, errors
            rows, errors = made[sketcher.size]
            done[i] = [(rows[a:b], errors[a:b]) for a, b in pairwise(borders)]
        each = range(len(sketchers))
        return list(pool.map(lambda i: cls(sketchers[i], done[i], steps), each))

    def bounds(self, sketched: Sketched, wanted: NDArray[np.bool_]) -> Floats:
        """Lower bounds [q t] of the wanted pairs [q t], ∞ where no path fits; 0 for the others."""
        lows = self._low_costs(sketched, wanted, self._code)
        if lows is None:
            return np.zeros(wanted.shape)
        cells = (
            self._rows + (sketched.ends - sketched.begins)
            if self.steps == "classic"
            else self._rows
        )
        sure = certain(lows, cells, self._scale, np.ones(lows.shape[1], np.bool_))
        off = cells * self._errors * (1 + 1e-9)
        factor = self.sketcher.every * (1 - 1e-9) / self.sketcher.stretch
        return np.where(self._empty, 0, np.maximum((sure - off) * factor, 0))


def _ends(queries: Sequence[Frames]) -> list[int]:
    """Where each begins when they lie end to end, and where the last ends."""
    return [0, *accumulate(map(len, queries))]


def _means(sketches: Floats, every: int) -> Floats:
    """Means [n // g, r] of g sketches each; of all where there are fewer."""
    count = len(sketches) // every
    groups = sketches[: count * every].reshape(count, every, -1) if count else sketches[None]
    return np.asarray(groups.mean(axis=1), np.float64)
