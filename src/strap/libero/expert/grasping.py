"""Find grasps of an object, and check where the open hand fits.

The hand's frame: u along which the fingers close, v across, w up from the finger tips.

               ┌─────┐        wrist: |u| < 0.060, |v| < 0.048, w from 0.14
          ┌────┴─────┴────┐   palm: |u| < 0.105, |v| < 0.036, w from 0.045
          └─┬─┐       ┌─┬─┘
            │ │   w   │ │     fingers: |u| from 0.037 to 0.060, |v| < 0.013
            └─┘   ·u  └─┘     the grip point is at u = v = w = 0
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.spatial.transform import Rotation

from strap.libero.expert.scene import Array

MAX_WIDTH = 0.074  # widest object that fits between the fingers, metres
FINGER_IN, FINGER_OUT, FINGER_HALF = 0.037, 0.060, 0.013
PALM_LENGTH, PALM_HALF, PALM_LOW = 0.105, 0.036, 0.045
WRIST_LENGTH, WRIST_HALF, WRIST_LOW = 0.060, 0.048, 0.14
TIP_LENGTH = 0.012  # metres by which the finger tips extend below the grip point
DEPTHS = (0.032, 0.024, 0.016, 0.010)  # grip point below the local top of the object
N_YAWS = 24
MAX_SLANT = 0.010
YAW_COST = 0.04  # cost per radian of turning the hand
EASY_YAW = -0.3  # the cheapest yaw; not 0, so that turns to the left and right differ in cost
PAD_HALF = 0.012  # half of a finger pad's side, a little more than the distance between points


@dataclass(frozen=True)
class Grasp:
    """A pose of the downward hand in which its fingers close on an object."""

    position: Array  # [3] of the grip point
    yaw: float
    cost: float


def to_hand_frame(points: Array, position: Array, yaw: float) -> Array:
    """Return points [point, 3] in the frame of a hand pointing down: u, v, w."""
    # At yaw 0 the fingers close along the world's y axis.
    closing = np.array([-np.sin(yaw), np.cos(yaw)])
    across = np.array([np.cos(yaw), np.sin(yaw)])
    offset = points - position
    return np.stack([offset[:, :2] @ closing, offset[:, :2] @ across, offset[:, 2]], axis=1)


def count_hits(points: Array, position: Array, yaw: float, *, margin: float = 0.0) -> int:
    """Return the number of points that the open hand would touch on its way straight down."""
    return _count_hits(to_hand_frame(points, position, yaw), margin)


def count_tilted_hits(
    points: Array, position: Array, hand: Rotation, *, margin: float = 0.0
) -> int:
    """Return the number of points that the open hand would touch as it moves along its axis."""
    # The hand's axes are closing, across and pointing; pointing is −w.
    return _count_hits(hand.inv().apply(points - position) * [1.0, 1.0, -1.0], margin)


def is_firm(cloud: Array, position: Array, hand: Rotation) -> bool:
    """Return whether the pads of a closing hand touch an object with whole, parallel faces."""
    u, v, w = hand.inv().apply(cloud - position).T
    between = (np.abs(u) < MAX_WIDTH / 2) & (np.abs(v) < PAD_HALF) & (np.abs(w) < PAD_HALF)
    u, v, w = u[between], v[between], w[between]
    corners = [(v * side > 0) & (w * end > 0) for side in (-1, 1) for end in (-1, 1)]
    if not all(corner.any() for corner in corners):
        return False
    edges = [[bound(u[corner]) for corner in corners] for bound in (np.min, np.max)]
    return all(np.ptp(edge) < MAX_SLANT for edge in edges)


def _count_hits(local: Array, margin: float = 0.0) -> int:
    """Return the number of points [point, 3] in the hand's frame that the hand touches."""
    u, v, w = local.T
    u, v = np.abs(u) - margin, np.abs(v) - margin
    fingers = (
        (u + 2 * margin > FINGER_IN) & (u < FINGER_OUT) & (v < FINGER_HALF) & (w > -TIP_LENGTH)
    )
    palm = (u < PALM_LENGTH) & (v < PALM_HALF) & (w > PALM_LOW)
    wrist = (u < WRIST_LENGTH) & (v < WRIST_HALF) & (w > WRIST_LOW)
    return int(np.count_nonzero(fingers | palm | wrist))


