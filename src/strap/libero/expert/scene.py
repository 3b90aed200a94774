"""Query the simulated scene's privileged state: shapes, joints, regions.

LIBERO's collision shapes are boxes (and a few cylinders). A cloud of points that fills them
represents a body well, so the expert's geometry uses such clouds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from strap.libero.environment import LiberoEnv
from strap.libero.mujoco_import import mujoco

Array: TypeAlias = NDArray[np.float64]

UP = np.array([0.0, 0.0, 1.0])
GRIP_SITE = "gripper0_grip_site"
SPACING = 0.010  # metres between the points of a cloud
SLIDE = int(mujoco.mjtJoint.mjJNT_SLIDE)


@dataclass(frozen=True)
class Region:
    """The box of a goal's target, axis-aligned in the world."""

    owner: str | None  # the object or fixture it belongs to; None for a zone of the table
    is_object: bool  # the region is the whole owner, not a part of it
    centre: Array  # [3]
    half: Array  # [3] half of its sides

    @property
    def low(self) -> Array:
        """The corner with the smallest coordinates [3]."""
        return self.centre - self.half

    @property
    def high(self) -> Array:
        """The corner with the largest coordinates [3]."""
        return self.centre + self.half


@dataclass(frozen=True)
class Joint:
    """One degree of freedom of a fixture: a drawer, a door or a knob."""

    fixture: str
    body: int
    slides: bool
    position: float
    axis: Array  # [3] in the world
    anchor: Array  # [3] in the world
    opened: float  # a joint position at which it counts as open (or on)
    closed: float  # … as closed (or off)

    @property
    def opening(self) -> float:
        """The sign, 1 or −1, of the change of the joint's position when it opens."""
        return float(np.sign(self.opened - self.closed))


