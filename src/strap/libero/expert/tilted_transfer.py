"""Holding an object with a hand that leans, and bringing it to a pose that way.

The hand is turned from pointing down towards pointing ahead. Part of that turn may be made before
the object is grasped, which is then carried upright, and part after, which leans the object:

    grasped leaning:  a mug stays upright        leaned when held:  a book goes in foot first

         ──────── cover                                ──────── cover
         │ ┌─┐ ╱╱ hand                                   ╱╱╲
         │ │ │╱╱                                        ╱ ╱╱╱ hand
         └─┴─┴────                                     ──────────
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

from strap.libero.expert.grasping import Grasp, find_grasps, is_firm, pose_hits
from strap.libero.expert.kinematics import Kinematics
from strap.libero.expert.motion import pointing_down, tilt_towards
from strap.libero.expert.placing import MAX_YAW, rotate, spread
from strap.libero.expert.scene import Scene

Array = NDArray[np.float64]

GRASPS = 16  # cheapest grasps that are looked at for each lean and turn
PAIRS = 8  # of grasp and pose whose reach is looked at, cheapest first
SWEEP = np.arange(0.0, 0.2, 0.03)  # metres before its place at which the way is checked
ROOM = 0.12  # radians by which the arm's joints stay away from their ends
TOUCHING, EASY = 0.004, 0.018  # metres from other things: too close, and far enough
BACKWARDS = -0.3  # cosine to the direction away from its base below which the arm can't lean


@dataclass(frozen=True)
class Lean:
    """How far the hand leans, in radians, and which way."""

    ahead: Array  # [3] the horizontal direction at the place
    before: float  # turn of the hand before the grasp
    after: float  # turn of hand and object after it
    turn: float  # of hand and object about the vertical between the two

    @property
    def turning(self) -> Rotation:
        """The turn of hand and object from grasp to place."""
        return tilt_towards(self.ahead, self.after) * Rotation.from_euler("z", self.turn)


@dataclass(frozen=True)
class Pose:
    """Where an object is let go."""

    origin: Array  # [3]
    shape: Array  # [n 3] the object's points, relative to its origin
    cost: float


@dataclass(frozen=True)
class Reach:
    """A grasp, and how hand and object get from it to their place."""

    position: Array  # [3] of the grip point at the grasp
    hand: Rotation  # at the grasp
    turning: Rotation  # of hand and object between grasp and place
    origin: Array  # [3] of the object where it is let go
    bottom: float  # height of the object's lowest point above its origin there
    way: Array  # [3] the direction of the last stretch
    cost: float

    def path(self, origin: Array) -> list[tuple[Array, Rotation]]:
        """Poses of the hand from the grasp, with the object's origin [3] there, to the place."""
        hand = self.turning * self.hand
        placed = self.origin + self.turning.apply(self.position - origin)
        return [
            (self.position - self.hand.as_matrix()[:, 2] * 0.1, self.hand),
            (self.position, self.hand),
            (self.position + [0.0, 0.0, 0.08], self.hand),
            (placed - self.way * SWEEP[-1], hand),
            (placed, hand),
        ]


class Search:
    """The search for the cheapest reach of one object to one place along one way."""

    def __init__(
        self, scene: Scene, name: str, place: Array, way: Array, rng: np.random.Generator
    ) -> None:
        self.scene, self.name, self.way, self.rng = scene, name, way, rng
        self.others = scene.obstacles(without=[name])
        self.near = with_table(scene, self.others, place)
        close = np.linalg.norm(self.others[:, :2] - place[:2], axis=1) < 0.45
        self.tree = cKDTree(self.others[close])
        self.arm = Kinematics(scene)
        self.best: Reach | None = None

    def consider(self, lean: Lean, poses: Iterable[Pose]) -> None:
        """Look for something better than the best so far."""
        passing = self._passing(poses)
        if not passing or (self.best is not None and passing[0].cost >= self.best.cost):
            return
        found = self._pair(self._grasps(lean), passing, lean)
        if found is not None and (self.best is None or found.cost < self.best.cost):
            self.best = found

    def _passing(self, poses: Iterable[Pose]) -> list[Pose]:
        """The poses to which the object itself has a free way, cheapest first; narrow ways cost."""
        kept = []
        for pose in poses:
            body = pose.shape[:: max(1, len(pose.shape) // 250)] + pose.origin
            gap = EASY
            for back in SWEEP:
                gaps = self.tree.query(body - self.way * back, distance_upper_bound=EASY)[0]
                gap = min(gap, float(gaps.min()))
                if gap < TOUCHING:
                    break
            else:
                kept.append(replace(pose, cost=pose.cost + 2.0 * (EASY - gap)))
        return sorted(kept, key=lambda pose: pose.cost)

    def _grasps(self, lean: Lean) -> list[tuple[Array, Rotation, float]]:
        """Grasps with the hand leaning as it must: position, hand, cost."""
        scene, ahead = self.scene, rotate(lean.ahead, -lean.turn)
        cloud, centre = scene.cloud(self.name), scene.centre_of_mass(self.name)
        base = scene.base()
        outwards = (centre - base)[:2] / np.linalg.norm((centre - base)[:2])
        if lean.before > 0 and ahead[:2] @ outwards < BACKWARDS:
            return []
        around = with_table(scene, self.others, centre)
        upright = tilt_towards(ahead, lean.before)
        seen = [upright.inv().apply(points - centre) for points in (cloud, around, base[None])]

        def is_good(grasp: Grasp) -> bool:
            return abs(grasp.yaw + lean.turn) < MAX_YAW and is_firm(
                seen[0], grasp.position, pointing_down(grasp.yaw)
            )

        found = find_grasps(seen[0], seen[1], np.zeros(3), seen[2][0], self.rng)
        return [
            (
                upright.apply(grasp.position) + centre,
                upright * pointing_down(grasp.yaw),
                grasp.cost + 0.02 * lean.before,
            )
            for grasp in spread(filter(is_good, found), GRASPS)
        ]

    def _pair(
        self, grasps: list[tuple[Array, Rotation, float]], poses: list[Pose], lean: Lean
    ) -> Reach | None:
        """The cheapest grasp and pose for which hand and arm pass along the whole way."""
        origin, turning = self.scene.origin(self.name), lean.turning
        looked_at = 0
        for (position, hand, cost), pose in sorted(
            product(grasps, poses), key=lambda pair: pair[0][2] + pair[1].cost
        ):
            grip, turned = pose.origin + turning.apply(position - origin), turning * hand
            if any(
                pose_hits(self.near, grip - self.way * back, turned, margin=0.005) for back in SWEEP
            ):
                continue
            bottom, total = float(pose.shape[:, 2].min()), cost + pose.cost
            found = Reach(position, hand, turning, pose.origin, bottom, self.way, total)
            swapped = replace(found, hand=hand * Rotation.from_euler("z", np.pi))
            rooms = [self.arm.room(plan.path(origin)) for plan in (found, swapped)]
            if max(rooms) > ROOM:
                return found if rooms[0] >= rooms[1] else swapped
            looked_at += 1
            if looked_at >= PAIRS:
                break
        return None


def with_table(scene: Scene, points: Array, centre: Array) -> Array:
    """The points near a place, and the table's."""
    near = points[np.linalg.norm(points[:, :2] - centre[:2], axis=1) < 0.35]
    steps = np.arange(-0.3, 0.3, 0.015)
    x, y = np.meshgrid(centre[0] + steps, centre[1] + steps)
    table = np.stack([x.ravel(), y.ravel(), np.full(x.size, scene.table_height() - 0.004)], axis=1)
    return np.concatenate([near, table])
