"""Render scenes exactly as robosuite's camera observations, but faster.

Without a GPU, nearly all of a frame's cost is in the vertices of half a million triangles. Two
savings do not change the image:

- With software OpenGL, `Renderer` leaves out triangles that are not visible (`visibility`).
- `SequenceRenderer` renders a known sequence of states. For a fixed camera it draws static geoms
  only once, and combines them with the moving ones by depth. That saves 15 % of the time of a whole
  demonstration.

Layers are not used with mirrors, transparent surfaces or antialiasing, because these blend colours.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strap.libero.mujoco_import import mujoco
from strap.libero.rendering.backend import select_backend
from strap.libero.rendering.visibility import FONT, MESH, TriangleCuller, camera_view, mirrored_view

Array = NDArray[np.float64]
Image = NDArray[np.uint8]

HIDDEN_GROUP = 5  # a geom group that is not drawn
VISUAL_GROUP = 1  # the group of LIBERO's visual geoms
SOFTWARE_RENDERERS = ("llvmpipe", "softpipe", "swrast", "software")  # parts of their names
FLAT_TYPES = (int(mujoco.mjtGeom.mjGEOM_PLANE), int(mujoco.mjtGeom.mjGEOM_BOX))


class Renderer:
    """Renders one model's cameras at one size, bottom row first.

    cull_triangles: leave out triangles that are not visible; None: only with software OpenGL,
    because a GPU is faster without culling. Culling requires a scene without shadows (LIBERO's
    lights cast none), because triangles visible only to a light are not found. It also requires one
    sample per pixel: with several, hardly any triangle falls between the samples.
    """

    def __init__(
        self,
        model: Any,
        data: Any,
        size: int,
        *,
        antialias: bool = False,
        cull_triangles: bool | None = None,
    ) -> None:
        self.model, self.data, self.size = model, data, size
        model.vis.quality.offsamples = 4 if antialias else 0
        model.vis.global_.offwidth = model.vis.global_.offheight = size
        # Not mujoco.GLContext, which was bound to a backend when mujoco was imported.
        self._gl = import_module(f"mujoco.{select_backend()}").GLContext(size, size)
        atexit.register(_close_at_exit, weakref.ref(self))
        self._gl.make_current()
        self._scene = mujoco.MjvScene(model, maxgeom=1000)
        self._options = mujoco.MjvOption()
        self._options.geomgroup[0] = 0  # collision geoms
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        if cull_triangles is None:
            cull_triangles = _is_software()
        can_cull = not (antialias or model.light_castshadow.any())
        self.culler = TriangleCuller(model) if cull_triangles and can_cull else None
        self._context = self.culler.context if self.culler else mujoco.MjrContext(model, FONT)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._viewport = mujoco.MjrRect(0, 0, size, size)
        self._mirrors, is_transparent = _special_surfaces(model)
        self.can_layer = not (antialias or is_transparent or len(self._mirrors))

    def render(self, camera: str) -> Image:
        """Return the image [size, size, 3] of a camera, which has its MuJoCo name."""
        self._draw(camera)
        return self._read()

    def render_with_depth(
        self, camera: str, hidden: NDArray[np.bool_] | None = None, *, sites: bool = True
    ) -> tuple[Image, NDArray[np.float32]]:
        """Return a camera's image and depth [size, size], without the hidden geoms [geom]."""
        self._draw(camera, hidden, sites=sites)
        depth = np.empty((self.size, self.size), np.float32)
        return self._read(depth), depth

    def _draw(
        self, camera: str, hidden: NDArray[np.bool_] | None = None, *, sites: bool = True
    ) -> None:
        model = self.model
        self._gl.make_current()
        self._camera.fixedcamid = model.camera(camera).id
        self._options.sitegroup[0] = int(sites)
        groups = model.geom_group.copy()
        if hidden is not None:
            model.geom_group[hidden] = HIDDEN_GROUP
        unperturbed, everything = mujoco.MjvPerturb(), mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(
            model, self.data, self._options, unperturbed, self._camera, everything, self._scene
        )
        if self.culler is not None:
            self._cull(self.culler)
        model.geom_group[:] = groups
        mujoco.mjr_render(self._viewport, self._scene, self._context)

    def _read(self, depth: NDArray[np.float32] | None = None) -> Image:
        """Return the drawn image; also read the depth if an array for it is given.

        Each read waits for the GPU and interrupts other processes on it.
        """
        image = np.empty((self.size, self.size, 3), np.uint8)
        mujoco.mjr_readPixels(image, depth, self._viewport, self._context)
        return image

    def _cull(self, culler: TriangleCuller) -> None:
        """Cull all triangles that are visible neither directly nor in a mirror."""
        model, data = self.model, self.data
        is_drawn = self._options.geomgroup[model.geom_group] > 0
        view = camera_view(self._scene, self.size)
        mirrors = [geom for geom in self._mirrors if is_drawn[geom]]
        views = [view, *(mirrored_view(view, model, data, geom) for geom in mirrors)]
        geoms = np.flatnonzero(is_drawn & (model.geom_type == MESH))
        culler.apply(data, geoms, views)

    def close(self) -> None:
        """Free the OpenGL objects; safe to call twice."""
        if self._context is not None:
            self._gl.make_current()
            self._context.free()
            self._gl.free()
            self._context = self.culler = None


