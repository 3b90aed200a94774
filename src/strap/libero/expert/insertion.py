"""Where a leaning hand brings an object: under a cover from the front, or down between things."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from strap.libero.expert.placing import find_spots
from strap.libero.expert.scene import Region, Scene
from strap.libero.expert.tilted_transfer import Lean, Pose, Reach, Search

Array = NDArray[np.float64]

COVERED = 0.8  # of the middle of a region, from which on it is reached from the front
TURNS = np.linspace(-np.pi / 2, np.pi / 2, 7)  # of the object about the vertical
# Turns of the hand before the grasp, and of hand and object after it, radians; under a cover …
LEANS = ((0.6, 0.0), (0.85, 0.0), (1.1, 0.0), (1.35, 0.0), (0.0, 0.75), (0.0, 1.0), (0.0, 1.35))
# … and down between things, where an upright hand does not fit or an upright object is too tall
LEANS_DOWN, LEANS_TALL = ((0.4, 0.0), (0.7, 0.0)), ((0.0, 0.8), (0.0, 1.1))
DIRECTIONS = 8
SPOTS = 6
DROPS = (0.0, 0.03, 0.06, 0.10)  # metres above its place at which to let go
INNER = 0.012  # the object's origin stays this far inside the region
INNER_LEANING = 0.035  # … where it is let go leaning, and slides as it falls
LIFT = 0.008  # metres above its place at which an object is brought in and let go
DOWN = np.array([0.0, 0.0, -1.0])


def is_covered(scene: Scene, region: Region) -> bool:
    """Whether a region has a roof, so that nothing can be put down into it from above."""
    if region.parent is None or region.parent == region.name:
        return False
    cloud = scene.cloud(region.parent)
    above = cloud[cloud[:, 2] > region.centre[2] + 0.5 * region.half[2]][:, :2]
    axes = [np.linspace(-side, side, 9) for side in 0.6 * region.half[:2]]
    floor = region.centre[:2] + np.array(list(product(*axes)))
    gaps = cKDTree(above).query(floor)[0] if len(above) else np.full(len(floor), np.inf)
    return float(np.mean(gaps < 0.015)) > COVERED


def way_in(scene: Scene, region: Region) -> Array:
    """The horizontal direction [3] in which a covered region is entered: against its open side."""
    cloud = scene.cloud(str(region.parent))
    level = cloud[np.abs(cloud[:, 2] - region.centre[2]) < 0.6 * region.half[2]]
    offset = level[:, :2] - region.centre[:2]

    def blocked(direction: Array) -> int:
        along = offset @ direction
        across = np.abs(offset @ np.array([-direction[1], direction[0]]))
        depth = float(np.abs(direction) @ region.half[:2])
        width = float(np.abs(direction[::-1]) @ region.half[:2])
        before = (along > 0.3 * depth) & (along < depth + 0.1) & (across < 0.6 * width)
        return int(np.count_nonzero(before))

    sides = [np.array(side) for side in ((1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0))]
    front = min(sides, key=blocked)
    return np.array([-front[0], -front[1], 0.0])


def plan_insertion(
    scene: Scene, name: str, target: str, *, rng: np.random.Generator
) -> Reach | None:
    """The cheapest way of bringing `name` into the covered region `target`, or None."""
    region = scene.region(target)
    inwards = way_in(scene, region)
    search = Search(scene, name, region.centre - 0.1 * inwards, inwards, rng)
    for (before, after), turn in product(LEANS, TURNS):
        lean = Lean(inwards, before, after, float(turn))
        search.consider(lean, _poses_inside(scene, name, region, lean))
    return search.best


def plan_lowering(
    scene: Scene, name: str, target: str, *, inside: bool, rng: np.random.Generator
) -> Reach | None:
    """The cheapest way of lowering `name` to `target` with a hand that leans, or None."""
    region = scene.region(target)
    search = Search(scene, name, region.centre, DOWN, rng)
    tall = inside and is_too_tall(scene, name, target)
    upright = [] if tall else list(_poses_upright(scene, name, target, inside))
    angles = 2 * np.pi * np.arange(DIRECTIONS) / DIRECTIONS
    for (before, after), angle in product(LEANS_TALL if tall else LEANS_DOWN, angles):
        lean = Lean(np.array([np.cos(angle), np.sin(angle), 0.0]), before, after, 0.0)
        search.consider(lean, _poses_leaning(scene, name, region, lean) if tall else upright)
    return search.best


def is_too_tall(scene: Scene, name: str, target: str) -> bool:
    """Whether an object that stands upright in a region has its origin above it."""
    spots = find_spots(scene, name, target, inside=True)
    return all(spot.origin[2] > scene.region(target).high[2] + 0.008 for spot in spots)


def _poses_inside(scene: Scene, name: str, region: Region, lean: Lean) -> Iterator[Pose]:
    """Where the object may be let go under a cover, from its front to its back."""
    shape = lean.turning.apply(scene.cloud(name) - scene.origin(name))
    weight = lean.turning.apply(scene.centre_of_mass(name) - scene.origin(name))
    floor = _floor(scene, region)
    raised = floor > scene.table_height() + 0.01
    inwards, aside = lean.ahead, np.array([-lean.ahead[1], lean.ahead[0], 0.0])
    inner = INNER if lean.after == 0 else INNER_LEANING
    depth = max(0.0, float(np.abs(inwards) @ region.half) - inner)
    width = max(0.0, float(np.abs(aside) @ region.half) - INNER)
    middle = (shape.min(0) + shape.max(0)) / 2
    for along, across in product(np.linspace(-depth, depth, 9), np.linspace(-width, width, 7)):
        origin = region.centre + along * inwards + across * aside
        origin[2] = floor + LIFT - shape[:, 2].min()
        if not region.low[2] - 0.005 < origin[2] < region.high[2] - 0.003:
            continue
        off = origin + middle - region.centre
        if raised and (off - middle + weight) @ inwards < -depth:
            continue  # it would fall out
        cost = 0.6 * abs(float(off @ inwards)) + 0.3 * abs(float(off @ aside))
        # What is let go leaning, neither upright nor lying, falls over.
        cost += 0.03 * abs(lean.turn) + 0.06 * lean.after + 0.08 * np.sin(2 * lean.after)
        yield Pose(origin, shape, cost)


def _poses_upright(scene: Scene, name: str, target: str, inside: bool) -> Iterator[Pose]:
    """Where the object may be put down as it stands."""
    shape = scene.cloud(name) - scene.origin(name)
    spots = [
        spot for spot in find_spots(scene, name, target, inside=inside) if abs(spot.turn) < 0.01
    ]
    for spot, drop in product(spots[:SPOTS], DROPS):
        yield Pose(spot.origin + [0.0, 0.0, drop + 0.004], shape, spot.cost + drop)


def _poses_leaning(scene: Scene, name: str, region: Region, lean: Lean) -> Iterator[Pose]:
    """Where an object may be let go leaning, so that it comes to lie in the region."""
    shape = lean.turning.apply(scene.cloud(name) - scene.origin(name))
    middle = (shape.min(0) + shape.max(0)) / 2
    room = np.maximum(region.half[:2] - INNER_LEANING, 0.0)
    for x, y, drop in product(*(np.linspace(-side, side, 3) for side in room), DROPS):
        origin = region.centre + [x, y, 0.0]
        origin[2] = _floor(scene, region) + LIFT + drop - shape[:, 2].min()
        off = (origin + middle - region.centre)[:2]
        yield Pose(origin, shape, 0.5 * float(np.linalg.norm(off)) + drop)


def _floor(scene: Scene, region: Region) -> float:
    """The height of what a region's things stand on."""
    cloud = scene.cloud(str(region.parent))
    within = np.all(np.abs(cloud[:, :2] - region.centre[:2]) < 0.6 * region.half[:2], axis=1)
    below = cloud[within & (cloud[:, 2] < region.low[2] + 0.02)][:, 2]
    return max(scene.table_height(), float(below.max()) if len(below) else -np.inf)
