"""Short vectors that stand for frames in a first, cheap lower bound.

A sketch of a frame b holds its coordinates along the r main directions of the data and the length
of what is left over:

    S(b) = (Vᵀ(b − μ), |b − μ − VVᵀ(b − μ)|)          V [d r], columns orthonormal

Distances between sketches never exceed those between frames: with z = a − b the first part differs
by Vᵀz, the second by at most |z − VVᵀz|, and |Vᵀz|² + |z − VVᵀz|² = |z|². V is orthonormal only up
to η = |VᵀV − I|; then |S(a) − S(b)|² ≤ |z|²(1 + η(1 + η)), which `stretch` takes off.

Sketches are kept as float16: |rounded − exact| is computed for every frame and its largest value in
each trajectory kept as `error`; the query's sketch isn't rounded, but has a (tiny) error too. So
every cell of a path costs at least the sketches' distance minus both errors, and the same
recurrence over sketches, minus the path's cells times the errors, bounds the cost from below. A
sketch never changes a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from strap.dtw import kernels
from strap.dtw.bounds import Moved, certain
from strap.dtw.types import Block, Floats, Frames, Ints, Singles

SIZES = (16, 64, 256)  # numbers in a sketch, the length of the rest among them; short ones first
SAMPLE = 8192  # frames from which the directions are found
SLICE = 4096  # frames sketched at a time


@dataclass(frozen=True, eq=False)
class Sketcher:
    """The map from frames to sketches, fitted to some data."""

    mean: Floats  # [d]
    basis: Singles  # [d r]

    @classmethod
    def fit(cls, frames: Frames, *, size: int = SIZES[0]) -> Sketcher:
        """The main directions of a sample of frames [m d]."""
        sample = np.asarray(frames, np.float64)
        mean = sample.mean(axis=0)
        moved = sample - mean
        _, vectors = np.linalg.eigh(moved.T @ moved)
        rank = min(size - 1, sample.shape[1])
        return cls(mean, np.ascontiguousarray(vectors[:, ::-1][:, :rank], np.float32))

    @property
    def size(self) -> int:
        """Numbers in a sketch."""
        return int(self.basis.shape[1]) + 1

    @cached_property
    def _directions(self) -> Floats:
        return self.basis.astype(np.float64)

    @cached_property
    def _products(self) -> Floats:
        return self._directions.T @ self._directions

    @cached_property
    def stretch(self) -> float:
        """How much longer than the frames' distance that of their exact sketches may be."""
        eta = np.linalg.norm(self._products - np.eye(len(self._products)))
        return float(np.sqrt(1 + eta * (1 + eta))) * (1 + 1e-12)

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

    def shorter(self, size: int) -> Sketcher:
        """The same directions, fewer of them."""
        return Sketcher(self.mean, np.ascontiguousarray(self.basis[:, : size - 1]))

    def along(self, frames: Frames) -> tuple[Floats, Floats]:
        """Coordinates [m r] along the directions, and the squares [m] of the moved frames."""
        moved = np.asarray(frames, np.float64) - self.mean
        return moved @ self._directions, np.einsum("md,md->m", moved, moved)

    def quick(self, along: Floats, squares: Floats) -> tuple[Floats, Floats]:
        """Sketches [m r + 1] for half the work, and how far each may be from the exact one [m].

        With z = b − μ and c = Vᵀz the rest's square is |z|² − 2|c|² + cᵀVᵀVc. These sums err by at
        most e = 4(d + 2r + 16)2⁻⁵²|z|², so a root x by at most √e, and by e/x.

        Args:
            along, squares: as `along` gives them; further columns are left alone.
        """
        along = along[:, : self.basis.shape[1]]
        rest = np.einsum("mr,mr->m", along, along @ self._products - 2 * along) + squares
        rest = np.sqrt(np.maximum(rest, 0))
        terms = sum(self._directions.shape) + self.size + 16
        slack = 4 * terms * 2.0**-52 * squares
        with np.errstate(divide="ignore", invalid="ignore"):
            errors = np.fmin(np.sqrt(slack), slack / rest) * 1.01 + np.sqrt(squares) * 1e-11
        return np.concatenate([along, rest[:, None]], axis=1), errors

    def __call__(self, frames: Frames) -> tuple[Frames, Singles]:
        """Sketches [m r + 1] as float16, and how far rounding moved each [m], rounded up."""
        rounded = np.empty((len(frames), self.size), np.float16)
        errors = np.empty(len(frames), np.float32)
        for first in range(0, len(frames), SLICE):
            part = slice(first, first + SLICE)
            exact = self.exact(frames[part])
            with np.errstate(over="ignore"):
                rounded[part] = exact
            moved = np.linalg.norm(exact - rounded[part], axis=1)
            # The sums of `exact` err too, by far less than a millionth of their length.
            errors[part] = moved * (1 + 1e-6) + 1e-10 * np.linalg.norm(exact, axis=1) + 1e-30
        return rounded, errors


