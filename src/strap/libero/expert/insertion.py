"""Plan where a tilted hand brings an object: under a cover from the front, or down from above."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
from scipy.spatial import cKDTree

from strap.libero.expert.placing import MARGIN, find_spots
from strap.libero.expert.scene import UP, Array, Region, Scene
from strap.libero.expert.tilted_transfer import ReleasePose, Tilt, TiltedTransfer, TransferSearch

COVERED = 0.8  # covered share of a region's middle above which it is entered from the front
INSERTION_TURNS = np.linspace(-np.pi / 2, np.pi / 2, 7)  # of the object about the vertical, radians
# Tilts of the hand before the grasp, and of hand and object after it, radians; under a cover …
TILTS = ((0.6, 0.0), (0.85, 0.0), (1.1, 0.0), (1.35, 0.0), (0.0, 0.75), (0.0, 1.0), (0.0, 1.35))
# … and from above, if an upright hand does not fit or an upright object is too tall
TILTS_DOWN, TILTS_TALL = ((0.4, 0.0), (0.7, 0.0)), ((0.0, 0.8), (0.0, 1.1))
N_DIRECTIONS = 8
N_UPRIGHT_SPOTS = 6
LOWERING_DROPS = (0.0, 0.03, 0.06, 0.10)  # metres above its place at which to let go
MARGIN_TILTED = 0.035  # as MARGIN, for an object that is let go tilted and slides as it falls
LIFT = 0.008  # metres above its place at which an object is brought in and let go


def is_covered(scene: Scene, region: Region) -> bool:
    """Return whether a region has a roof, so that nothing can be put into it from above."""
    if region.owner is None or region.is_object:
        return False
    cloud = scene.point_cloud(region.owner)
    above = cloud[cloud[:, 2] > region.centre[2] + 0.5 * region.half[2]][:, :2]
    axes = [np.linspace(-side, side, 9) for side in 0.6 * region.half[:2]]
    floor = region.centre[:2] + np.array(list(product(*axes)))
    gaps = cKDTree(above).query(floor)[0] if len(above) else np.full(len(floor), np.inf)
    return float(np.mean(gaps < 0.015)) > COVERED


def find_entry_direction(scene: Scene, region: Region) -> Array:
    """Return the horizontal direction [3] into a covered region, from its open side."""
    cloud = scene.point_cloud(str(region.owner))
    level = cloud[np.abs(cloud[:, 2] - region.centre[2]) < 0.6 * region.half[2]]
    offset = level[:, :2] - region.centre[:2]

    def count_blocking(direction: Array) -> int:
        along = offset @ direction
        across = np.abs(offset @ np.array([-direction[1], direction[0]]))
        depth = float(np.abs(direction) @ region.half[:2])
        width = float(np.abs(direction[::-1]) @ region.half[:2])
        before = (along > 0.3 * depth) & (along < depth + 0.1) & (across < 0.6 * width)
        return int(np.count_nonzero(before))

    sides = [np.array(side) for side in ((1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0))]
    front = min(sides, key=count_blocking)
    return np.array([-front[0], -front[1], 0.0])


def plan_insertion(
    scene: Scene, name: str, target: str, *, rng: np.random.Generator
) -> TiltedTransfer | None:
    """Return the cheapest transfer of `name` into the covered region `target`, or None."""
    region = scene.region(target)
    inwards = find_entry_direction(scene, region)
    search = TransferSearch(scene, name, region.centre - 0.1 * inwards, inwards, rng)
    for (before, after), turn in product(TILTS, INSERTION_TURNS):
        tilt = Tilt(inwards, before, after, float(turn))
        search.consider(tilt, _poses_inside(scene, name, region, tilt))
    return search.best


def plan_lowering(
    scene: Scene, name: str, target: str, *, inside: bool, rng: np.random.Generator
) -> TiltedTransfer | None:
    """Return the cheapest transfer that lowers `name` to `target` with a tilted hand, or None."""
    region = scene.region(target)
    search = TransferSearch(scene, name, region.centre, -UP, rng)
    is_tall = inside and is_too_tall(scene, name, target)
    upright = [] if is_tall else list(_poses_upright(scene, name, target, inside))
    angles = 2 * np.pi * np.arange(N_DIRECTIONS) / N_DIRECTIONS
    for (before, after), angle in product(TILTS_TALL if is_tall else TILTS_DOWN, angles):
        tilt = Tilt(np.array([np.cos(angle), np.sin(angle), 0.0]), before, after, 0.0)
        search.consider(tilt, _poses_tilted(scene, name, region, tilt) if is_tall else upright)
    return search.best


def is_too_tall(scene: Scene, name: str, target: str) -> bool:
    """Return whether an object that stands upright in a region has its origin above it."""
    spots = find_spots(scene, name, target, inside=True)
    return all(spot.origin[2] > scene.region(target).high[2] + 0.008 for spot in spots)


def _poses_inside(scene: Scene, name: str, region: Region, tilt: Tilt) -> Iterator[ReleasePose]:
    """Yield poses at which the object can be let go under a cover, from front to back."""
    shape = tilt.carried_turn.apply(scene.point_cloud(name) - scene.origin(name))
    weight = tilt.carried_turn.apply(scene.centre_of_mass(name) - scene.origin(name))
    floor = _floor_height(scene, region)
    is_raised = floor > scene.table_height() + 0.01
    inwards, aside = tilt.ahead, np.array([-tilt.ahead[1], tilt.ahead[0], 0.0])
    margin = MARGIN if tilt.after == 0 else MARGIN_TILTED
    depth = max(0.0, float(np.abs(inwards) @ region.half) - margin)
    width = max(0.0, float(np.abs(aside) @ region.half) - MARGIN)
    middle = (shape.min(0) + shape.max(0)) / 2
    for along, across in product(np.linspace(-depth, depth, 9), np.linspace(-width, width, 7)):
        origin = region.centre + along * inwards + across * aside
        origin[2] = floor + LIFT - shape[:, 2].min()
        if not region.low[2] - 0.005 < origin[2] < region.high[2] - 0.003:
            continue
        offset = origin + middle - region.centre
        if is_raised and (offset - middle + weight) @ inwards < -depth:
            continue  # it would fall out
        cost = 0.6 * abs(float(offset @ inwards)) + 0.3 * abs(float(offset @ aside))
        # A tilted object, neither upright nor lying, falls over when it is let go.
        cost += 0.03 * abs(tilt.turn) + 0.06 * tilt.after + 0.08 * np.sin(2 * tilt.after)
        yield ReleasePose(origin, shape, cost)


def _poses_upright(scene: Scene, name: str, target: str, inside: bool) -> Iterator[ReleasePose]:
    """Yield poses at which the object can be put down upright."""
    shape = scene.point_cloud(name) - scene.origin(name)
    spots = [
        spot for spot in find_spots(scene, name, target, inside=inside) if abs(spot.turn) < 0.01
    ]
    for spot, drop in product(spots[:N_UPRIGHT_SPOTS], LOWERING_DROPS):
        yield ReleasePose(spot.origin + [0.0, 0.0, drop + 0.004], shape, spot.cost + drop)


def _poses_tilted(scene: Scene, name: str, region: Region, tilt: Tilt) -> Iterator[ReleasePose]:
    """Yield poses at which a tilted object can be let go, so that it ends up in the region."""
    shape = tilt.carried_turn.apply(scene.point_cloud(name) - scene.origin(name))
    middle = (shape.min(0) + shape.max(0)) / 2
    allowed = np.maximum(region.half[:2] - MARGIN_TILTED, 0.0)
    for x, y, drop in product(*(np.linspace(-side, side, 3) for side in allowed), LOWERING_DROPS):
        origin = region.centre + [x, y, 0.0]
        origin[2] = _floor_height(scene, region) + LIFT + drop - shape[:, 2].min()
        offset = (origin + middle - region.centre)[:2]
        yield ReleasePose(origin, shape, 0.5 * float(np.linalg.norm(offset)) + drop)


def _floor_height(scene: Scene, region: Region) -> float:
    """Return the height of the surface on which objects in a region stand."""
    cloud = scene.point_cloud(str(region.owner))
    within = np.all(np.abs(cloud[:, :2] - region.centre[:2]) < 0.6 * region.half[:2], axis=1)
    below = cloud[within & (cloud[:, 2] < region.low[2] + 0.02)][:, 2]
    return max(scene.table_height(), float(below.max()) if len(below) else -np.inf)