class Scene:
    """Answers queries about the current state of one environment."""

    def __init__(self, env: LiberoEnv) -> None:
        self.env = env
        self._points: dict[int, list[tuple[int, Array]]] = {}  # body -> geoms, points within each

    def hand_pose(self) -> tuple[Array, Array]:
        """Return position [3] and rotation [3, 3] of the point between the finger tips."""
        site = self.env.data.site(GRIP_SITE)
        return site.xpos.copy(), site.xmat.reshape(3, 3).copy()

    def base_position(self) -> Array:
        """Return the position of the robot's base [3]."""
        return np.array(self.env.data.body("robot0_base").xpos)

    def finger_gap(self) -> float:
        """Return the distance between the fingers in metres, 0.08 when open."""
        robot = self.env.world.robots[0]
        gap = np.abs(self.env.world.sim.data.qpos[robot._ref_gripper_joint_pos_indexes]).sum()
        return float(gap)

    def origin(self, name: str) -> Array:
        """Return the origin [3] of an object or fixture, which LIBERO's predicates use."""
        return np.array(self.env.data.xpos[self._root_body(name)])

    def centre_of_mass(self, name: str) -> Array:
        """Return an object's centre of mass [3]."""
        return np.array(self.env.data.subtree_com[self._root_body(name)])

    def point_cloud(self, name: str) -> Array:
        """Return points [point, 3] that fill an object or fixture, in the world."""
        body = self._root_body(name)
        if body not in self._points:
            self._points[body] = self._fill(body)
        data = self.env.data
        return np.concatenate(
            [
                points @ data.geom_xmat[geom].reshape(3, 3).T + data.geom_xpos[geom]
                for geom, points in self._points[body]
            ]
        )

    def boxes(self, body: int) -> list[tuple[Array, Array]]:
        """Return world-aligned bounds (low [3], high [3]) of each geom of one body alone."""
        model, data = self.env.model, self.env.data
        found = []
        for geom in range(model.ngeom):
            if model.geom_bodyid[geom] == body and model.geom_group[geom] == 0:
                rotation = data.geom_xmat[geom].reshape(3, 3)
                centre = data.geom_xpos[geom] + rotation @ model.geom_aabb[geom, :3]
                half = np.abs(rotation) @ model.geom_aabb[geom, 3:]
                found.append((centre - half, centre + half))
        return found

    def foremost_box(self, body: int, direction: Array) -> tuple[Array, Array]:
        """Return the bounds of a body's geom that extends farthest in a direction [3]."""
        boxes = self.boxes(body)
        extents = [max(float(low @ direction), float(high @ direction)) for low, high in boxes]
        return boxes[int(np.argmax(extents))]

    def obstacles(self, without: Iterable[str] = ()) -> Array:
        """Return points [point, 3] that fill all objects and fixtures but tables and `without`."""
        world, excluded = self.env.world, set(without)
        names = (*world.objects_dict, *world.fixtures_dict)
        clouds = [self.point_cloud(name) for name in names if name not in excluded]
        return np.concatenate(clouds) if clouds else np.zeros((0, 3))

    def region(self, name: str) -> Region:
        """Return the region of a target: a fixture's site, a zone of the table or an object."""
        sites = self.env.world.object_sites_dict
        if name in sites:
            site = self.env.data.site(name)
            half = np.abs(site.xmat.reshape(3, 3) @ self.env.model.site(name).size)
            owner = getattr(sites[name], "parent_name", None)
            return Region(owner, False, site.xpos.copy(), half)
        cloud = self.point_cloud(name)
        low, high = cloud.min(0), cloud.max(0)
        centre, half = (low + high) / 2, (high - low) / 2
        centre[:2] = self.origin(name)[:2]  # `on` compares the origins
        return Region(name, True, centre, half)

    def joint(self, target: str) -> Joint:
        """Return the joint of an open, close or turn goal."""
        world, model, data = self.env.world, self.env.model, self.env.data
        if target in world.object_sites_dict:
            site = world.object_sites_dict[target]
            name, fixture = site.joints[0], site.parent_name
        else:
            name, fixture = self._robosuite_model(target).joints[0], target
        number = model.joint(name).id
        ranges = self._robosuite_model(fixture).object_properties["articulation"]
        opened = ranges.get("default_turnon_ranges") or ranges["default_open_ranges"]
        closed = ranges.get("default_turnoff_ranges") or ranges["default_close_ranges"]
        return Joint(
            fixture=fixture,
            body=int(model.jnt_bodyid[number]),
            slides=int(model.jnt_type[number]) == SLIDE,
            position=float(data.qpos[model.jnt_qposadr[number]]),
            axis=data.xaxis[number].copy(),
            anchor=data.xanchor[number].copy(),
            opened=float(np.mean(opened)),
            closed=float(np.mean(closed)),
        )

    def table_height(self) -> float:
        """Return the height of the surface that objects stand on."""
        return float(self.env.world.workspace_offset[2])

    def _robosuite_model(self, name: str) -> Any:
        world = self.env.world
        return world.objects_dict.get(name) or world.fixtures_dict[name]

    def _root_body(self, name: str) -> int:
        return int(self.env.model.body(self._robosuite_model(name).root_body).id)

    def _fill(self, root: int) -> list[tuple[int, Array]]:
        """Return the collision geoms of a body and its descendants, each with points filling it."""
        model = self.env.model
        bodies = {root}
        for body in range(root + 1, model.nbody):
            if int(model.body_parentid[body]) in bodies:
                bodies.add(body)
        return [
            (geom, _fill_box(model.geom_aabb[geom, :3], model.geom_aabb[geom, 3:]))
            for geom in range(model.ngeom)
            if int(model.geom_bodyid[geom]) in bodies and model.geom_group[geom] == 0
        ]


def _fill_box(centre: Array, half: Array) -> Array:
    """Return a grid of points [point, 3] that fills a box, its faces included."""
    axes = [
        np.linspace(-side, side, max(2, min(40, int(np.ceil(2 * side / SPACING)) + 1)))
        for side in half
    ]
    return np.array(list(product(*axes))) + centre