def find_grasps(
    cloud: Array, obstacles: Array, centre: Array, base: Array, rng: np.random.Generator
) -> list[Grasp]:
    """Return the grasps of an object at which the hand fits, cheapest first.

    cloud: [point, 3] of the object; obstacles: [point, 3] of everything else; centre: [3] the
    object's centre of mass; base: [3] position of the robot's base.
    """
    middle = (cloud[:, :2].min(0) + cloud[:, :2].max(0)) / 2
    near = obstacles[np.linalg.norm(obstacles[:, :2] - middle, axis=1) < 0.3]
    around = np.concatenate([cloud, near])
    # The near side of an object is easier on the arm.
    distance = np.linalg.norm(middle - base[:2])
    grasps = []
    for index in range(N_YAWS):
        yaw = -np.pi / 2 + np.pi * (index + rng.uniform(-0.3, 0.3)) / N_YAWS
        for grasp in _grasps_at(yaw, cloud, around, centre):
            farther = float(np.linalg.norm(grasp.position[:2] - base[:2]) - distance)
            grasps.append(replace(grasp, cost=grasp.cost + 0.3 * max(0.0, farther)))
    return sorted(grasps, key=lambda grasp: grasp.cost)


def _grasps_at(yaw: float, cloud: Array, around: Array, centre: Array) -> list[Grasp]:
    """Return grasps at one yaw: slabs across the object, walls within each slab."""
    local = to_hand_frame(cloud, np.zeros(3), yaw)
    scene = to_hand_frame(around, np.zeros(3), yaw)
    local_centre = to_hand_frame(centre[None], np.zeros(3), yaw)[0]
    low, high = local[:, 1].min(), local[:, 1].max()
    bottom = cloud[:, 2].min()
    across = np.array([np.cos(yaw), np.sin(yaw)])
    closing = np.array([-np.sin(yaw), np.cos(yaw)])
    grasps = []
    # A slab through the centre too: then grasps of a round object only differ in the cost of
    # turning, and it is always grasped at the same yaw.
    for v in (*np.arange(low + 0.004, high, 0.01), local_centre[1]):
        slab = local[np.abs(local[:, 1] - v) < FINGER_HALF]
        if len(slab) == 0:
            continue
        beside = scene[np.abs(scene[:, 1] - v) < WRIST_HALF]
        for depth in DEPTHS:
            height = max(slab[:, 2].max() - depth, bottom + 0.010)
            level = slab[np.abs(slab[:, 2] - height - 0.002) < 0.013]
            for left, right in _walls(level[:, 0]):
                slant = _slant(level, v, left, right)
                if right - left > MAX_WIDTH or slant > MAX_SLANT:
                    continue
                u = (left + right) / 2
                if _count_hits(beside - [u, v, height]):
                    continue
                position = np.array([*(closing * u + across * v), height])
                # Off-centre in v, an object turns between the fingers; off-centre in u, it is held.
                away = 2.0 * abs(u - local_centre[0]) + 6.0 * abs(v - local_centre[1])
                cost = away + 0.5 * (right - left) + YAW_COST * abs(yaw - EASY_YAW)
                cost += 0.02 * (DEPTHS[0] - depth) / DEPTHS[0]  # deep grasps hold better
                cost += 6.0 * slant
                grasps.append(Grasp(position, yaw, cost))
    return grasps


def _slant(level: Array, v: float, left: float, right: float) -> float:
    """Return the shift of a wall's sides along the fingers' width: 0 when they meet it squarely."""
    wall = level[(level[:, 0] >= left - 1e-9) & (level[:, 0] <= right + 1e-9)]
    sides = [wall[wall[:, 1] < v], wall[wall[:, 1] >= v]]
    if any(len(side) == 0 for side in sides):
        return MAX_SLANT
    shift = [abs(bound(sides[0][:, 0]) - bound(sides[1][:, 0])) for bound in (np.min, np.max)]
    return float(max(shift))


def _walls(coordinates: Array) -> list[tuple[float, float]]:
    """Return the bounds of groups of coordinates with gaps between them that a finger fits in."""
    if len(coordinates) == 0:
        return []
    ordered = np.sort(coordinates)
    breaks = np.flatnonzero(np.diff(ordered) > FINGER_OUT - FINGER_IN)
    starts = np.concatenate([[0], breaks + 1])
    stops = np.concatenate([breaks, [len(ordered) - 1]])
    return [(float(ordered[a]), float(ordered[b])) for a, b in zip(starts, stops, strict=True)]