@dataclass(frozen=True, eq=False)
class Sketched:
    """The sketches of some trajectories, as `search_blocks` takes them."""

    sketcher: Sketcher
    blocks: Iterable[Block]
    """sketches instead of frames, global indices as in the search"""
    error: Callable[[int], float]
    """global index -> the largest error of that trajectory's sketches"""
    finer: Sequence[Finer] = ()
    """longer and longer ones, each for those that the ones before leave"""


@dataclass(frozen=True, eq=False)
class Finer:
    """Longer sketches of the same trajectories, read one by one."""

    sketcher: Sketcher
    fetch: Callable[[int], tuple[Frames, float]]
    """global index -> its sketches [m r + 1], and their largest error"""


class SketchFilter:
    """Lower bounds of every query's cost from sketches alone; for metric l2."""

    def __init__(
        self, sketcher: Sketcher, done: Sequence[tuple[Floats, Floats]], steps: str
    ) -> None:
        """`done` are the queries' sketches and their errors, as `Sketcher.quick` gives them."""
        self.stretch, self.steps, self.count = sketcher.stretch, steps, len(done)
        self._moved = Moved([sketches for sketches, _ in done], "l2")
        self._rows = np.array([[float(len(sketches))] for sketches, _ in done])
        self._errors = np.array([[errors.max()] for _, errors in done])

    @classmethod
    def ladder(
        cls, queries: Sequence[Frames], sketchers: Sequence[Sketcher], steps: str, pool: Executor
    ) -> list[SketchFilter]:
        """One for each sketcher; queries are projected once for those that share directions."""
        filters: dict[int, SketchFilter] = {}
        known: Sketcher | None = None
        for i in sorted(range(len(sketchers)), key=lambda i: -sketchers[i].size):
            sketcher = sketchers[i]
            if known is None or not sketcher.begins(known):
                known, projected = sketcher, list(pool.map(sketcher.along, queries))
            done = list(pool.map(sketcher.quick, *zip(*projected, strict=True)))
            filters[i] = cls(sketcher, done, steps)
        return [filters[i] for i in range(len(sketchers))]

    def bounds(
        self, sketches: Frames, offsets: Ints, errors: Floats, wanted: NDArray[np.bool_]
    ) -> Floats:
        """Lower bounds [q t] of the wanted pairs [q t]; 0 for the others.

        Args:
            sketches: of trajectories end to end [F r + 1], float16.
            offsets: where each begins [t + 1].
            errors: the largest error of each [t].
            wanted: which pairs; where no path fits, the bound is ∞.
        """
        lows = self._moved.low_costs(sketches, offsets, wanted, kernels.CODES[self.steps])
        if lows is None:
            return np.zeros(wanted.shape)
        usable = np.isfinite(errors)  # a number that float16 can't hold makes its error infinite
        cells = self._rows + np.diff(offsets) if self.steps == "classic" else self._rows
        sure = certain(lows, cells, self._moved.stacked.scale, np.ones(len(errors), np.bool_))
        off = cells * (self._errors + np.where(usable, errors, 0)) * (1 + 1e-9)
        sure = np.maximum((sure - off) * ((1 - 1e-9) / self.stretch), 0)
        return np.where(usable | np.isinf(sure), sure, 0)
