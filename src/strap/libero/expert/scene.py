"""Privileged knowledge of the simulated scene: shapes, joints, regions.

LIBERO's collision shapes are boxes (and a few cylinders), so a body is known exactly by a cloud of
points filling them; every geometric question of the expert is asked of such clouds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from strap.libero.environment import LiberoEnv

Array = NDArray[np.float64]

GRIP_SITE = "gripper0_grip_site"
SPACING = 0.010  # metres between the points of a cloud
SLIDE = int(mujoco.mjtJoint.mjJNT_SLIDE)


@dataclass(frozen=True)
class Region:
    """A box that a goal speaks of, axis-aligned in the world."""

    name: str
    parent: str | None  # the object or fixture it belongs to; None for a zone of the table
    centre: Array  # [3]
    half: Array  # [3]

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

    name: str
    fixture: str
    body: int
    slides: bool
    position: float
    axis: Array  # [3] in the world
    anchor: Array  # [3] in the world
    opened: float  # a joint position at which it counts as open (or on)
    closed: float  # … as closed (or off)


class Scene:
    """Queries about the present state of one environment."""

    def __init__(self, env: LiberoEnv) -> None:
        self.env = env
        self._local: dict[int, list[tuple[int, Array]]] = {}

    @property
    def things(self) -> tuple[str, ...]:
        """Every object and fixture except tables."""
        world = self.env.world
        return (*world.objects_dict, *world.fixtures_dict)

    def hand(self) -> tuple[Array, Array]:
        """Position [3] and rotation [3 3] of the point between the finger tips."""
        site = self.env.data.site(GRIP_SITE)
        return site.xpos.copy(), site.xmat.reshape(3, 3).copy()

    def base(self) -> Array:
        """Where the robot stands [3]."""
        return np.array(self.env.data.body("robot0_base").xpos)

    def finger_gap(self) -> float:
        """Distance between the fingers in metres, 0.08 when open."""
        robot = self.env.world.robots[0]
        gap = np.abs(self.env.world.sim.data.qpos[robot._ref_gripper_joint_pos_indexes]).sum()
        return float(gap)

    def body(self, name: str) -> int:
        """The root body of an object or fixture."""
        return int(self.env.model.body(self._model_of(name).root_body).id)

    def origin(self, name: str) -> Array:
        """The point [3] whose place LIBERO's predicates look at."""
        return np.array(self.env.data.xpos[self.body(name)])

    def centre_of_mass(self, name: str) -> Array:
        """An object's centre of mass [3]."""
        return np.array(self.env.data.subtree_com[self.body(name)])

    def rotation(self, name: str) -> Array:
        """An object's rotation [3 3]."""
        return np.array(self.env.data.xmat[self.body(name)]).reshape(3, 3)

    def category(self, name: str) -> str:
        """The kind of an object, e.g. `akita_black_bowl`."""
        return str(self._model_of(name).category_name)

    def cloud(self, name: str) -> Array:
        """Points [n 3] filling an object or fixture, in the world."""
        return self.body_cloud(self.body(name))

    def body_cloud(self, body: int) -> Array:
        """Points [n 3] filling a body and those that hang on it, in the world."""
        if body not in self._local:
            self._local[body] = self._fill(body)
        data = self.env.data
        return np.concatenate(
            [
                points @ data.geom_xmat[geom].reshape(3, 3).T + data.geom_xpos[geom]
                for geom, points in self._local[body]
            ]
        )

    def boxes(self, body: int) -> list[tuple[Array, Array]]:
        """World-aligned bounds (low [3], high [3]) of each shape of one body alone."""
        model, data = self.env.model, self.env.data
        found = []
        for geom in range(model.ngeom):
            if model.geom_bodyid[geom] == body and model.geom_group[geom] == 0:
                rotation = data.geom_xmat[geom].reshape(3, 3)
                centre = data.geom_xpos[geom] + rotation @ model.geom_aabb[geom, :3]
                half = np.abs(rotation) @ model.geom_aabb[geom, 3:]
                found.append((centre - half, centre + half))
        return found

    def foremost(self, body: int, direction: Array) -> tuple[Array, Array]:
        """Bounds (low [3], high [3]) of a body's shape that reaches farthest in a direction."""
        boxes = self.boxes(body)
        reach = [max(float(low @ direction), float(high @ direction)) for low, high in boxes]
        return boxes[int(np.argmax(reach))]

    def obstacles(self, without: Iterable[str] = ()) -> Array:
        """Points [n 3] filling everything except the named things, tables and the robot."""
        left_out = set(without)
        clouds = [self.cloud(name) for name in self.things if name not in left_out]
        return np.concatenate(clouds) if clouds else np.zeros((0, 3))

    def region(self, name: str) -> Region:
        """Where a goal's target is: a site of a fixture, a zone of the table, or an object."""
        sites = self.env.world.object_sites_dict
        if name in sites:
            site = self.env.data.site(name)
            half = np.abs(site.xmat.reshape(3, 3) @ self.env.model.site(name).size)
            parent = getattr(sites[name], "parent_name", None)
            return Region(name, parent, site.xpos.copy(), half)
        cloud = self.cloud(name)
        low, high = cloud.min(0), cloud.max(0)
        centre, half = (low + high) / 2, (high - low) / 2
        centre[:2] = self.origin(name)[:2]  # `on` compares the origins
        return Region(name, name, centre, half)

    def joint(self, target: str) -> Joint:
        """The joint behind an open, close or turn goal."""
        world, model, data = self.env.world, self.env.model, self.env.data
        if target in world.object_sites_dict:
            site = world.object_sites_dict[target]
            name, fixture = site.joints[0], site.parent_name
        else:
            name, fixture = self._model_of(target).joints[0], target
        number = model.joint(name).id
        ranges = self._model_of(fixture).object_properties["articulation"]
        opened = ranges.get("default_turnon_ranges") or ranges["default_open_ranges"]
        closed = ranges.get("default_turnoff_ranges") or ranges["default_close_ranges"]
        return Joint(
            name=name,
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
        """The height of the surface that objects stand on."""
        return float(self.env.world.workspace_offset[2])

    def _model_of(self, name: str) -> Any:
        world = self.env.world
        return world.objects_dict.get(name) or world.fixtures_dict[name]

    def _fill(self, root: int) -> list[tuple[int, Array]]:
        model = self.env.model
        bodies = {root}
        for body in range(root + 1, model.nbody):
            if int(model.body_parentid[body]) in bodies:
                bodies.add(body)
        return [
            (geom, _grid(model.geom_aabb[geom, :3], model.geom_aabb[geom, 3:]))
            for geom in range(model.ngeom)
            if int(model.geom_bodyid[geom]) in bodies and model.geom_group[geom] == 0
        ]


def _grid(centre: Array, half: Array) -> Array:
    """Points filling a box, its faces included."""
    axes = [
        np.linspace(-side, side, max(2, min(40, int(np.ceil(2 * side / SPACING)) + 1)))
        for side in half
    ]
    return np.array(list(product(*axes))) + centre
