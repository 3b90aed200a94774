"""Drawing scenes as robosuite's camera observations are drawn, and faster where that is exact.

Nearly all of a frame's cost, without a GPU, is in the vertices of half a million triangles.
Three savings leave the picture as it is:

- `Painter` doesn't send shapes that a camera can't see, nor, where the renderer is software, the
  triangles of the others that can't show (`visibility`).
- `Film`, which draws a known sequence of states, draws what never moves once for a fixed camera,
  and lays what moves over it by depth.

Where surfaces mirror, unseen things change the picture: there whole shapes are all sent, and
triangles are looked for in the mirror too. Layers aren't used there, nor with transparent shapes
or antialiasing, where colours blend.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from itertools import product
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from strap.libero.rendering.backend import select_backend
from strap.libero.rendering.visibility import MESH, Sieve, camera_view, mirrored_view

Array = NDArray[np.float64]
Image = NDArray[np.uint8]

HIDDEN = 5  # a geom group that is not drawn
VISIBLE = 1  # the group of LIBERO's visual shapes
_CORNERS = np.array(list(product((-1.0, 1.0), repeat=3)))
SOFTWARE = ("llvmpipe", "softpipe", "swrast", "software")  # in the names of such renderers
FLAT = (int(mujoco.mjtGeom.mjGEOM_PLANE), int(mujoco.mjtGeom.mjGEOM_BOX))


class Painter:
    """Renders one model's cameras at one size, bottom row first."""

    def __init__(self, model: Any, data: Any, size: int, *, antialias: bool) -> None:
        self.model, self.data, self.size, self.antialias = model, data, size, antialias
        model.vis.quality.offsamples = 4 if antialias else 0
        model.vis.global_.offwidth = model.vis.global_.offheight = size
        # mujoco.GLContext was bound to a backend when mujoco was first imported, maybe by others.
        self._gl = import_module(f"mujoco.{select_backend()}").GLContext(size, size)
        self._gl.make_current()
        self._scene = mujoco.MjvScene(model, maxgeom=1000)
        self._options = mujoco.MjvOption()
        self._options.geomgroup[0] = 0  # collision shapes
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._perturbation = mujoco.MjvPerturb()
        # Lights that cast shadows would have to be looked from as well; LIBERO's cast none. With
        # several samples per pixel hardly anything falls between them.
        sieves = _is_software() and not (antialias or model.light_castshadow.any())
        self._sieve = Sieve(model) if sieves else None
        if self._sieve is not None:
            self._sieve.empty()
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._view = mujoco.MjrRect(0, 0, size, size)
        self._mirrors, clear = _special_surfaces(model)
        self.may_cull = len(self._mirrors) == 0
        self.may_layer = self.may_cull and not (antialias or clear)

    def render(self, camera: str) -> Image:
        """The image [size size 3] of a camera, by MuJoCo's name."""
        number = self.model.camera(camera).id
        return self.draw(number, self.unseen(number))[0]

    def draw(
        self, camera: int, hidden: NDArray[np.bool_], *, sites: bool = True
    ) -> tuple[Image, NDArray[np.float32]]:
        """A camera's image and depth [size size], without the hidden shapes."""
        self._gl.make_current()
        self._camera.fixedcamid = camera
        self._options.sitegroup[0] = int(sites)
        groups = self.model.geom_group.copy()
        self.model.geom_group[hidden] = HIDDEN
        mujoco.mjv_updateScene(
            self.model,
            self.data,
            self._options,
            self._perturbation,
            self._camera,
            mujoco.mjtCatBit.mjCAT_ALL,
            self._scene,
        )
        self.model.geom_group[:] = groups
        if self._sieve is not None:
            self._sieve_meshes(self._sieve, hidden)
        mujoco.mjr_render(self._view, self._scene, self._context)
        image = np.empty((self.size, self.size, 3), np.uint8)
        depth = np.empty((self.size, self.size), np.float32)
        mujoco.mjr_readPixels(image, depth, self._view, self._context)
        return image, depth

    def _sieve_meshes(self, sieve: Sieve, hidden: NDArray[np.bool_]) -> None:
        model, data = self.model, self.data
        view = camera_view(self._scene, self.size)
        mirrors = [geom for geom in self._mirrors if not hidden[geom]]
        views = [view, *(mirrored_view(view, model, data, geom) for geom in mirrors)]
        drawn = (model.geom_type == MESH) & (self._options.geomgroup[model.geom_group] > 0)
        sieve.apply(self._context, data, np.flatnonzero(drawn & ~hidden), views)

    def unseen(self, camera: int) -> NDArray[np.bool_]:
        """Which shapes [geom] a camera can't see; none where unseen ones show in a mirror."""
        model, data = self.model, self.data
        if not self.may_cull:
            return np.zeros(model.ngeom, bool)
        axes = data.cam_xmat[camera].reshape(3, 3)  # columns: right, up, backwards
        boxes = model.geom_aabb[:, None, :3] + _CORNERS * model.geom_aabb[:, None, 3:]
        rotations = data.geom_xmat.reshape(-1, 3, 3)
        corners = np.einsum("gij,gcj->gci", rotations, boxes) + data.geom_xpos[:, None]
        right, up, back = np.moveaxis((corners - data.cam_xpos[camera]) @ axes, 2, 0)
        half = np.radians(model.cam_fovy[camera]) / 2
        # A box is out of sight when all its corners are beyond one of the planes of the view.
        beyond = [
            sign * side * np.cos(half) + back * np.sin(half) > 1e-3
            for side in (right, up)
            for sign in (-1.0, 1.0)
        ]
        hidden = np.any([np.all(plane, axis=1) for plane in (*beyond, back > 0)], axis=0)
        return np.asarray(hidden & (model.geom_rbound > 0))  # a plane has no bounds

    def close(self) -> None:
        """Free the OpenGL objects."""
        if self._context is not None:
            self._gl.make_current()
            self._context.free()
            self._gl.free()
            self._context = None
        if self._sieve is not None:
            self._sieve.restore()
            self._sieve = None


