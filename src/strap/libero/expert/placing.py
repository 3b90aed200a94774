"""Plan where to put an object down so that a goal holds, and how to grasp it for that."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from scipy.spatial import cKDTree

from strap.libero.expert.grasping import Grasp, count_hits, find_grasps
from strap.libero.expert.scene import Array, Region, Scene

TURNS = np.linspace(-np.pi / 2, np.pi / 2, 13)
DROPS = (0.0, 0.02, 0.04, 0.07, 0.10, 0.13)  # metres above the spot at which to let go
N_GRASPS = 40  # number of cheapest grasps to combine with spots
N_SPOTS = 60  # number of cheapest spots to try
MAX_YAW = 1.9
POINT_STRIDE = 3  # tests for contacts use every third point of an object
MARGIN = 0.012  # metres between the object's origin and a region's border
NARROW = 0.035  # half width of a compartment below which objects only fit along its axes


@dataclass(frozen=True)
class Spot:
    """A pose of an object at its goal."""

    origin: Array  # [3] of the object when it stands there
    turn: float  # by which to turn it about the vertical
    cost: float


@dataclass(frozen=True)
class Transfer:
    """A grasp and a spot for the object; `drop` is the height above the spot at which to let go."""

    grasp: Grasp
    spot: Spot
    drop: float
    cost: float


def plan_transfer(
    scene: Scene,
    name: str,
    target: str,
    *,
    inside: bool,
    shared: bool = False,
    rng: np.random.Generator,
) -> Transfer | None:
    """Return the cheapest transfer of `name` to `target` that the hand can follow, or None.

    inside: the goal is `in`, not `on`; shared: other objects must fit there too.
    """
    cloud, origin = scene.point_cloud(name), scene.origin(name)
    obstacles = scene.obstacles(without=[name])
    centre = scene.centre_of_mass(name)
    grasps = find_grasps(cloud, obstacles, centre, scene.base_position(), rng)
    spots = find_spots(scene, name, target, inside=inside, shared=shared)
    best: Transfer | None = None
    for grasp in select_distinct(grasps, N_GRASPS):
        for spot in spots:
            if best is not None and grasp.cost + spot.cost >= best.cost:
                break
            found = _combine(grasp, spot, origin, obstacles)
            if found is not None and (best is None or found.cost < best.cost):
                best = found
    return best


def _combine(grasp: Grasp, spot: Spot, origin: Array, obstacles: Array) -> Transfer | None:
    """Return the transfer with the smallest drop at which the hand fits, or None."""
    yaw = grasp.yaw + spot.turn
    if abs(yaw) > MAX_YAW:
        return None
    hand = spot.origin + rotate(grasp.position - origin, spot.turn)
    near = obstacles[np.linalg.norm(obstacles[:, :2] - hand[:2], axis=1) < 0.2]
    for drop in DROPS:
        if count_hits(near, hand + [0, 0, drop + 0.005], yaw, margin=0.006) == 0:
            return Transfer(grasp, spot, drop, grasp.cost + spot.cost + drop)
    return None


def find_spots(
    scene: Scene, name: str, target: str, *, inside: bool, shared: bool = False
) -> list[Spot]:
    """Return poses at which the goal would hold, cheapest first."""
    region = scene.region(target)
    cloud, origin = scene.point_cloud(name), scene.origin(name)
    obstacles = scene.obstacles(without=[name])
    near = obstacles[np.linalg.norm(obstacles[:, :2] - region.centre[:2], axis=1) < 0.4]
    tree = cKDTree(near) if len(near) else None
    shape = cloud - origin
    is_narrow = inside and float(region.half[:2].min()) < NARROW
    spots = []
    for turn in align_turns(shape) if is_narrow else TURNS:
        turned = rotate(shape, float(turn))
        for place in _places(region, turned, inside, shared):
            height = _support_height(scene, region, turned, place, near, inside)
            resting = np.array([*place, height - turned[:, 2].min() + 0.004])
            cost = _cost(region, turned, resting, tree, origin, inside)
            spots.append(Spot(resting, float(turn), cost + 0.04 * abs(float(turn))))
    if is_narrow:
        spots = penalize_height(spots)
    return sorted(spots, key=lambda spot: spot.cost)[:N_SPOTS]


def penalize_height(spots: list[Spot]) -> list[Spot]:
    """Add cost to spots on top of a compartment's walls instead of inside it."""
    floor = min(float(spot.origin[2]) for spot in spots)
    return [replace(spot, cost=spot.cost + 2.0 * (spot.origin[2] - floor)) for spot in spots]


