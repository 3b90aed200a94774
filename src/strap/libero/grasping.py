"""Where to take hold of an object, and where the open hand would fit.

The hand in its own frame: u along which the fingers close, v across, w up from the finger tips.

          ┌───────────────┐   palm: |u| < 0.105, |v| < 0.035, w from 0.042
          └─┬─┐       ┌─┬─┘
            │ │   w   │ │     fingers: |u| from 0.037 to 0.060, |v| < 0.013
            └─┘   ·u  └─┘     the grip point is at u = v = w = 0
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

GAP = 0.074  # widest thing to take between the fingers, metres
FINGER_IN, FINGER_OUT, FINGER_HALF = 0.037, 0.060, 0.013
PALM_LENGTH, PALM_HALF, PALM_LOW = 0.105, 0.036, 0.045
TIP = 0.012  # how far the finger tips reach below the grip point
DEPTHS = (0.032, 0.024, 0.016)  # grip point below the local top of the object
ANGLES = 24


@dataclass(frozen=True)
class Grasp:
    """A way of taking an object from above."""

    position: Array  # [3] of the grip point
    yaw: float
    width: float  # of what is between the fingers
    cost: float


def in_hand_frame(points: Array, position: Array, yaw: float) -> Array:
    """Points [n 3] seen from a hand pointing down: u, v, w."""
    # At yaw 0 the fingers close along the world's y axis.
    closing = np.array([-np.sin(yaw), np.cos(yaw)])
    across = np.array([np.cos(yaw), np.sin(yaw)])
    offset = points - position
    return np.stack([offset[:, :2] @ closing, offset[:, :2] @ across, offset[:, 2]], axis=1)


def hand_hits(points: Array, position: Array, yaw: float, *, margin: float = 0.0) -> int:
    """How many points the open hand would touch at a pose."""
    u, v, w = np.abs(in_hand_frame(points, position, yaw)).T
    w = points[:, 2] - position[2]
    fingers = (u > FINGER_IN - margin) & (u < FINGER_OUT + margin) & (v < FINGER_HALF + margin)
    fingers &= (w > -TIP) & (w < PALM_LOW)
    palm = (u < PALM_LENGTH + margin) & (v < PALM_HALF + margin) & (w > PALM_LOW) & (w < 0.16)
    return int(np.count_nonzero(fingers | palm))


def find_grasps(
    cloud: Array, obstacles: Array, origin: Array, rng: np.random.Generator
) -> list[Grasp]:
    """All ways found of taking an object, cheapest first.

    cloud: [n 3] the object's points; obstacles: [m 3] everything else's; origin: [3] the point
    that grasps should be near, about its centre of mass.
    """
    middle = (cloud[:, :2].min(0) + cloud[:, :2].max(0)) / 2
    near = obstacles[np.linalg.norm(obstacles[:, :2] - middle, axis=1) < 0.35]
    around = np.concatenate([cloud, near])
    grasps: list[Grasp] = []
    for index in range(ANGLES):
        yaw = -np.pi / 2 + np.pi * (index + rng.uniform(-0.3, 0.3)) / ANGLES
        grasps.extend(_grasps_at(yaw, cloud, around, origin))
    return sorted(grasps, key=lambda grasp: grasp.cost)


def _grasps_at(yaw: float, cloud: Array, around: Array, origin: Array) -> list[Grasp]:
    """Grasps with one direction of closing: slabs across the object, walls within each slab."""
    local = in_hand_frame(cloud, np.zeros(3), yaw)
    home = in_hand_frame(origin[None], np.zeros(3), yaw)[0]
    low, high = local[:, 1].min(), local[:, 1].max()
    bottom = cloud[:, 2].min()
    across = np.array([np.cos(yaw), np.sin(yaw)])
    closing = np.array([-np.sin(yaw), np.cos(yaw)])
    grasps = []
    for v in np.arange(low + 0.004, high, 0.01):
        slab = local[np.abs(local[:, 1] - v) < FINGER_HALF]
        if len(slab) == 0:
            continue
        for depth in DEPTHS:
            height = max(slab[:, 2].max() - depth, bottom + 0.010)
            level = slab[np.abs(slab[:, 2] - height - 0.002) < 0.013]
            for left, right in _walls(level[:, 0]):
                if right - left > GAP:
                    continue
                u = (left + right) / 2
                position = np.array([*(closing * u + across * v), height])
                hits = hand_hits(around, position, yaw)
                if hits:
                    continue
                away = np.hypot(u - home[0], v - home[1])
                cost = 4.0 * away + 0.5 * (right - left) + 0.01 * abs(yaw) + depth_cost(depth)
                grasps.append(Grasp(position, yaw, right - left, cost))
    return grasps


def depth_cost(depth: float) -> float:
    """Deep grasps hold better."""
    return 0.02 * (DEPTHS[0] - depth) / DEPTHS[0]


def _walls(coordinates: Array) -> list[tuple[float, float]]:
    """Groups of coordinates with gaps wide enough for a finger between them."""
    if len(coordinates) == 0:
        return []
    ordered = np.sort(coordinates)
    breaks = np.flatnonzero(np.diff(ordered) > FINGER_OUT - FINGER_IN)
    starts = np.concatenate([[0], breaks + 1])
    stops = np.concatenate([breaks, [len(ordered) - 1]])
    return [(float(ordered[a]), float(ordered[b])) for a, b in zip(starts, stops, strict=True)]