class Film:
    """Draws the frames of a known sequence of states from a camera that stands still."""

    def __init__(self, painter: Painter, camera: str, states: Sequence[Array]) -> None:
        self._painter = painter
        self._camera = painter.model.camera(camera).id
        self._layered = painter.may_layer and _stands_still(painter.model, self._camera)
        if self._layered:
            self._still = _still_shapes(painter.model, states)
            self._ground: tuple[Image, NDArray[np.float32]] | None = None

    def render(self) -> Image:
        """The image of the state that the painter's data is in: one of the sequence."""
        if not self._layered:
            return self._painter.draw(self._camera, self._painter.unseen(self._camera))[0]
        if self._ground is None:
            self._ground = self._painter.draw(self._camera, ~self._still, sites=False)
        unseen = self._painter.unseen(self._camera)
        image, depth = self._painter.draw(self._camera, self._still | unseen)
        behind = depth >= self._ground[1]  # drawn nothing, or something hidden
        image[behind] = self._ground[0][behind]
        return image


def _is_software() -> bool:
    """Whether the current OpenGL context draws without a GPU."""
    name = import_module("OpenGL.GL").glGetString(import_module("OpenGL.GL").GL_RENDERER)
    return any(word in name.decode().lower() for word in SOFTWARE)


def _special_surfaces(model: Any) -> tuple[NDArray[np.intp], bool]:
    """Which of the shapes that are drawn mirror, and whether any shines through."""
    drawn = model.geom_group == VISIBLE
    material = model.geom_matid
    known = material >= 0
    alpha = np.where(known, model.mat_rgba[material, 3], model.geom_rgba[:, 3])
    mirrors = known & (model.mat_reflectance[material] > 0) & np.isin(model.geom_type, FLAT)
    clear = (alpha > 0) & (alpha < 1)
    return np.flatnonzero(drawn & mirrors), bool(np.any(drawn & clear))


def _stands_still(model: Any, camera: int) -> bool:
    return int(model.body_weldid[model.cam_bodyid[camera]]) == 0


def _still_shapes(model: Any, states: Sequence[Array]) -> NDArray[np.bool_]:
    """Which shapes [geom] are in the same place in all states, to a hundredth of a millimetre."""
    data = mujoco.MjData(model)
    low = np.full((model.ngeom, 12), np.inf)
    high = -low
    for state in states:
        data.qpos[:] = state[1 : 1 + model.nq]
        mujoco.mj_kinematics(model, data)
        pose = np.concatenate([data.geom_xpos, data.geom_xmat], axis=1)
        low, high = np.minimum(low, pose), np.maximum(high, pose)
    return np.asarray((high - low).max(axis=1) < 1e-5)