def align_turns(shape: Array) -> Array:
    """Return the turns [4 or 5] that align an object's long side with one of the world's axes."""
    covariance = np.cov(shape[:, :2].T)
    long_axis = np.linalg.eigh(covariance)[1][:, 1]
    turns = np.pi / 2 * np.arange(-2, 3) - np.arctan2(long_axis[1], long_axis[0])
    return np.asarray(turns[np.abs(turns) <= MAX_YAW])


def rotate(points: Array, angle: float) -> Array:
    """Return points [..., 3] turned about the vertical."""
    cos, sin = np.cos(angle), np.sin(angle)
    return np.asarray(points @ np.array([[cos, sin, 0.0], [-sin, cos, 0.0], [0.0, 0.0, 1.0]]))


def _places(region: Region, shape: Array, inside: bool, shared: bool) -> list[Array]:
    """Return candidate positions [2] of the origin: a grid over the region's allowed part."""
    if region.is_object:  # `on` an object: one origin above the other
        return [region.centre[:2]]
    middle = (shape[:, :2].min(0) + shape[:, :2].max(0)) / 2
    allowed = np.maximum(region.half[:2] - MARGIN, 0.0)
    if shared and not inside:
        # Side by side across their narrow side, one each side of the middle.
        spans = np.ptp(shape[:, :2], axis=0)
        aside = np.eye(2)[int(np.argmin(spans))] * np.minimum(allowed, spans / 2 + 0.006)
        return [region.centre[:2] + aside, region.centre[:2] - aside]
    if not inside:
        allowed = np.minimum(allowed, np.maximum(0.5 * region.half[:2], 0.0))
    axes = [np.unique(np.linspace(-side, side, 5 if side > 0.01 else 1)) for side in allowed]
    grid = [region.centre[:2] + np.array([x, y]) for x in axes[0] for y in axes[1]]
    if inside:
        grid.append(region.centre[:2] + np.clip(-middle, -allowed, allowed))
    return grid


def _support_height(
    scene: Scene, region: Region, shape: Array, place: Array, obstacles: Array, inside: bool
) -> float:
    """Return the height of the surface on which the object will stand at a place."""
    floor = scene.table_height()
    foot = np.unique(shape[shape[:, 2] < shape[:, 2].min() + 0.012][:, :2].round(3), axis=0) + place
    ceiling = region.high[2] - 0.01 if inside else np.inf
    low, high = foot.min(0) - 0.006, foot.max(0) + 0.006
    within = np.all((obstacles[:, :2] > low) & (obstacles[:, :2] < high), axis=1)
    below = obstacles[within & (obstacles[:, 2] < ceiling)]
    if len(below) == 0:
        return floor
    gaps, _ = cKDTree(foot).query(below[:, :2], distance_upper_bound=0.006)
    under = below[np.isfinite(gaps)]
    if region.is_object and len(under):
        # A plate or bowl: its middle counts, not a rim that the foot might touch.
        inner = under[np.linalg.norm(under[:, :2] - place, axis=1) < 0.03]
        under = inner if len(inner) else under
    return max(floor, float(under[:, 2].max())) if len(under) else floor


def _cost(
    region: Region, shape: Array, resting: Array, tree: cKDTree | None, origin: Array, inside: bool
) -> float:
    """Return a pose's cost: for being off-centre, far away, on or against other objects."""
    middle = resting[:2] + ((shape[:, :2].min(0) + shape[:, :2].max(0)) / 2 if inside else 0.0)
    cost = 0.5 * float(np.linalg.norm(middle - region.centre[:2]))
    cost += 0.05 * float(np.linalg.norm(resting[:2] - origin[:2]))
    # Standing on top of another object in the region is not intended.
    cost += 3.0 * max(0.0, float(resting[2] + shape[:, 2].min()) - float(region.high[2]) - 0.035)
    if tree is not None:
        body = shape[shape[:, 2] > shape[:, 2].min() + 0.008][::POINT_STRIDE] + resting
        touching = np.isfinite(tree.query(body, distance_upper_bound=0.006)[0])
        cost += 1.5 * float(np.mean(touching))
    return cost


def select_distinct(grasps: Iterable[Grasp], count: int) -> list[Grasp]:
    """Return the first `count` grasps, without near-copies of earlier ones."""
    selected: list[Grasp] = []
    for grasp in grasps:
        if all(
            np.linalg.norm(grasp.position - other.position) > 0.008
            or abs(grasp.yaw - other.yaw) > 0.2
            for other in selected
        ):
            selected.append(grasp)
        if len(selected) >= count:
            break
    return selected
