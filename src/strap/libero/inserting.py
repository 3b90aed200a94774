"""Where to put an object that has to go in from the front, under a cover, and how to hold it.

The hand is turned from pointing down towards pointing inwards. Part of that turn may be made before
the object is grasped, which is then carried upright, and part after, which leans the object:

    grasped leaning:  a mug stays upright        leaned when held:  a book goes in foot first

         ──────── cover                                ──────── cover
         │ ┌─┐ ╱╱ hand                                   ╱╱╲
         │ │ │╱╱                                        ╱ ╱╱╱ hand
         └─┴─┴────                                     ──────────
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

from strap.libero.grasping import find_grasps, is_firm, pose_hits
from strap.libero.kinematics import Kinematics
from strap.libero.motion import pointing_down, tilt_towards
from strap.libero.placing import MAX_YAW, rotate, spread
from strap.libero.scene import Region, Scene

Array = NDArray[np.float64]

COVERED = 0.8  # of the middle of a region, from which on it is reached from the front
TURNS = np.linspace(-np.pi / 2, np.pi / 2, 7)  # of the object about the vertical
# (turn of the hand before the grasp, turn of hand and object after it), radians
LEANS = ((0.6, 0.0), (0.85, 0.0), (1.1, 0.0), (1.35, 0.0), (0.0, 0.75), (0.0, 1.0), (0.0, 1.35))
GRASPS = 16  # cheapest grasps that are looked at for each lean and turn
SWEEP = np.arange(0.0, 0.2, 0.03)  # metres before its place at which the way in is checked
ROOM = 0.12  # radians by which the arm's joints stay away from their ends
INNER = 0.012  # the object's origin stays this far inside the region
INNER_LEANING = 0.035  # … where it is let go leaning, and slides as it falls
LIFT = 0.008  # metres above its place at which an object is brought in and let go
TOUCHING, EASY = 0.004, 0.018  # metres from other things: too close, and far enough


@dataclass(frozen=True)
class Pose:
    """An object's pose at its goal."""

    origin: Array  # [3]
    turn: float  # about the vertical
    shape: Array  # [n 3] the object's points, relative to its origin
    cost: float


@dataclass(frozen=True)
class Insertion:
    """A grasp, and how hand and object go in from it."""

    position: Array  # [3] of the grip point at the grasp
    hand: Rotation  # at the grasp
    turning: Rotation  # of hand and object between grasp and place
    origin: Array  # [3] of the object where it is let go
    bottom: float  # height of the object's lowest point above its origin there
    inwards: Array  # [3] the horizontal direction of the way in
    cost: float

    def path(self, origin: Array) -> list[tuple[Array, Rotation]]:
        """Poses of the hand from the grasp, with the object's origin [3] there, to the place."""
        hand = self.turning * self.hand
        placed = self.origin + self.turning.apply(self.position - origin)
        return [
            (self.position - self.hand.as_matrix()[:, 2] * 0.1, self.hand),
            (self.position, self.hand),
            (self.position + [0.0, 0.0, 0.08], self.hand),
            (placed - self.inwards * SWEEP[-1], hand),
            (placed, hand),
        ]


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
        return int(np.count_nonzero((along > 0.3 * depth) & (along < depth + 0.1)
                                    & (across < 0.6 * width)))  # fmt: skip

    sides = [np.array(side) for side in ((1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0))]
    front = min(sides, key=blocked)
    return np.array([-front[0], -front[1], 0.0])


def plan_insertion(
    scene: Scene, name: str, target: str, *, rng: np.random.Generator
) -> Insertion | None:
    """The cheapest way of bringing `name` into the covered region `target`, or None."""
    region = scene.region(target)
    inwards = way_in(scene, region)
    others = scene.obstacles(without=[name])
    near = _with_table(scene, others, region.centre - 0.1 * inwards)
    tree = cKDTree(others[np.linalg.norm(others[:, :2] - region.centre[:2], axis=1) < 0.4])
    arm = Kinematics(scene)
    best: Insertion | None = None
    for before, after in LEANS:
        for turn in TURNS:
            poses = _passing(_poses(scene, name, region, inwards, after, turn), inwards, tree)
            if not poses or (best is not None and poses[0].cost >= best.cost):
                continue
            holds = list(_grasps(scene, name, rotate(inwards, -turn), before, turn, rng))
            found = _pair(holds, poses, scene.origin(name), inwards, after, near, arm)
            if found is not None and (best is None or found.cost < best.cost):
                best = found
    return best


def _grasps(
    scene: Scene, name: str, ahead: Array, lean: float, turn: float, rng: np.random.Generator
) -> Iterator[tuple[Array, Rotation, float]]:
    """Grasps with the hand leaning towards `ahead`: position, hand, cost."""
    cloud, centre, base = scene.cloud(name), scene.centre_of_mass(name), scene.base()
    outwards = (centre - base)[:2] / np.linalg.norm((centre - base)[:2])
    if lean > 0 and ahead[:2] @ outwards < -0.3:
        return  # the arm can't reach back towards its base
    around = _with_table(scene, scene.obstacles(without=[name]), centre)
    upright = tilt_towards(ahead, lean)
    seen = [upright.inv().apply(points - centre) for points in (cloud, around, base[None])]
    grasps = [
        grasp
        for grasp in find_grasps(seen[0], seen[1], np.zeros(3), seen[2][0], rng)
        if abs(grasp.yaw + turn) < MAX_YAW
        and is_firm(seen[0], grasp.position, pointing_down(grasp.yaw))
    ]
    for grasp in spread(grasps, GRASPS):
        hand = upright * pointing_down(grasp.yaw)
        yield upright.apply(grasp.position) + centre, hand, grasp.cost + 0.02 * lean