def _close_at_exit(reference: weakref.ref[Renderer]) -> None:
    """Close a renderer that is still open, before mujoco shuts down OpenGL at exit."""
    renderer = reference()
    if renderer is not None:
        renderer.close()


class SequenceRenderer:
    """Renders the states of a known sequence from one camera; draws static geoms only once."""

    def __init__(self, renderer: Renderer, camera: str, states: Sequence[Array]) -> None:
        model = renderer.model
        self._renderer, self._camera = renderer, camera
        is_fixed = int(model.body_weldid[model.cam_bodyid[model.camera(camera).id]]) == 0
        self._static = _static_geoms(model, states) if renderer.can_layer and is_fixed else None
        self._background: tuple[Image, NDArray[np.float32]] | None = None

    def render(self) -> Image:
        """Return the image of the renderer's current state, which must be in the sequence."""
        if self._static is None:
            return self._renderer.render(self._camera)
        if self._background is None:
            self._background = self._renderer.render_with_depth(
                self._camera, ~self._static, sites=False
            )
        image, depth = self._renderer.render_with_depth(self._camera, self._static)
        is_behind = depth >= self._background[1]  # nothing was drawn there, or something hidden
        image[is_behind] = self._background[0][is_behind]
        return image


def _is_software() -> bool:
    """Return whether the current OpenGL context renders without a GPU."""
    opengl = import_module("OpenGL.GL")
    name = opengl.glGetString(opengl.GL_RENDERER).decode().lower()
    return any(word in name for word in SOFTWARE_RENDERERS)


def _special_surfaces(model: Any) -> tuple[NDArray[np.intp], bool]:
    """Return the visual geoms that are mirrors, and whether any geom is transparent."""
    is_visual = model.geom_group == VISUAL_GROUP
    material = model.geom_matid
    has_material = material >= 0
    alpha = np.where(has_material, model.mat_rgba[material, 3], model.geom_rgba[:, 3])
    is_flat = np.isin(model.geom_type, FLAT_TYPES)
    mirrors = has_material & (model.mat_reflectance[material] > 0) & is_flat
    is_transparent = (alpha > 0) & (alpha < 1)
    return np.flatnonzero(is_visual & mirrors), bool(np.any(is_visual & is_transparent))


def _static_geoms(model: Any, states: Sequence[Array]) -> NDArray[np.bool_]:
    """Return which geoms [geom] have the same pose in all states, to 1/100 of a millimetre."""
    data = mujoco.MjData(model)
    low = np.full((model.ngeom, 12), np.inf)
    high = -low
    for state in states:
        data.qpos[:] = state[1 : 1 + model.nq]
        mujoco.mj_kinematics(model, data)
        pose = np.concatenate([data.geom_xpos, data.geom_xmat], axis=1)
        low, high = np.minimum(low, pose), np.maximum(high, pose)
    return np.asarray((high - low).max(axis=1) < 1e-5)
