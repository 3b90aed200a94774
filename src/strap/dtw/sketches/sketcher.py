"""Sketches: what they are, how they are made, and why they never overestimate a distance.

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

Sketches are kept as integers of 16 bits times a scale of the sketch's own, as in `int16_bounds`:
processors multiply them as they are. How far rounding moved a sketch goes into its radius, which is
0 otherwise where g is 1. The query's sketch isn't rounded, but has a (tiny) error too. So every
cell of a path costs at least the sketches' distance minus radius and error. A sketch never changes
a result.
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
from strap.dtw.sketches.balls import fill_radii, find_centres
from strap.dtw.types import Floats, Frames, Ints, Shorts, Singles

SAMPLE_FRAMES = 8192  # frames from which the directions are found
CHUNK_FRAMES = 4096  # sketched at a time


@dataclass(frozen=True, eq=False)
class SketchBlock:
    """Sketches laid end to end: those of trajectory i are integers[offsets[i]:offsets[i + 1]]."""

    integers: Shorts  # [F r]
    scales: Singles  # [F 3]: scale of the integers, radius, squared norm
    offsets: Ints  # [t + 1]
    ids: Ints  # [t] global indices


@dataclass(frozen=True, eq=False)
class Sketches:
    """The sketches of some trajectories, of one kind."""

    sketcher: Sketcher
    blocks: Callable[[], Iterable[SketchBlock]]
    """all kinds of a store give the same trajectories in the same blocks"""


@dataclass(frozen=True, eq=False)
class Sketcher:
    """The map from frames to sketches, fitted to some data."""

    mean: Floats  # [d]
    basis: Singles  # [d r]
    every: int = 1
    """frames that a sketch stands for"""

    @classmethod
    def fit(cls, frames: Frames, *, size: int, every: int = 1) -> Sketcher:
        """Return the main directions of a sample [m d], for sketches of `size` numbers."""
        sample = np.asarray(frames, np.float64)
        mean = sample.mean(axis=0)
        centered = sample - mean
        _, vectors = np.linalg.eigh(centered.T @ centered)
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
        """η, rounded up: the sums of products that it is computed from are rounded too."""
        products = self._directions.T @ self._directions
        return float(np.linalg.norm(products - np.eye(len(products)))) + 1e-9

    @property
    def stretch(self) -> float:
        """How much longer than the frames' distance that of their exact sketches may be."""
        return math.sqrt(1 + self.skew * (1 + self.skew)) * (1 + 1e-12)

    def shorter(self, size: int, every: int = 1) -> Sketcher:
        """Return a sketcher with the same directions, fewer of them."""
        return Sketcher(self.mean, np.ascontiguousarray(self.basis[:, : size - 1]), every)

    def shares_directions(self, longer: Sketcher) -> bool:
        """Return whether its directions are the first ones of another."""
        count = self.basis.shape[1]
        return np.array_equal(self.mean, longer.mean) and np.array_equal(
            self.basis, longer.basis[:, :count]
        )

    def suits(self, steps: str) -> bool:
        """Return whether its sketches bound costs under these steps."""
        return self.every == 1 or steps == "strap"

    def exact(self, frames: Frames) -> Floats:
        """Return sketches [m r + 1] in float64."""
        centered = np.asarray(frames, np.float64) - self.mean
        coordinates = centered @ self._directions
        rest = centered - coordinates @ self._directions.T
        return np.concatenate([coordinates, np.linalg.norm(rest, axis=1, keepdims=True)], axis=1)

    def project(self, frames: Frames) -> tuple[Floats, Floats]:
        """Return coordinates [m r] along the directions, and squares [m] of the centered frames."""
        centered = as_doubles(frames) - self.mean
        return centered @ self._directions, np.einsum("md,md->m", centered, centered)

    def finish(self, coordinates: Floats, squares: Floats) -> tuple[Floats, Floats]:
        """Return sketches [m r + 1] for half the work, and how far each may be from the exact [m].

        With z = b − μ and c = Vᵀz the rest's square is |z|² − |c|² + cᵀ(VᵀV − I)c. The last term is
        left out: it is at most η|c|². Sums err by less than 4(d + r + 16)2⁻⁵²|z|². With e for both
        together a root x errs by at most √e, and by e/x.

        Args:
            coordinates, squares: as `project` gives them; further columns are left alone.
        """
        coordinates = coordinates[:, : self.basis.shape[1]]
        within = np.einsum("mr,mr->m", coordinates, coordinates)
        rest = np.sqrt(np.maximum(squares - within, 0))
        slack = 4 * (sum(self._directions.shape) + 16) * 2.0**-52 * squares + self.skew * within
        with np.errstate(divide="ignore", invalid="ignore"):
            errors = np.fmin(np.sqrt(slack), slack / rest) * 1.01 + np.sqrt(squares) * 1e-11
        return np.concatenate([coordinates, rest[:, None]], axis=1), errors

    def __call__(self, trajectory: Frames) -> tuple[Shorts, Singles]:
        """Return sketches [m // every, r + 1] of a trajectory [m d], and three numbers of each.

        Those are [m // every, 3]: the scale of its integers, the radius, which is ∞ where a sketch
        says nothing, and the sketch's squared norm.
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
            # The sums of `exact` err too, by far less than a millionth of their length.
            longest = np.linalg.norm(exact, axis=1).max(initial=0)
            radii = radii * (1 + 1e-6) + 1e-10 * longest + 1e-30
            radii[~np.isfinite(radii)] = np.inf
            squares[np.isnan(squares)] = 0  # of vectors that are very long, or no numbers
            scales = np.stack([scale, radii, round_down(squares)], axis=1).astype(np.float32)
        return integers, scales
