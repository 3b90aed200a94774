"""Plan how a tilted hand grasps an object and brings it to a pose.

The hand tilts from pointing down towards pointing ahead. It can tilt before the grasp, and then the
object stays upright, or after the grasp, which tilts the object too:

    grasped with a tilt: a mug stays upright        tilted when held: a book goes in foot first

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
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

from strap.libero.expert.grasping import Grasp, count_tilted_hits, find_grasps, is_firm
from strap.libero.expert.kinematics import Kinematics
from strap.libero.expert.motion import point_down, tilt_towards
from strap.libero.expert.placing import MAX_YAW, rotate, select_distinct
from strap.libero.expert.scene import UP, Array, Scene

N_TILTED_GRASPS = 16  # number of cheapest grasps to combine with poses, for each tilt
MAX_PAIRS = 8  # cheapest pairs of grasp and pose for which the arm's joints are checked
SWEEP = np.arange(0.0, 0.2, 0.03)  # metres before its place at which the path is checked
MIN_JOINT_MARGIN = 0.12  # smallest distance in radians of the arm's joints from their limits
CONTACT, CLEAR = 0.004, 0.018  # metres from obstacles: too close, and far enough
BACKWARDS = -0.3  # cosine to the direction away from its base below which the arm can't tilt


@dataclass(frozen=True)
class Tilt:
    """The tilts of the hand, in radians, and their direction."""

    ahead: Array  # [3] the horizontal direction at the place
    before: float  # tilt of the hand before the grasp
    after: float  # tilt of hand and object after it
    turn: float  # of hand and object about the vertical between the two

    @property
    def carried_turn(self) -> Rotation:
        """The rotation of hand and object from grasp to place."""
        return tilt_towards(self.ahead, self.after) * Rotation.from_euler("z", self.turn)


@dataclass(frozen=True)
class ReleasePose:
    """A pose in which an object is let go."""

    origin: Array  # [3]
    shape: Array  # [point, 3] the object's points, relative to its origin
    cost: float


@dataclass(frozen=True)
class TiltedTransfer:
    """A grasp with a tilted hand, and the motion of hand and object to their place."""

    position: Array  # [3] of the grip point at the grasp
    hand: Rotation  # at the grasp
    carried_turn: Rotation  # of hand and object between grasp and place
    origin: Array  # [3] of the object when it is let go
    bottom: float  # height of the object's lowest point above its origin there
    approach: Array  # [3] the direction of the last part of the motion
    cost: float

    def path(self, origin: Array) -> list[tuple[Array, Rotation]]:
        """Return the poses of the hand from the grasp to the place.

        origin: [3] of the object at the grasp.
        """
        hand = self.carried_turn * self.hand
        placed = self.origin + self.carried_turn.apply(self.position - origin)
        return [
            (self.position - self.hand.as_matrix()[:, 2] * 0.1, self.hand),
            (self.position, self.hand),
            (self.position + UP * 0.08, self.hand),
            (placed - self.approach * SWEEP[-1], hand),
            (placed, hand),
        ]


class TransferSearch:
    """The search for the cheapest tilted transfer of one object to one place in one direction."""

    def __init__(
        self, scene: Scene, name: str, place: Array, approach: Array, rng: np.random.Generator
    ) -> None:
        self.scene, self.name, self.approach, self.rng = scene, name, approach, rng
        self.obstacles = scene.obstacles(without=[name])
        self.near_place = _near_and_table(scene, self.obstacles, place)
        is_close = np.linalg.norm(self.obstacles[:, :2] - place[:2], axis=1) < 0.45
        self.tree = cKDTree(self.obstacles[is_close])
        self.kinematics = Kinematics(scene)
        self.best: TiltedTransfer | None = None

    def consider(self, tilt: Tilt, poses: Iterable[ReleasePose]) -> None:
        """Search transfers with this tilt to these poses; keep the cheapest so far in `best`."""
        free = self._free_poses(poses)
        if not free or (self.best is not None and free[0].cost >= self.best.cost):
            return
        found = self._combine(self._grasps(tilt), free, tilt)
        if found is not None and (self.best is None or found.cost < self.best.cost):
            self.best = found

    def _free_poses(self, poses: Iterable[ReleasePose]) -> list[ReleasePose]:
        """Return the poses with a free path, cheapest first; narrow paths cost more."""
        free = []
        for pose in poses:
            points = pose.shape[:: max(1, len(pose.shape) // 250)] + pose.origin
            gap = CLEAR
            for back in SWEEP:
                moved = points - self.approach * back
                gaps = self.tree.query(moved, distance_upper_bound=CLEAR)[0]
                gap = min(gap, float(gaps.min()))
                if gap < CONTACT:
                    break
            else:
                free.append(replace(pose, cost=pose.cost + 2.0 * (CLEAR - gap)))
        return sorted(free, key=lambda pose: pose.cost)

    def _grasps(self, tilt: Tilt) -> list[tuple[Array, Rotation, float]]:
        """Return grasps with the given tilt of the hand: position, hand, cost."""
        scene, ahead = self.scene, rotate(tilt.ahead, -tilt.turn)
        cloud, centre = scene.point_cloud(self.name), scene.centre_of_mass(self.name)
        base = scene.base_position()
        outwards = (centre - base)[:2] / np.linalg.norm((centre - base)[:2])
        if tilt.before > 0 and ahead[:2] @ outwards < BACKWARDS:
            return []
        around = _near_and_table(scene, self.obstacles, centre)
        # In the frame of the tilted hand, the world is tilted and the hand points down.
        tilted = tilt_towards(ahead, tilt.before)
        cloud, around, base = (
            tilted.inv().apply(points - centre) for points in (cloud, around, base[None])
        )

        def is_good(grasp: Grasp) -> bool:
            return abs(grasp.yaw + tilt.turn) < MAX_YAW and is_firm(
                cloud, grasp.position, point_down(grasp.yaw)
            )

        found = find_grasps(cloud, around, np.zeros(3), base[0], self.rng)
        return [
            (
                tilted.apply(grasp.position) + centre,
                tilted * point_down(grasp.yaw),
                grasp.cost + 0.02 * tilt.before,
            )
            for grasp in select_distinct(filter(is_good, found), N_TILTED_GRASPS)
        ]

    def _combine(
        self, grasps: list[tuple[Array, Rotation, float]], poses: list[ReleasePose], tilt: Tilt
    ) -> TiltedTransfer | None:
        """Return the cheapest grasp and pose with a free and reachable path."""
        origin, carried_turn = self.scene.origin(self.name), tilt.carried_turn
        n_checked = 0
        for (position, hand, cost), pose in sorted(
            product(grasps, poses), key=lambda pair: pair[0][2] + pair[1].cost
        ):
            grip, turned = pose.origin + carried_turn.apply(position - origin), carried_turn * hand
            if any(
                count_tilted_hits(
                    self.near_place, grip - self.approach * back, turned, margin=0.005
                )
                for back in SWEEP
            ):
                continue
            bottom, total = float(pose.shape[:, 2].min()), cost + pose.cost
            found = TiltedTransfer(
                position, hand, carried_turn, pose.origin, bottom, self.approach, total
            )
            swapped = replace(found, hand=swap_fingers(hand))
            margins = [self.kinematics.joint_margin(plan.path(origin)) for plan in (found, swapped)]
            if max(margins) > MIN_JOINT_MARGIN:
                return found if margins[0] >= margins[1] else swapped
            n_checked += 1
            if n_checked >= MAX_PAIRS:
                break
        return None


def swap_fingers(hand: Rotation) -> Rotation:
    """Return the rotation of a hand after half a turn about its axis."""
    return hand * Rotation.from_euler("z", np.pi)


def _near_and_table(scene: Scene, points: Array, centre: Array) -> Array:
    """Return the points near a place, and points of the table there."""
    near = points[np.linalg.norm(points[:, :2] - centre[:2], axis=1) < 0.35]
    steps = np.arange(-0.3, 0.3, 0.015)
    x, y = np.meshgrid(centre[0] + steps, centre[1] + steps)
    table = np.stack([x.ravel(), y.ravel(), np.full(x.size, scene.table_height() - 0.004)], axis=1)
    return np.concatenate([near, table])