def _poses(
    scene: Scene, name: str, region: Region, inwards: Array, lean: float, turn: float
) -> list[Pose]:
    """Where the object may be let go, from the front of the region to its back."""
    turning = tilt_towards(inwards, lean) * Rotation.from_euler("z", turn)
    shape = turning.apply(scene.cloud(name) - scene.origin(name))
    weight = turning.apply(scene.centre_of_mass(name) - scene.origin(name))
    floor = _floor(scene, region)
    raised = floor > scene.table_height() + 0.01
    aside = np.array([-inwards[1], inwards[0], 0.0])
    inner = INNER if lean == 0 else INNER_LEANING
    depth = max(0.0, float(np.abs(inwards) @ region.half) - inner)
    width = max(0.0, float(np.abs(aside) @ region.half) - INNER)
    middle = (shape.min(0) + shape.max(0)) / 2
    poses = []
    for along in np.linspace(-depth, depth, 9):
        for across in np.linspace(-width, width, 7):
            origin = region.centre + along * inwards + across * aside
            origin[2] = floor + LIFT - shape[:, 2].min()
            if not region.low[2] - 0.005 < origin[2] < region.high[2] - 0.003:
                continue
            off = origin + middle - region.centre
            if raised and (off - middle + weight) @ inwards < -depth:
                continue  # it would fall out
            cost = 0.6 * abs(float(off @ inwards)) + 0.3 * abs(float(off @ aside))
            # What is let go leaning, neither upright nor lying, falls over.
            cost += 0.03 * abs(turn) + 0.06 * lean + 0.08 * np.sin(2 * lean)
            poses.append(Pose(origin, turn, shape, cost))
    return poses


def _pair(
    holds: list[tuple[Array, Rotation, float]],
    poses: list[Pose],
    origin: Array,
    inwards: Array,
    lean: float,
    near: Array,
    arm: Kinematics,
) -> Insertion | None:
    """The cheapest grasp and pose for which hand, object and arm pass along the whole way in."""
    pairs = sorted(product(holds, poses), key=lambda pair: pair[0][2] + pair[1].cost)
    tries = 0
    for (position, hand, cost), pose in pairs:
        turning = tilt_towards(inwards, lean) * Rotation.from_euler("z", pose.turn)
        grip, turned = pose.origin + turning.apply(position - origin), turning * hand
        ways = (grip - inwards * back for back in SWEEP)
        if any(pose_hits(near, at, turned, margin=0.005) for at in ways):
            continue
        bottom = float(pose.shape[:, 2].min())
        found = Insertion(position, hand, turning, pose.origin, bottom, inwards, cost + pose.cost)
        other = replace(found, hand=hand * Rotation.from_euler("z", np.pi))  # fingers swapped
        room, found = max(
            ((arm.room(plan.path(origin)), plan) for plan in (found, other)), key=lambda it: it[0]
        )
        tries += 1
        if room > ROOM:
            return found
        if tries >= 8:
            break
    return None


def _passing(poses: list[Pose], inwards: Array, tree: cKDTree) -> list[Pose]:
    """The poses with a free way in for the object itself, cheapest first; narrow ways cost."""
    kept = []
    for pose in poses:
        body = pose.shape[:: max(1, len(pose.shape) // 250)] + pose.origin
        gap = EASY
        for back in SWEEP:
            gaps = tree.query(body - inwards * back, distance_upper_bound=EASY)[0]
            gap = min(gap, float(gaps.min()))
            if gap < TOUCHING:
                break
        else:
            kept.append(replace(pose, cost=pose.cost + 2.0 * (EASY - gap)))
    return sorted(kept, key=lambda pose: pose.cost)


def _floor(scene: Scene, region: Region) -> float:
    """The height of what a region's things stand on."""
    cloud = scene.cloud(str(region.parent))
    within = np.all(np.abs(cloud[:, :2] - region.centre[:2]) < 0.6 * region.half[:2], axis=1)
    below = cloud[within & (cloud[:, 2] < region.low[2] + 0.02)][:, 2]
    return max(scene.table_height(), float(below.max()) if len(below) else -np.inf)


def _with_table(scene: Scene, points: Array, centre: Array) -> Array:
    """The points near a place, and the table's."""
    near = points[np.linalg.norm(points[:, :2] - centre[:2], axis=1) < 0.35]
    steps = np.arange(-0.3, 0.3, 0.015)
    x, y = np.meshgrid(centre[0] + steps, centre[1] + steps)
    table = np.stack([x.ravel(), y.ravel(), np.full(x.size, scene.table_height() - 0.004)], axis=1)
    return np.concatenate([near, table])
