"""Sketches: how they are computed, and why their distances never exceed those of frames.

A sketch of a frame b holds its first r principal components and the norm of the residual:

    S(b) = (Vᵀ(b − μ), |b − μ − VVᵀ(b − μ)|)          V [d r], columns orthonormal

Distances between sketches never exceed those between frames: with z = a − b the first part differs
by Vᵀz, the second by at most |z − VVᵀz|, and |Vᵀz|² + |z − VVᵀz|² = |z|². V is orthonormal only up
to η = |VᵀV − I|. Then |S(a) − S(b)|² ≤ |z|²(1 + η(1 + η)); bounds are divided by `stretch`.

Under steps `strap` one sketch can also stand for g frames (`every`). There each query frame is
matched with one trajectory frame, one or two frames after the previous one. Take g query frames aᵢ
of which the first is matched with frame m of block k, gk ≤ m < gk + g. They cost
Σ|S(aᵢ) − S(bᵢ)| ≥ g|ā − b̄|, the distance of the means. From the frames m of the block there are at
most g·2^(g−1) ways to match g frames. A ball with centre C(k) and radius R(k) contains the means b̄
of all ways, so the cost is at least g(|ā − C(k)| − R(k)). The next g query frames start g to 2g
frames after m, one or two blocks later. So means and centres are aligned under the same steps, with
a quarter of the cells for g = 2, a sixteenth for g = 4. The remaining query frames, fewer than g,
cost at least 0.

Sketches are stored as int16 numbers with a scale per sketch, as in `int16_bounds`, and multiplied
in this form. The rounding error of a sketch is added to its radius, which is otherwise 0 if g is 1.
The query's sketch is not rounded, but has a (tiny) error too. So every cell of a path costs at
least the sketches' distance minus radius and error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from strap.dtw.batching import as_doubles
from strap.dtw.cpu.int16.quantize import quantize
from strap.dtw.cpu.rounding import round_down
from strap.dtw.sketches.bounding_balls import fill_radii, find_centres
from strap.dtw.types import Floats, Frames, Ints, Shorts, Singles

SAMPLE_FRAMES = 8192  # frames to which the directions are fitted
CHUNK_FRAMES = 4096  # frames projected in one product


@dataclass(frozen=True, eq=False)
class SketchBlock:
    """Concatenated sketches: those of trajectory i are integers[offsets[i]:offsets[i + 1]]."""

    integers: Shorts  # [F r]
    scales: Singles  # [F 3]: scale of the integers, radius, squared norm
    offsets: Ints  # [t + 1]
    ids: Ints  # [t] global indices


@dataclass(frozen=True, eq=False)
class Sketches:
    """The sketches of some trajectories, of one kind."""

    sketcher: Sketcher
    blocks: Callable[[], Iterable[SketchBlock]]
    """the same trajectories in the same blocks for all kinds of one store"""


@dataclass(frozen=True, eq=False)
class Sketcher:
    """The map from frames to sketches: a principal component analysis."""

    mean: Floats  # [d] μ
    basis: Singles  # [d r] V, the directions
    every: int = 1
    """g: the number of frames that a sketch stands for"""

    @classmethod
    def fit(cls, frames: Frames, *, size: int, every: int = 1) -> Sketcher:
        """Fit the directions to a sample [m d], for sketches of `size` numbers."""
        sample = np.asarray(frames, np.float64)
        mean = sample.mean(axis=0)
        centered = sample - mean
        _, vectors = np.linalg.eigh(centered.T @ centered)
        rank = min(size - 1, sample.shape[1])
        return cls(mean, np.ascontiguousarray(vectors[:, ::-1][:, :rank], np.float32), every)

    @property
    def size(self) -> int:
        """The length of a sketch: r + 1."""
        return int(self.basis.shape[1]) + 1

    @cached_property
    def _directions(self) -> Floats:
        return self.basis.astype(np.float64)

    @cached_property
    def orthonormality_error(self) -> float:
        """η, plus a margin for rounding in its computation."""
        products = self._directions.T @ self._directions
        return float(np.linalg.norm(products - np.eye(len(products)))) + 1e-9

    @property
    def stretch(self) -> float:
        """The largest possible ratio of the distance of exact sketches to that of their frames."""
        eta = self.orthonormality_error
        return math.sqrt(1 + eta * (1 + eta)) * (1 + 1e-12)

    def shorter(self, size: int, every: int = 1) -> Sketcher:
        """Return a sketcher with only the first of these directions."""
        return Sketcher(self.mean, np.ascontiguousarray(self.basis[:, : size - 1]), every)

    def shares_directions(self, longer: Sketcher) -> bool:
        """Return whether these directions are the first directions of a longer sketcher."""
        count = self.basis.shape[1]
        return np.array_equal(self.mean, longer.mean) and np.array_equal(
            self.basis, longer.basis[:, :count]
        )

    def suits(self, steps: str) -> bool:
        """Return whether bounds from these sketches are valid under a step set."""
        return self.every == 1 or steps == "strap"

    def exact(self, frames: Frames) -> Floats:
        """Return the exact sketches [m, r + 1] of frames [m d], one per frame, in float64."""
        centered = np.asarray(frames, np.float64) - self.mean
        coordinates = centered @ self._directions
        rest = centered - coordinates @ self._directions.T
        return np.concatenate([coordinates, np.linalg.norm(rest, axis=1, keepdims=True)], axis=1)

    def project(self, frames: Frames) -> tuple[Floats, Floats]:
        """Return the components [m r] of frames, and their squared norms [m] after centering."""
        centered = as_doubles(frames) - self.mean
        return centered @ self._directions, np.einsum("md,md->m", centered, centered)

    def finish(self, coordinates: Floats, squares: Floats) -> tuple[Floats, Floats]:
        """Return sketches [m, r + 1] in half the time of `exact`, and error bounds [m].

        With z = b − μ and c = Vᵀz the residual's square is |z|² − |c|² + cᵀ(VᵀV − I)c. The last
        term is left out: it is at most η|c|². Sums err by less than 4(d + r + 16)2⁻⁵²|z|². If e is
        the sum of both, the error of the root x is at most √e, and at most e/x.

        Args:
            coordinates: components from `project`, also of a longer sketcher with these directions.
            squares: squared norms from `project`.
        """
        coordinates = coordinates[:, : self.basis.shape[1]]
        within = np.einsum("mr,mr->m", coordinates, coordinates)
        rest = np.sqrt(np.maximum(squares - within, 0))
        slack = 4 * (sum(self._directions.shape) + 16) * 2.0**-52 * squares
        slack += self.orthonormality_error * within
        with np.errstate(divide="ignore", invalid="ignore"):
            errors = np.fmin(np.sqrt(slack), slack / rest) * 1.01 + np.sqrt(squares) * 1e-11
        return np.concatenate([coordinates, rest[:, None]], axis=1), errors

    def __call__(self, trajectory: Frames) -> tuple[Shorts, Singles]:
        """Return the sketches [m // every, r + 1] of a trajectory [m d], and their numbers.

        The numbers [m // every, 3] are the scale of a sketch's integers, its radius (∞ if the
        sketch bounds nothing) and its squared norm.
        """
        exact = np.empty((len(trajectory), self.size))
        for first in range(0, len(trajectory), CHUNK_FRAMES):
            span = slice(first, first + CHUNK_FRAMES)
            exact[span] = self.exact(trajectory[span])
        with np.errstate(invalid="ignore", over="ignore"):
            centres = find_centres(exact, self.every) if self.every > 1 else exact
            integers, scale = np.zeros(centres.shape, np.int16), np.empty(len(centres), np.float32)
            radii, squares, errors = np.empty((3, len(centres)))
            quantize(centres, np.zeros(self.size), 1.0, integers, squares, errors, scale)
            rounded = np.multiply(integers, scale[:, None], dtype=np.float64)
            fill_radii(exact, self.every, rounded, radii)
            # This also covers the rounding errors of `exact`.
            longest = np.linalg.norm(exact, axis=1).max(initial=0)
            radii = radii * (1 + 1e-6) + 1e-10 * longest + 1e-30
            radii[~np.isfinite(radii)] = np.inf
            squares[np.isnan(squares)] = 0  # of frames that are NaN, ∞ or too large
            scales = np.stack([scale, radii, round_down(squares)], axis=1).astype(np.float32)
        return integers, scales
